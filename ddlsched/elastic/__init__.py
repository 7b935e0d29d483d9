"""Jobs that grow and shrink: their scaling curves, servers that come and go, what a change of size costs."""
