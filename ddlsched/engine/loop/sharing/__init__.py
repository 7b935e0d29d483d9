"""How fast transfers that share links go: the rates of contention models, and weighted max-min by levels."""
