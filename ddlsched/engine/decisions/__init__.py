"""What a policy is asked and what its answers are checked for, for the engine and for what runs jobs for real."""
