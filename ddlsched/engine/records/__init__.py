"""What all of the engine shares: the records that a run is kept in, and what their fields may hold."""
