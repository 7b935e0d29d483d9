"""Every concrete topology, one file each, each building a networkx graph."""
