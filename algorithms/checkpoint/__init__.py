"""When jobs save their state."""
