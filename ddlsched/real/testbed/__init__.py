"""Workloads run for real: servers as network namespaces or hosts, real all-reduces, the simulator's own policies."""
