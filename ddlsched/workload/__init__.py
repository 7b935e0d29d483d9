"""Jobs, the graph of an iteration, elastic jobs and their curves, workload files, generators and traces."""
