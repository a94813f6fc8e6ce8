"""Escape probes: what a sandbox must not be able to do, tried from inside at each start."""
