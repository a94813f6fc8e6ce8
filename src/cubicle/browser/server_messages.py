"""What the service tells a viewer of the live browser. The types of the page are generated from these."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict


class TabRecord(TypedDict):
    id: str
    title: str
    url: str


class Viewport(TypedDict):
    w: float
    h: float


class Rect(Viewport):
    x: float
    y: float


class SelectOption(TypedDict):
    index: int
    label: str
    group: str
    disabled: bool
    selected: bool


class Holder(TypedDict):
    """The viewer that drives."""

    viewer: str
    name: str


class HelloMessage(TypedDict):
    type: Literal["hello"]
    version: int
    viewer: str
    viewport: Viewport


class HeartbeatMessage(TypedDict):
    type: Literal["heartbeat"]


BrowserState = Literal["running", "crashed", "closed"]


class StateMessage(TypedDict):
    type: Literal["state"]
    browser: BrowserState
    reason: str


class TabsMessage(TypedDict):
    """`active`: the tab that this viewer is shown; `followed`: the one that was used last, by the model or by whoever
    drives; `following`: this viewer is shown that one. `refusal`: why the egress proxy did not let the page that is
    shown through; empty when it did."""

    type: Literal["tabs"]
    tabs: list[TabRecord]
    active: str
    followed: str
    following: bool
    back: bool
    forward: bool
    loading: bool
    refusal: str


UseKind = Literal["opened", "navigated", "input", "front"]


class UsedMessage(TypedDict):
    """A tab was used, so many seconds ago."""

    type: Literal["used"]
    tab: str
    how: UseKind
    seconds: float


class WatcherRecord(TypedDict):
    viewer: str
    name: str
    view_only: bool


class WatchersMessage(TypedDict):
    """Who watches; `more` are not in the list."""

    type: Literal["watchers"]
    watchers: list[WatcherRecord]
    more: int


class AskedMessage(TypedDict):
    """To whoever drives: another viewer asks for control."""

    type: Literal["asked"]
    viewer: str
    name: str


class ControlMessage(TypedDict):
    """`you`, `seconds` and `waiting` come with a holder only. `waiting`: input of the model is held meanwhile."""

    type: Literal["control"]
    holder: Holder | None
    you: NotRequired[bool]
    seconds: NotRequired[int]
    waiting: NotRequired[bool]


class CursorMessage(TypedDict):
    type: Literal["cursor"]
    cursor: str


DialogKind = Literal["alert", "confirm", "prompt", "beforeunload"]
PickerKind = Literal["date", "time", "datetime-local", "month", "week", "color"]


class DialogMessage(TypedDict):
    type: Literal["dialog"]
    id: str
    tab: str
    kind: DialogKind
    message: str
    value: str


class SelectMessage(TypedDict):
    type: Literal["select"]
    id: str
    tab: str
    rect: Rect
    multiple: bool
    options: list[SelectOption]


class PickerMessage(TypedDict):
    type: Literal["picker"]
    id: str
    tab: str
    rect: Rect
    kind: PickerKind
    value: str
    min: str
    max: str
    step: str


class ChooserMessage(TypedDict):
    type: Literal["chooser"]
    id: str
    tab: str
    multiple: bool
    accept: str


class GoneMessage(TypedDict):
    """What had this id is no longer open."""

    type: Literal["gone"]
    id: str


class CopiedMessage(TypedDict):
    type: Literal["copied"]
    text: str


class DownloadMessage(TypedDict):
    type: Literal["download"]
    name: str
    state: Literal["started", "finished", "failed"]


class RefusedMessage(TypedDict):
    """`message`: the type of the message that was refused."""

    type: Literal["refused"]
    message: str
    reason: Literal["held", "not-driving", "view-only", "no-tab", "bad-message", "declined", "too-often", "too-many"]


Popup = DialogMessage | SelectMessage | PickerMessage | ChooserMessage
ServerMessage = (
    HelloMessage
    | HeartbeatMessage
    | StateMessage
    | TabsMessage
    | UsedMessage
    | WatchersMessage
    | AskedMessage
    | ControlMessage
    | CursorMessage
    | Popup
    | GoneMessage
    | CopiedMessage
    | DownloadMessage
    | RefusedMessage
)
