"""How uvicorn serves every route of ours."""

from __future__ import annotations

from typing import Any

from cubicle.http_api.uvicorn_http import HttpConnection
from cubicle.http_api.uvicorn_ws import ClientSocket

OPTIONS: dict[str, Any] = {
    "http": HttpConnection,
    "lifespan": "off",
    "log_config": None,
    "access_log": False,
    "server_header": False,
    "timeout_keep_alive": 75,
    "ws": ClientSocket,
    "ws_max_size": 16 * 1024**2,
    "ws_per_message_deflate": False,
    "ws_ping_interval": 20.0,
    "ws_ping_timeout": 30.0,
}
"""A quiet connection stays longer than clients keep one: whoever sends in the moment in which it ends gets no answer.
ClientSocket stops reading from a client whose last message was not taken yet and waits for a slow one before it takes
more; compression would cost three times the relay's own work."""
