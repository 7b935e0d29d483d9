"""Policies as the event loop calls them: compiled from their classes, on the engine's records, by address."""
