"""One tab of a chat's browser, attached to once: its pictures, its state, and what a person does in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from cubicle.browser import messages, page_scripts
from cubicle.browser.cdp import CdpConnection, CdpError
from cubicle.browser.keymap import virtual_key
from cubicle.browser.server_messages import TabRecord

UPLOADS = "/mnt/user-data/uploads"
_QUALITY = 60
_LOOK_LIMIT = 1.0
_INPUT_LIMIT = 5.0
_WATCH = {"format": "jpeg", "quality": 1, "maxWidth": 16, "maxHeight": 16}
_WORLD = "cubicle"
_REFRESHES = ("metaTagRefresh", "httpHeaderRefresh")
_BY_SCRIPT = ("scriptInitiated", "reload")
_MOUSE = {"move": "mouseMoved", "down": "mousePressed", "up": "mouseReleased"}


class Tab:
    """A page target. Until it is attached, it has a title and nothing else."""

    def __init__(self, devtools: CdpConnection, id: str) -> None:
        self._devtools = devtools
        self.id = id
        self.session = ""
        self.title = ""
        self.url = ""
        self.opener = ""
        """The tab whose page opened this one."""
        self.visible = False
        """Whether the browser draws it; with a client that emulates focus it draws tabs in the background too."""
        self.drawn_at_first: bool | None = None
        """The same, when it was attached to; None while nobody knows."""
        self.loading = False
        self.crashed = False
        self._document = ""
        self._requested = ""
        """Why its own page asked for the navigation that is under way; empty: somebody else did."""
        self._emulates_focus = False
        self._guarded = False
        self.unguarding: asyncio.Future[dict[str, Any]] | None = None
        """The browser was told that everybody's input counts again; done when it has taken note of that."""
        self.unheard = False
        """A frame got another document, in which nobody hears yet when it is used."""
        self.unreached: str | None = None
        """The address in whose place the browser shows an error of its own; None while nobody knows."""
        self.back = False
        self.forward = False
        self._world = 0
        self.attached = asyncio.Event()
        self._last_input: asyncio.Future[dict[str, Any]] | None = None
        self._unanswered: asyncio.Future[dict[str, Any]] | None = None
        """Input of the person who drives, until whose answer the page takes everybody's."""
        self._unanswered_until = 0.0
        self.casting = 0
        """Width of the frames that come; 0 while none do."""
        self._pictures: dict[str, Any] = _WATCH
        self._start: asyncio.Future[dict[str, Any]] | None = None
        self._came = 0
        """How many frames came of those that were asked for last."""
        self._confirmed = False

    def record(self) -> TabRecord:
        return {"id": self.id, "title": self.title, "url": self.url}

    def rename(self, info: dict[str, Any]) -> bool:
        """Take title and address from a target's description; whether they changed."""
        before = (self.title, self.url)
        self.opener = messages.short(info.get("openerId"), 100) or self.opener
        self.title, self.url = messages.short(info.get("title")), messages.short(info.get("url"))
        return before != (self.title, self.url)

    async def attach(self, on_session: Callable[[str], None]) -> None:
        """Begin to hear what happens in it."""
        answer = await self._devtools.call("Target.attachToTarget", targetId=self.id, flatten=True)
        self.session = messages.short(answer.get("sessionId"), 100)
        on_session(self.session)
        self.tell("Page.enable")
        source = page_scripts.TELL_USE
        self.tell("Page.addScriptToEvaluateOnNewDocument", source=source, worldName=_WORLD, runImmediately=True)
        self.hear_use()
        self._begin(_WATCH)

    def hear_use(self) -> None:
        """Let the script in each document tell of input. A document that comes later has to be told of again: the
        browser does that by itself only for who also wants to hear all that pages write to their console."""
        self.unheard = False
        self.tell("Runtime.addBinding", name=page_scripts.USED_BINDING, executionContextName=_WORLD)

    async def call(self, method: str, *, limit: float = 10.0, **params: Any) -> dict[str, Any]:
        return await self._devtools.call(method, self.session, limit=limit, **params)

    @property
    def reachable(self) -> bool:
        """Whether an answer can still come: the connection to the browser is open."""
        return not self._devtools.closed.is_set()

    def tell(self, method: str, **params: Any) -> None:
        if self.session:
            self._devtools.tell(method, self.session, **params)

    # ---- pictures

    def cast(self, width: int) -> None:
        """Have pictures of this width come; a first one comes at once."""
        self.tell("Page.stopScreencast")
        self._emulate_focus(True)
        self.casting = width
        self._confirmed = False
        self._begin({"format": "jpeg", "quality": _QUALITY, "maxWidth": width, "maxHeight": width})

    async def watched(self) -> None:
        """Wait until it is known whether it is drawn, by pictures that are never asked on."""
        if not self.casting and self._start is not None:
            await asyncio.wait([self._start], timeout=_LOOK_LIMIT)

    def note_drawn(self, visible: bool) -> None:
        """The browser says whether it draws the tab."""
        self.visible = visible
        if self.drawn_at_first is None:
            self.drawn_at_first = visible

    def hush(self) -> None:
        """No more pictures, only word of whether it is drawn."""
        self.casting = 0
        self.tell("Page.stopScreencast")
        self._emulate_focus(False)
        self._begin(_WATCH)

    def _emulate_focus(self, on: bool) -> None:
        """Have it drawn while somebody looks at it: the browser draws no tab in the background by itself."""
        if on != self._emulates_focus:
            self._emulates_focus = on
            self.tell("Emulation.setFocusEmulationEnabled", enabled=on)

    def _begin(self, pictures: dict[str, Any]) -> asyncio.Future[dict[str, Any]]:
        self._pictures = pictures
        self._came = 0
        self._start = self._devtools.ask("Page.startScreencast", self.session, **pictures)
        return self._start

    def tend(self) -> None:
        """What has to be done now and then."""
        self.begin_again()
        self.confirm()
        if self._unanswered is not None and asyncio.get_running_loop().time() > self._unanswered_until:
            self._answered(self._unanswered)
        if self.unheard:
            self.hear_use()

    def begin_again(self) -> None:
        """If the browser refused to begin, ask it again: it does so for a moment while a page changes its document."""
        if self._start is not None and self._start.done() and not self._began:
            self._begin(self._pictures)

    def confirm(self) -> None:
        """Ask again for the picture of a page that stands still, until it came once and was asked for once more.

        A busy browser may drop the first picture, or send one of a moment before the page was drawn.
        """
        if self.casting and self._began and self._came < 2 and not (self._came and self._confirmed):
            self._confirmed = self._came > 0
            self.tell("Page.stopScreencast")
            self._begin(self._pictures)

    def acknowledge(self, session: Any) -> None:
        """A frame came; the next one may."""
        self._came += 1
        self.tell("Page.screencastFrameAck", sessionId=session)

    @property
    def _began(self) -> bool:
        start = self._start
        return start is not None and start.done() and not start.cancelled() and start.exception() is None

    @property
    def pictured(self) -> bool:
        """Whether a frame that comes now is one of those that were asked for last."""
        return self.casting > 0 and self._began

    # ---- state

    async def read_landing(self) -> None:
        """What its main frame shows, when that was loaded before anybody listened."""
        tree = (await self.call("Page.getFrameTree")).get("frameTree")
        frame = tree.get("frame") if isinstance(tree, dict) else None
        if isinstance(frame, dict) and self.unreached is None:  # else it has moved on while this was asked
            self.land(frame)

    def land(self, frame: dict[str, Any]) -> bool:
        """The main frame has this document now; whether its address is another than the last one's."""
        self.unreached = messages.short(frame.get("unreachableUrl"))
        before, self._document = self._document, messages.short(frame.get("url"))
        return before != self._document

    def request(self, reason: Any) -> None:
        """Its own page asked to go elsewhere, for this reason."""
        self._requested = messages.short(reason, 100) or "other"

    @property
    def navigates_by_itself(self) -> bool:
        """Whether its own page asked for the navigation that is under way."""
        return self._requested != ""

    def refreshed(self, moved: bool) -> bool:
        """The navigation came to its end: whether it was a page that reloads itself, which nobody uses by that."""
        reason, self._requested = self._requested, ""
        return reason in _REFRESHES or (reason in _BY_SCRIPT and not moved)

    async def read_history(self) -> None:
        history = await self.call("Page.getNavigationHistory")
        index, entries = history.get("currentIndex"), history.get("entries")
        if isinstance(index, int) and isinstance(entries, list):
            self.back, self.forward = index > 0, index + 1 < len(entries)

    async def travel(self, by: int) -> None:
        history = await self.call("Page.getNavigationHistory")
        index, entries = history.get("currentIndex"), history.get("entries")
        if isinstance(index, int) and isinstance(entries, list) and 0 <= index + by < len(entries):
            entry = entries[index + by]
            if isinstance(entry, dict):
                self.tell("Page.navigateToHistoryEntry", entryId=entry.get("id"))

    # ---- what a person does

    def guard(self, on: bool) -> None:
        """Have the page ignore mouse and keys, except those that come through here: a person drives it."""
        if on != self._guarded and self.session:
            self._guarded = on
            self.unguarding = self._unanswered = None
            if on:
                self._ignore_input(True)
            else:
                self.unguarding = self._devtools.ask("Input.setIgnoreInputEvents", self.session, ignore=False)

    def _ignore_input(self, on: bool) -> None:
        self.tell("Input.setIgnoreInputEvents", ignore=on)

    def _input(self, method: str, *, at_once: bool = True, **params: Any) -> None:
        """The browser takes these in their order, and answers each when the page has had it.

        Not all are passed on `at_once`: a wheel waits until the page is drawn, a press until it is known in which frame
        it is. What is ignored by then is lost, so the page takes input until these are answered, or never were.
        """
        if self._guarded and self._unanswered is None:
            self._ignore_input(False)
        self._last_input = self._devtools.ask(method, self.session, **params)
        if self._guarded and not at_once:
            self._unanswered = self._last_input
            self._unanswered_until = asyncio.get_running_loop().time() + _INPUT_LIMIT
            self._unanswered.add_done_callback(self._answered)
        elif self._guarded and self._unanswered is None:
            self._ignore_input(True)

    def _answered(self, answer: asyncio.Future[dict[str, Any]]) -> None:
        """The page has had the last of what it was given, or hangs."""
        if answer is self._unanswered:
            self._unanswered = None
            self._ignore_input(True)

    def mouse(self, said: messages.Mouse) -> None:
        self._input(
            "Input.dispatchMouseEvent",
            at_once=said.event == "move",
            type=_MOUSE[said.event],
            x=said.x,
            y=said.y,
            button=said.button,
            buttons=said.buttons,
            clickCount=said.clicks,
            modifiers=said.modifiers,
        )

    def wheel(self, said: messages.Wheel) -> None:
        self._input(
            "Input.dispatchMouseEvent",
            at_once=False,
            type="mouseWheel",
            x=said.x,
            y=said.y,
            deltaX=said.dx,
            deltaY=said.dy,
            modifiers=said.modifiers,
        )

    def key(self, said: messages.Key) -> None:
        """A key by itself inserts nothing; Enter does, since it is what submits and breaks lines."""
        kind: dict[str, Any] = {"type": "keyUp" if said.event == "up" else "rawKeyDown"}
        if said.event == "down" and said.key == "Enter":
            kind = {"type": "keyDown", "text": "\r"}
        number = virtual_key(said.code, said.key)
        self._input(
            "Input.dispatchKeyEvent",
            **kind,
            key=said.key,
            code=said.code,
            location=said.location,
            modifiers=said.modifiers,
            autoRepeat=said.repeat,
            isKeypad=said.location == 3,
            windowsVirtualKeyCode=number,
            nativeVirtualKeyCode=number,
        )

    def insert(self, text: str) -> None:
        self._input("Input.insertText", text=text)

    def compose(self, said: messages.Composition) -> None:
        self._input("Input.imeSetComposition", text=said.text, selectionStart=said.start, selectionEnd=said.end)

    async def selection(self, cut: bool) -> str:
        """The selected text of the focused frame or field, once the page has had what was typed before."""
        if self._last_input is not None:
            await asyncio.wait([self._last_input], timeout=_LOOK_LIMIT)
        expression = f"{page_scripts.SELECTION}({json.dumps(cut)})"
        answer = await self.call(
            "Runtime.evaluate", limit=2, expression=expression, returnByValue=True, userGesture=cut
        )
        return messages.short(_value(answer), messages.MAX_MESSAGE)

    async def popup_at(self, x: float, y: float) -> tuple[dict[str, Any], str] | None:
        """The list or picker that a press here would open outside the frames, and a handle of its field."""
        self.tell("Runtime.releaseObjectGroup", objectGroup="cubicle")
        try:
            found = await self.call("DOM.getNodeForLocation", limit=_LOOK_LIMIT, x=int(x), y=int(y))
            node = found.get("backendNodeId")
            resolved = await self.call("DOM.resolveNode", limit=_LOOK_LIMIT, backendNodeId=node, objectGroup="cubicle")
            handle = resolved.get("object")
            object_id = messages.short(handle.get("objectId"), 200) if isinstance(handle, dict) else ""
            popup = _value(await self.run(object_id, page_scripts.POPUP_OF, limit=_LOOK_LIMIT))
        except CdpError:
            return None
        if not isinstance(popup, dict):
            return None
        self.tell("Runtime.callFunctionOn", objectId=object_id, functionDeclaration=page_scripts.FOCUS)
        return popup, object_id

    async def cursor_at(self, x: float, y: float) -> str:
        """The mouse's shape here, asked in a world of our own that the page's scripts do not reach."""
        try:
            return await self._cursor_at(x, y)
        except CdpError:  # the page is another by now, and its worlds with it
            world = await self.call("Page.createIsolatedWorld", limit=_LOOK_LIMIT, frameId=self.id, worldName=_WORLD)
            self._world = int(messages.number(world.get("executionContextId"), high=2**53))
            return await self._cursor_at(x, y)

    async def _cursor_at(self, x: float, y: float) -> str:
        answer = await self.call(
            "Runtime.evaluate",
            limit=_LOOK_LIMIT,
            contextId=self._world,
            expression=f"{page_scripts.CURSOR}({x:g}, {y:g})",
            returnByValue=True,
        )
        return messages.cursor(_value(answer))

    async def run(self, object_id: str, function: str, *arguments: Any, limit: float = 5.0) -> dict[str, Any]:
        return await self.call(
            "Runtime.callFunctionOn",
            limit=limit,
            objectId=object_id,
            functionDeclaration=function,
            arguments=[{"value": argument} for argument in arguments],
            returnByValue=True,
            userGesture=True,
        )

    def take_files(self, node: int, names: list[str]) -> None:
        self.tell("DOM.setFileInputFiles", backendNodeId=node, files=[f"{UPLOADS}/{name}" for name in names])

    def catch_choosers(self, caught: bool) -> None:
        self.tell("Page.setInterceptFileChooserDialog", enabled=caught)


def _value(answer: dict[str, Any]) -> Any:
    result = answer.get("result")
    return result.get("value") if isinstance(result, dict) else None
