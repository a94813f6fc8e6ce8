"""What the service's own cookies are called.

On HTTPS their names begin with `__Host-`: a browser takes such a cookie from this very host only, so no page on another
name of the same domain can set one, say to sign a person in as somebody else. Such a cookie is for every path; services
under several path prefixes of one host have cookies of different names.
"""

from __future__ import annotations

import hashlib

PREFIX = "__Host-"
OURS = "cubicle-"
"""What all of them begin with, behind the prefix."""


def cookie_name(name: str, *, secure: bool, root: str = "") -> str:
    """`root` is the path prefix of the service (ROOT_PATH)."""
    if not secure:
        return name
    root = root.strip("/")
    return f"{PREFIX}{name}" + (f"-{hashlib.sha256(root.encode()).hexdigest()[:8]}" if root else "")


def cookie_path(*, secure: bool, root: str = "") -> str:
    """Its Path. A browser drops a `__Host-` cookie of any other than /."""
    return "/" if secure else root.rstrip("/") + "/"


def is_taken(name: str, *, secure: bool) -> bool:
    """Whether a cookie of this name may be one of the service's. On HTTPS one without the prefix never is."""
    return name.startswith(PREFIX + OURS if secure else OURS)
