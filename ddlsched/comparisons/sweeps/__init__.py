"""Many runs, kept as they finish and resumed after a stop."""
