"""What need not be simulated: jobs that meet nobody sleep, and periods that repeat are jumped over."""
