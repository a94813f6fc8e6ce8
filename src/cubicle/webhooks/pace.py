"""How long an attempt may take, and when the next one is made."""

from __future__ import annotations

TIMEOUT = 15.0
"""Seconds for everything: look-up, connection, request and answer."""
RETRY_SECONDS = (5.0, 30.0, 120.0, 600.0, 1800.0, 7200.0, 18000.0, 36000.0, 57600.0, 86400.0)
"""Waits between the attempts, about two and a half days together; after the last one a message is a dead letter."""
MAX_RETRY_AFTER = 3600
"""Seconds that a receiver can ask to be left alone."""
