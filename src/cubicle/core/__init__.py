"""Pure rules that every layer may use: no await, no I/O, no framework."""
