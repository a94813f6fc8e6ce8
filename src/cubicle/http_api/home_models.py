"""What the home page is told. The types of the page are generated from these."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class ChatCard(TypedDict):
    """One of the chats that were used last."""

    chat: str
    state: str
    """Of its sandbox."""
    used: float
    """When it was used last, in seconds since 1970."""
    tool: str
    """Of the newest call; empty where none is known."""
    description: str
    running: bool
    """That call has not ended."""
    since: float
    """When it began."""
    failed: bool
    output: str
    """The end of what it printed."""
    picture: float
    """When the last picture of its browser was taken; 0: there is none."""


class ClientSeen(TypedDict):
    """The MCP client that came last."""

    name: str
    chat: str
    at: float


class DemoState(TypedDict):
    """The demo of the person who looks. `says`: what the step does; of a demo that failed, why."""

    chat: str
    state: Literal["none", "playing", "over", "failed"]
    step: int
    steps: int
    says: str


class Home(TypedDict):
    """What changes on the home page while somebody looks at it."""

    now: float
    client: ClientSeen | None
    chats: list[ChatCard]
    demo: DemoState


class OtherHome(TypedDict):
    """What one member of the service tells another of a tenant: the newest of its chats and clients, and one demo."""

    chats: list[ChatCard]
    clients: list[ClientSeen]
    demo: DemoState


class HomePart(TypedDict, total=False):
    """An event of the stream: the parts of Home that changed."""

    now: float
    client: ClientSeen | None
    chats: list[ChatCard]
    demo: DemoState


class Connection(TypedDict):
    """How MCP clients connect. `locked`: by a key; `knows_key`: POST …/key tells it to the person who asks."""

    url: str
    locked: bool
    knows_key: bool


class ShownKey(TypedDict):
    """The key of the service, for the person who signed in with it."""

    key: str
