"""Communication policies: which transfers overlap."""
