"""How a job goes on that has lost servers."""
