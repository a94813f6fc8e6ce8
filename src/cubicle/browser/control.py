"""Who drives a chat's browser, and what that person's messages do. Nothing of what is typed is logged or kept."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any, Literal, Protocol

from cubicle.browser import messages, page_scripts
from cubicle.browser.cdp import CdpError
from cubicle.browser.dialogs import PageDialog, PageDialogs
from cubicle.browser.messages import (  # fmt: skip
    Ack,
    Composition,
    Control,
    Copy,
    Dialog,
    Files,
    Key,
    Mouse,
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


class ControlledView(Protocol):
    """What control needs of the live view."""

    viewers: dict[str, Viewer]
    tabs: dict[str, Tab]
    casting: Screencast
    prompts: PageDialogs

    @property
    def active(self) -> Tab | None: ...

    def start(self, work: Coroutine[Any, Any, None]) -> None: ...

    def tell_all(self, message: ServerMessage) -> None: ...

    def forget(self, closed: Iterable[PageDialog]) -> None: ...

    def front(self, tab: Tab) -> None: ...

    def browser_tell(self, method: str, **params: Any) -> None: ...

    async def open_tab(self, url: str) -> None: ...


class InputControl:
    """One lease per chat: it ends when it is returned, when its holder leaves, or when nothing lengthens it."""

    def __init__(self, screen: ControlledView) -> None:
        self._screen = screen
        self.holder: Viewer | None = None
        self._until = 0.0
        self._downloads: dict[str, str] = {}
        self._pointer = Pointer(screen.start, lambda viewer, tab: self.holder is viewer and self._screen.active is tab)

    # ---- the lease

    def record(self, viewer: Viewer) -> ControlMessage:
        """Who drives, as this viewer is told."""
        holder = self.holder
        if holder is None:
            return {"type": "control", "holder": None}
        left = max(0, round(self._until - asyncio.get_running_loop().time()))
        who: Holder = {"viewer": holder.id, "name": holder.name}
        return {"type": "control", "holder": who, "you": holder is viewer, "seconds": left}

    def _announce(self) -> None:
        for viewer in self._screen.viewers.values():
            viewer.tell(self.record(viewer))
        for tab in self._screen.tabs.values():
            tab.catch_choosers(self.holder is not None)

    def _lengthen(self) -> None:
        self._until = asyncio.get_running_loop().time() + LEASE

    def _control(self, viewer: Viewer, said: Control) -> None:
        match said.action:
            case "take" if self.holder not in (None, viewer):
                viewer.tell({"type": "refused", "message": "control", "reason": "held"})
            case "take":
                viewer.name = " ".join(said.name.split()) or "Somebody"
                self.holder = viewer
                self._lengthen()
                self._announce()
            case "return":
                self.left(viewer)
            case "keep" if self.holder is viewer:
                self._lengthen()
            case _:
                viewer.tell({"type": "refused", "message": "control", "reason": "not-driving"})

    def left(self, viewer: Viewer) -> None:
        """The viewer has nothing to do with the wheel any more."""
        if self.holder is viewer:
            self.holder = None
            self._screen.forget(prompt for prompt in self._screen.prompts if prompt.kind != "dialog")
            self._announce()

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
                viewer.look(said.visible, said.width)
                self._screen.casting.adapt()
            case _ if viewer.view_only:
                viewer.tell({"type": "refused", "message": said.type, "reason": "view-only"})
            case Control():
                self._control(viewer, said)
            case _ if self.holder is not viewer:
                viewer.tell({"type": "refused", "message": said.type, "reason": "not-driving"})
            case TabAction():
                self._lengthen()
                with suppress(CdpError):
                    await self._tab(viewer, said)
            case _ if (tab := self._screen.active) is None:
                viewer.tell({"type": "refused", "message": said.type, "reason": "no-tab"})
            case _:
                self._lengthen()
                with suppress(CdpError):  # the page is gone, or hangs; the pictures say so
                    await self._act(viewer, tab, said)

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
