"""Charts, in one style."""
