"""Allocation policies: how many GPUs, and which batch, each elastic job has now."""
