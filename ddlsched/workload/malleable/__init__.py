"""Jobs on the nodes that a batch scheduler leaves idle."""
