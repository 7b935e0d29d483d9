"""Charts in one style."""
