"""Placement policies: on which GPUs a job runs."""
