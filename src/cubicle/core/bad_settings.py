"""What stops the start of a service. It stands apart from the settings: the network worker reads none."""

from __future__ import annotations


class BadSettings(Exception):
    """A setting has a value that cannot be used; the message names it."""
