"""Pure rules of the live terminal and browser."""

from __future__ import annotations

import json

import pytest

from cubicle.browser import cdp_http, messages
from cubicle.browser.frame_width import FrameWidth
from cubicle.browser.keymap import virtual_key
from cubicle.core import close_codes


@pytest.mark.parametrize(
    ("code", "passed"),
    [(1000, 1000), (1001, 1001), (1005, 1011), (1006, 1011), (1015, 1011), (None, 1011), (4503, 4503), (999, 1011),
     (5000, 1011), (1004, 1011), (3000, 3000)],
)  # fmt: skip
def test_close_codes_that_may_not_be_sent_are_not_passed_on(code: int | None, passed: int) -> None:
    assert close_codes.passed_on(code) == passed


def test_a_reason_fits_into_a_close_frame_and_ends_between_characters() -> None:
    assert close_codes.reason("ü" * 100) == "ü" * 61


def test_devtools_addresses_lead_through_the_service() -> None:
    answer = [
        {"id": "A", "devtoolsFrontendUrl": "x", "webSocketDebuggerUrl": "ws://127.0.0.1:9222/devtools/page/AB-1"},
        {"id": "B", "webSocketDebuggerUrl": "ws://evil/devtools/page/../../etc"},
        "text",
    ]
    assert json.loads(cdp_http.rewritten(json.dumps(answer).encode(), "wss://me/browser/c", "?key=k")) == [
        {"id": "A", "webSocketDebuggerUrl": "wss://me/browser/c/devtools/page/AB-1?key=k"},
        {"id": "B"},
        "text",
    ]
    assert cdp_http.rewritten(b"Target activated", "wss://me") == b"Target activated"
    assert cdp_http.rewritten(b"[" * 100_000, "wss://me") == b"[" * 100_000


@pytest.mark.parametrize("body", [b"", b"{}", b"[" * 100_000, b"\xff"])
def test_what_is_no_list_of_pages_is_refused(body: bytes) -> None:
    with pytest.raises(cdp_http.NotDevTools):
        cdp_http.pages(body)


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"mouse","event":"move","x":1,"y":2.5}',
        '{"type":"mouse","event":"down","x":1,"y":2,"button":"left","buttons":1,"clicks":2,"modifiers":15}',
        '{"type":"wheel","x":1,"y":2,"dx":0,"dy":-120.5,"modifiers":0}',
        '{"type":"key","event":"down","key":"ä","code":"Quote","location":0,"modifiers":0,"repeat":false}',
        '{"type":"select","id":"p1","chosen":null}',
        '{"type":"files","id":"p1","names":["a/b.txt"]}',
        '{"type":"nav","action":"go","url":"https://example.org/ä?x=1#y"}',
        '{"type":"nav","action":"go","url":"file:///home/assistant/a.html"}',
    ],
)
def test_messages_of_the_list_are_taken(text: str) -> None:
    assert messages.parse(text).type == json.loads(text)["type"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"type":"mouse","event":"move","x":1e400,"y":2}',
        '{"type":"mouse","event":"move","x":"1","y":2}',
        '{"type":"mouse","event":"move","x":1,"y":2,"clicks":4}',
        '{"type":"mouse","event":"move","x":1,"y":2,"script":"x"}',
        '{"type":"key","event":"down","key":"","code":"KeyA"}',
        '{"type":"text","text":"' + "x" * 10_001 + '"}',
        '{"type":"nav","action":"go","url":"javascript:1"}',
        '{"type":"nav","action":"go","url":"file:///etc/passwd"}',
        '{"type":"nav","action":"go","url":"file:///home/assistant/%2e%2e/x"}',
        '{"type":"nav","action":"go","url":"file://host/home/assistant/x"}',
        '{"type":"files","id":"p1","names":["../x"]}',
        '{"type":"files","id":"p1","names":["/etc/passwd"]}',
        '{"type":"view","width":-1,"visible":true}',
    ],
)
def test_all_others_are_refused(text: str) -> None:
    with pytest.raises(messages.BadViewerMessage):
        messages.parse(text)


@pytest.mark.parametrize(
    ("code", "key", "number"),
    [("KeyA", "a", 65), ("KeyQ", "a", 65), ("Digit1", "!", 49), ("Enter", "Enter", 13), ("F12", "F12", 123),
     ("ArrowLeft", "ArrowLeft", 37), ("Numpad5", "5", 53), ("Numpad0", "Insert", 96), ("Quote", "ä", 222), ("", "Tab", 9),
     ("", "Dead", 0), ("Fx", "x", 88)],
)  # fmt: skip
def test_virtual_keys(code: str, key: str, number: int) -> None:
    assert virtual_key(code, key) == number


def test_frames_get_narrower_when_they_come_too_slowly_and_wide_again() -> None:
    scaling = FrameWidth()
    assert scaling.width([1280]) == 1280
    assert scaling.width([500, 700]) == 960
    assert scaling.width([5000]) == 1280
    for _ in range(40):
        scaling.acknowledged(0.6)
    assert scaling.width([1280]) == 640
    for _ in range(200):
        scaling.acknowledged(0.02)
    assert scaling.width([1280]) == 1280


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("pointer", "pointer"),
        ("nwse-resize", "nwse-resize"),
        ('url("a,b.png") 2 2, grab', "grab"),
        ("none", "default"),
        ("auto", "default"),
        ("pointer; background: url(x)", "default"),
        ("", "default"),
        (None, "default"),
        (7, "default"),
    ],
)
def test_a_page_gives_the_mouse_one_of_the_known_shapes(asked: object, shown: str) -> None:
    assert messages.cursor(asked) == shown
