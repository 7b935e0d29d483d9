"""Network constants from measurements, and the agents that measure."""
