"""Close codes of WebSockets: ours, and which of another's may be passed on."""

from __future__ import annotations

NORMAL = 1000
GOING_AWAY = 1001
NO_CODE = 1005
"""A close frame came without one."""
POLICY = 1008
TOO_BIG = 1009
BROKEN = 1011
RESTART = 1012
TRY_LATER = 1013
NOT_ALLOWED = 4401
VIEW_ONLY = 4403
"""A link that only lets one look came where something can be changed."""
NO_SUCH_CHAT = 4404
STOPPED = 4410
"""The sandbox was stopped, or sleeps: nothing but a call, an upload or somebody's wish starts it again."""
NOT_RUNNING = 4503

_MAX_REASON = 123
_ON_THE_WIRE = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014})


def passed_on(code: int | None) -> int:
    """The code to close the one side with when the other closed with this one.

    1005, 1006 and 1015 say how a connection ended and may never be sent; unknown ones are not passed on either.
    """
    if code is not None and (code in _ON_THE_WIRE or 3000 <= code <= 4999):
        return code
    return BROKEN


def reason(text: str) -> str:
    """A reason that fits into a close frame."""
    return text.encode("utf-8", "replace")[:_MAX_REASON].decode("utf-8", "ignore")
