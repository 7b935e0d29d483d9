"""Orders of a job's ranks on its GPUs, one file each."""
