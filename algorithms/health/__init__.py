"""Which servers are taken for lemons."""
