"""Servers and GPUs, when they are there, what disturbs them, and what jobs on one GPU cost each other."""
