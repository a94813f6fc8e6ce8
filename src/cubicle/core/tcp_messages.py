"""What a TCP connection into a sandbox is as messages of a WebSocket: binary ones are its bytes."""

from __future__ import annotations

EOF = "eof"
"""The text message that ends a direction."""
