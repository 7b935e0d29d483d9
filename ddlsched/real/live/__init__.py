"""Real training processes that grow and shrink with the idle nodes, under the simulator's allocators."""
