"""Collective algorithms, one file each: which bytes go between which ranks, in how many steps."""
