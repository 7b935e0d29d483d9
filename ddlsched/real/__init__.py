"""Policies outside the simulator: on a network of namespaces, under Slurm, in live training; and what is measured."""
