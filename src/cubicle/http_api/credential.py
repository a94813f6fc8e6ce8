"""By what a request was let in: some credentials come along with any link that a browser follows, others do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import HTTPConnection

from cubicle.core.identity import Credential, Identity, LinkAccess

_STATE = "credential"


def credential_of(scope: Mapping[str, Any]) -> Credential:
    return Credential(scope.get("state", {}).get(_STATE, Credential.PUBLIC))


def note_credential(state: dict[str, Any], credential: Credential) -> None:
    state[_STATE] = credential


def is_view_only(connection: HTTPConnection) -> bool:
    """Whether it came by a link that only lets one look."""
    identity = getattr(connection.state, "identity", None)
    return isinstance(identity, Identity) and identity.access is not LinkAccess.CONTROL


def is_from_a_link(connection: HTTPConnection) -> bool:
    """Whether a GET may be one that a person did not mean: a link that was followed, an element of another site's page.

    A bearer key rules it out, and so does a program where no credential is needed. Browsers name themselves: they all
    begin User-Agent with "Mozilla/", and those that know Sec-Fetch-Site send it on HTTPS and on localhost.
    """
    match credential_of(connection.scope):
        case Credential.BEARER:
            return False
        case Credential.NONE_NEEDED:
            headers = connection.headers
            named = headers.get("User-Agent", "").lstrip().lower().startswith("mozilla/")
            return named or any(name in headers for name in ("Origin", "Referer", "Sec-Fetch-Site", "Sec-Fetch-Mode"))
        case _:
            return True
