"""Coding agents, all of it: adapters, runs, saved sessions, and the gateway to the models that they call."""
