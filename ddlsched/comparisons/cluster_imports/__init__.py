"""Queues, servers and jobs from the files of schedulers in use: Kueue, Volcano, KAI, Slurm."""
