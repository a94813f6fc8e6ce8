"""Ports of a sandbox's loopback that are its own: people reach what is behind them by routes of the service."""

from __future__ import annotations

TERMINAL = 7681
BROWSER = 9222
"""DevTools."""
RESERVED = frozenset({TERMINAL, BROWSER})
