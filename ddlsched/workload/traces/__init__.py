"""Recorded jobs of public clusters, one reader a format, made into training jobs."""
