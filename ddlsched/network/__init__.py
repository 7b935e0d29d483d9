"""Links, routes and rings; contention models say how fast transfers go that share links."""
