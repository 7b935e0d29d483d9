"""How long a training step takes: estimated from first principles, or recorded from a run."""
