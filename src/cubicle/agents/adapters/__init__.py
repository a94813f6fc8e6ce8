"""Coding agents that sub_agent can start: one file each says how it is started, resumed and understood.

An adapter knows its program's flags, files and events, and nothing of sandboxes or callers; `runs.py` does the work.
"""
