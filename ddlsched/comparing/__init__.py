"""Comparisons: policies x workloads x seeds x clusters, from what is asked to a folder of runs and tables."""
