"""Ordering policies: which job goes first."""
