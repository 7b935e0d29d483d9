"""Workloads drawn from a seed."""
