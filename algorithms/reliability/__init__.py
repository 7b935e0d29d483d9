"""What jobs do about failures: when they commit, how they go on without a server, whom a cluster trusts no more."""
