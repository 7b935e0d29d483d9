"""A real Slurm under the simulator's policies: the agent that starts held jobs, and a Slurm on one host for trials."""
