"""Who drives a chat's browser, and what that person's messages do. Nothing of what is typed is logged or kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Literal, Protocol

from cubicle.browser import messages, page_scripts
from cubicle.browser.cdp import CdpError
from cubicle.browser.dialogs import PageDialog, PageDialogs
from cubicle.browser.hand_back import HandBack
from cubicle.browser.input_gate import InputGate
from cubicle.browser.messages import (  # fmt: skip
    Ack,
    Composition,
    Control,
    Copy,
    Dialog,
    Files,
    Key,
    Look,
    Mouse,
    Name,
    Nav,
    Paste,
    Picker,
    Said,
    Select,
    TabAction,
    Text,
    View,
    Wheel,
)
from cubicle.browser.pointer import Pointer
from cubicle.browser.screencast import Screencast
from cubicle.browser.server_messages import ControlMessage, Holder, ServerMessage
from cubicle.browser.tab import Tab
from cubicle.browser.viewer import Viewer

LEASE = 60.0
_ASK_AGAIN = 10.0
_UNGUARD_LIMIT = 2.0
_MAX_LOOKS = 10.0
_LOOKS_PER_SECOND = 2.0
"""Each look at another tab makes the browser draw that one: nobody has it do so without end."""


class ControlledView(Protocol):
    """What control needs of the live view."""

    viewers: dict[str, Viewer]
    tabs: dict[str, Tab]
    casting: Screencast
    prompts: PageDialogs

    def shown_to(self, viewer: Viewer) -> Tab | None: ...

    def look(self, viewer: Viewer, id: str) -> bool: ...

    def audience_changed(self) -> None: ...

    def start(self, work: Coroutine[Any, Any, None]) -> None: ...

    def tell_all(self, message: ServerMessage) -> None: ...

    def forget(self, closed: Iterable[PageDialog]) -> None: ...

    def front(self, tab: Tab) -> None: ...

    def browser_tell(self, method: str, **params: Any) -> None: ...

    async def open_tab(self, url: str) -> None: ...


class InputControl:
    """One lease per chat: it ends when it is returned, when its holder leaves, or when nothing lengthens it."""

    def __init__(self, screen: ControlledView, gate: InputGate, on_hand_back: Callable[[HandBack], None]) -> None:
        self._screen = screen
        self._gate = gate
        self._on_hand_back = on_hand_back
        self.holder: Viewer | None = None
        self._until = 0.0
        self._began: float | None = None
        """When the holder did something first, in seconds since 1970; None until then."""
        gate.on_wait = self._tell_holder
        self._downloads: dict[str, str] = {}
        self._pointer = Pointer(
            screen.start, lambda viewer, tab: self.holder is viewer and screen.shown_to(viewer) is tab
        )

    # ---- the lease

    def record(self, viewer: Viewer) -> ControlMessage:
        """Who drives, as this viewer is told."""
        holder = self.holder
        if holder is None:
            return {"type": "control", "holder": None}
        left = max(0, round(self._until - asyncio.get_running_loop().time()))
        who: Holder = {"viewer": holder.id, "name": holder.name}
        you = holder is viewer
        return {"type": "control", "holder": who, "you": you, "seconds": left, "waiting": self._gate.waiting}

    def _tell_holder(self) -> None:
        """Whether input of the model waits for the one who drives."""
        if self.holder is not None:
            self._announce()

    def _announce(self) -> None:
        for viewer in self._screen.viewers.values():
            viewer.tell(self.record(viewer))
        for tab in self._screen.tabs.values():
            self.prepare(tab)

    def prepare(self, tab: Tab) -> None:
        """A tab is driven by a person, or it is not."""
        tab.catch_choosers(self.holder is not None)
        tab.guard(self.holder is not None)

    def _lengthen(self) -> None:
        self._until = asyncio.get_running_loop().time() + LEASE

    def _control(self, viewer: Viewer, said: Control) -> None:
        match said.action:
            case "take" if self.holder not in (None, viewer):
                viewer.tell({"type": "refused", "message": "control", "reason": "held"})
            case "take":
                self._name(viewer, said.name or viewer.name or "Somebody")
                self._take(viewer)
            case "return":
                self.left(viewer)
            case "keep" if self.holder is viewer:
                self._lengthen()
            case "ask" if self.holder not in (None, viewer):
                self._ask(viewer)
            case "give" | "decline" if self.holder is viewer:
                self._answer_question(viewer, said)
            case _:
                viewer.tell({"type": "refused", "message": "control", "reason": "not-driving"})

    def _name(self, viewer: Viewer, name: str) -> None:
        """What a viewer is called; who signed in keeps the name that the service knows."""
        if not viewer.known:
            viewer.name = " ".join(name.split())
            self._screen.audience_changed()

    def _take(self, viewer: Viewer) -> None:
        """Everybody follows the one who drives, in the tab that this one looked at."""
        tab = self._screen.shown_to(viewer)
        self.holder, self._began = viewer, None
        self._gate.close(self)
        self._lengthen()
        if tab is not None:
            self._screen.browser_tell("Target.activateTarget", targetId=tab.id)
            self._screen.front(tab)
        if viewer.pinned:
            self._screen.look(viewer, "")
        self._announce()

    def _ask(self, viewer: Viewer) -> None:
        now = asyncio.get_running_loop().time()
        if now - viewer.asked_at < _ASK_AGAIN:
            viewer.tell({"type": "refused", "message": "control", "reason": "too-often"})
        elif self.holder is not None:
            viewer.asked_at = now
            self.holder.tell({"type": "asked", "viewer": viewer.id, "name": viewer.name})

    def _answer_question(self, viewer: Viewer, said: Control) -> None:
        """The one who drives gives control to another, or keeps it."""
        other = self._screen.viewers.get(said.viewer)
        if other is None or other is viewer or other.view_only:
            viewer.tell({"type": "refused", "message": "control", "reason": "not-driving"})
        elif said.action == "decline":
            if other.asked_at > float("-inf"):
                other.tell({"type": "refused", "message": "control", "reason": "declined"})
        else:
            self._end()
            self._name(other, other.name or "Somebody")
            self._take(other)

    def left(self, viewer: Viewer) -> None:
        """The viewer has nothing to do with the wheel any more."""
        if self.holder is viewer:
            self._end()
            self._announce()
            unguarding = [tab.unguarding for tab in self._screen.tabs.values() if tab.unguarding is not None]
            if all(answer.done() for answer in unguarding):
                self._gate.open(self)
            else:
                self._screen.start(self._open_gate(unguarding))

    async def _open_gate(self, unguarding: list[asyncio.Future[dict[str, Any]]]) -> None:
        """Not before the pages take input of others again: it would be sent, and ignored."""
        await asyncio.wait(unguarding, timeout=_UNGUARD_LIMIT)
        if self.holder is None:
            self._gate.open(self)

    def _end(self) -> None:
        """The holder is none any more: what that one did is told to the model."""
        holder, self.holder = self.holder, None
        if holder is not None and self._began is not None:
            tab = self._screen.shown_to(holder)
            self._on_hand_back(HandBack(self._began, time.time(), holder.name, tab.url if tab else ""))
        self._screen.forget(prompt for prompt in self._screen.prompts if prompt.kind != "dialog")

    def _acts(self) -> None:
        self._lengthen()
        if self._began is None:
            self._began = time.time()

    def over(self) -> None:
        """The view is at its end: nothing waits for it any more."""
        self._end()
        self._gate.open(self)

    def expire(self) -> None:
        if self.holder is not None and asyncio.get_running_loop().time() > self._until:
            self.left(self.holder)

    # ---- messages

    async def obey(self, viewer: Viewer, said: Said) -> None:
        """Do what a viewer asks for, or tell that viewer why not."""
        match said:
            case Ack():
                self._screen.casting.acknowledge(viewer, said.seq)
            case View():
                self._screen.casting.look(viewer, said.visible, said.width)
            case Look():
                self._look(viewer, said)
            case Name():
                self._name(viewer, said.name)
            case _ if viewer.view_only:
                viewer.tell({"type": "refused", "message": said.type, "reason": "view-only"})
            case Control():
                self._control(viewer, said)
            case _ if self.holder is not viewer:
                viewer.tell({"type": "refused", "message": said.type, "reason": "not-driving"})
            case TabAction():
                self._acts()
                with suppress(CdpError):
                    await self._tab(viewer, said)
            case _ if (tab := self._screen.shown_to(viewer)) is None:
                viewer.tell({"type": "refused", "message": said.type, "reason": "no-tab"})
            case _:
                self._acts()
                with suppress(CdpError):  # the page is gone, or hangs; the pictures say so
                    await self._act(viewer, tab, said)

    def _look(self, viewer: Viewer, said: Look) -> None:
        """A person who drives looks at what is driven; everybody else at what they like."""
        now = asyncio.get_running_loop().time()
        viewer.looks = min(_MAX_LOOKS, viewer.looks + (now - viewer.looked_at) * _LOOKS_PER_SECOND)
        viewer.looked_at = now
        if viewer.looks < 1:
            viewer.tell({"type": "refused", "message": "look", "reason": "too-often"})
            return
        viewer.looks -= 1
        if said.tab and self.holder is viewer:
            viewer.tell({"type": "refused", "message": "look", "reason": "held"})
        elif said.tab and said.tab not in self._screen.tabs:
            viewer.tell({"type": "refused", "message": "look", "reason": "no-tab"})
        elif not self._screen.look(viewer, said.tab):
            viewer.tell({"type": "refused", "message": "look", "reason": "too-many"})

    async def _act(self, viewer: Viewer, tab: Tab, said: Said) -> None:
        match said:
            case Mouse(event="down", button="left", clicks=1):
                await self._press(viewer, tab, said)
            case Mouse():
                tab.mouse(said)
                if said.event == "move":
                    self._pointer.move(viewer, tab, said.x, said.y)
            case Wheel():
                tab.wheel(said)
            case Key():
                tab.key(said)
            case Text() | Paste():
                tab.insert(said.text)
            case Composition():
                tab.compose(said)
            case Copy():
                viewer.tell({"type": "copied", "text": await tab.selection(said.cut)})
            case Nav():
                await self._nav(tab, said)
            case Dialog() | Select() | Picker() | Files():
                await self._answer(said)

    async def _press(self, viewer: Viewer, tab: Tab, said: Mouse) -> None:
        """A press that would open a list or a picker outside the pictures opens the page's own instead."""
        self._screen.forget(prompt for prompt in self._screen.prompts if prompt.kind in ("select", "picker"))
        found = await tab.popup_at(said.x, said.y)
        if found is None:
            tab.mouse(said)
            return
        popup, object_id = found
        viewer.tell(self._screen.prompts.popup(tab.id, popup, object_id).message)

    async def _nav(self, tab: Tab, said: Nav) -> None:
        match said.action:
            case "go" if said.url:
                tab.tell("Page.navigate", url=said.url)
            case "back":
                await tab.travel(-1)
            case "forward":
                await tab.travel(1)
            case "reload":
                tab.tell("Page.reload")
            case "stop":
                tab.tell("Page.stopLoading")

    async def _tab(self, viewer: Viewer, said: TabAction) -> None:
        tab = self._screen.tabs.get(said.id)
        if said.action == "open":
            await self._screen.open_tab(said.url or "about:blank")
        elif tab is None:
            viewer.tell({"type": "refused", "message": "tab", "reason": "no-tab"})
        elif said.action == "close":
            self._screen.browser_tell("Target.closeTarget", targetId=tab.id)
        else:
            self._screen.browser_tell("Target.activateTarget", targetId=tab.id)
            self._screen.front(tab)

    async def _answer(self, said: Dialog | Select | Picker | Files) -> None:
        """An answer to something that the page has open; it is closed by it, whatever the page does."""
        prompts, kind = self._screen.prompts, "chooser" if said.type == "files" else said.type
        prompt = prompts.get(said.id, kind)
        tab = self._screen.tabs.get(prompt.tab) if prompt else None
        if prompt is None or tab is None:
            return
        self._screen.forget([prompt])
        match said:
            case Dialog():
                tab.tell("Page.handleJavaScriptDialog", accept=said.accept, promptText=said.text)
            case Select(chosen=list(chosen)):
                await tab.run(prompt.object_id, page_scripts.CHOOSE, chosen)
            case Picker(value=str(value)):
                await tab.run(prompt.object_id, page_scripts.PICK, value)
            case Files(names=list(names)):
                tab.take_files(prompt.node, names)

    # ---- what the page asks of the driver

    async def choose_files(self, tab: Tab, params: dict[str, Any]) -> None:
        if self.holder is None:
            return
        accept = await _accepted(tab, params.get("backendNodeId"))
        holder = self.holder
        if holder is None:  # gave it back, or left, while the page was asked
            return
        prompt: PageDialog = self._screen.prompts.chooser(tab.id, params, accept)
        holder.tell(prompt.message)

    def download(self, params: dict[str, Any]) -> None:
        """A download into the chat's outputs began or went on."""
        id, state = messages.short(params.get("guid"), 100), params.get("state")
        if "suggestedFilename" in params and id not in self._downloads and len(self._downloads) < 100:
            self._downloads[id] = messages.short(params.get("suggestedFilename"), 255)
            self._screen.tell_all({"type": "download", "name": self._downloads[id], "state": "started"})
        elif state in ("completed", "canceled") and id in self._downloads:
            name = self._downloads.pop(id)
            ended: Literal["finished", "failed"] = "finished" if state == "completed" else "failed"
            self._screen.tell_all({"type": "download", "name": name, "state": ended})


async def _accepted(tab: Tab, node: Any) -> str:
    """The `accept` attribute of a file input."""
    try:
        described = (await tab.call("DOM.describeNode", limit=1, backendNodeId=node)).get("node")
    except CdpError:
        return ""
    attributes = described.get("attributes") if isinstance(described, dict) else None
    if not isinstance(attributes, list):
        return ""
    return next(
        (
            messages.short(value)
            for name, value in zip(attributes[::2], attributes[1::2], strict=False)
            if name == "accept"
        ),
        "",
    )
