"""What the specification decides: pure functions, no await, no I/O, no framework."""
