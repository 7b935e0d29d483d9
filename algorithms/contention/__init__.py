"""Contention models that follow from a scheduler: which class of traffic each job gets."""
