"""Whose page may reach the service."""

from __future__ import annotations

import pytest

from cubicle.core.origins import origin_is_ours


@pytest.mark.parametrize(
    ("origin", "host", "known", "ours"),
    [
        (None, "cubicle.example", [], True),
        ("https://cubicle.example", "cubicle.example", [], True),
        ("http://cubicle.example", "cubicle.example", [], True),
        ("HTTP://Cubicle.Example:80", "cubicle.example", [], True),
        ("http://127.0.0.1:8081", "127.0.0.1:8081", [], True),
        ("http://[::1]:8081", "[::1]:8081", [], True),
        ("http://127.0.0.1:8082", "127.0.0.1:8081", [], False),
        ("http://localhost:8081", "127.0.0.1:8081", [], False),
        ("https://evil.example", "cubicle.example", [], False),
        ("https://cubicle.example.evil.example", "cubicle.example", [], False),
        ("https://chat.example", "10.0.0.4:8081", ["https://chat.example/"], True),
        ("http://chat.example", "10.0.0.4:8081", ["https://chat.example/"], False),
        ("null", "cubicle.example", [], False),
        ("", "cubicle.example", [], False),
        ("file://", "cubicle.example", [], False),
        ("http://[bad", "cubicle.example", [], False),
        ("http://host:99999", "host:99999", [], False),
        ("https://cubicle.example", None, [], False),
    ],
)
def test_an_origin_is_ours(origin: str | None, host: str | None, known: list[str], ours: bool) -> None:
    assert origin_is_ours(origin, host, known) is ours
