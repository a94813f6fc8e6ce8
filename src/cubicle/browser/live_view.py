"""A chat's browser as people see it: attached to once, shown to many, driven by one of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

from cubicle.browser import cdp, messages
from cubicle.browser.cdp import CdpConnection, CdpError, CdpEvent
from cubicle.browser.chromium import NoBrowser
from cubicle.browser.control import InputControl
from cubicle.browser.dialogs import PageDialog, PageDialogs
from cubicle.browser.followed_tab import FollowedTab
from cubicle.browser.front_tab import FrontTab
from cubicle.browser.hand_back import HandBack
from cubicle.browser.input_gate import InputGate
from cubicle.browser.page_scripts import USED_BINDING
from cubicle.browser.screencast import Screencast
from cubicle.browser.server_messages import (
    ServerMessage,
    StateMessage,
    TabsMessage,
    UseKind,
    Viewport,
    WatchersMessage,
)
from cubicle.browser.tab import Tab
from cubicle.browser.viewer import Viewer, encoded
from cubicle.core.close_codes import BROKEN, STOPPED
from cubicle.egress.policy import BadTarget, Target
from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import Machine

_MAX_TABS = 50
_TICK = 1.0
_BEAT_EVERY = 5
_ANSWER_LIMIT = 4.0
_MAX_NAMED = 50
_RUNNING: StateMessage = {"type": "state", "browser": "running", "reason": ""}
_CRASHED: StateMessage = {"type": "state", "browser": "crashed", "reason": "This page crashed."}


class LiveView:
    """Lives while somebody watches. `run` does the work; viewers come and go meanwhile."""

    def __init__(
        self,
        machine: Machine,
        gate: InputGate | None = None,
        on_hand_back: Callable[[HandBack], None] = lambda one: None,
    ) -> None:
        self._machine = machine
        self._devtools: CdpConnection
        self._group = asyncio.TaskGroup()
        self._sessions: dict[str, Tab] = {}
        self._count = 0
        self._state = _RUNNING
        self.tabs: dict[str, Tab] = {}
        self.viewers: dict[str, Viewer] = {}
        self.casting = Screencast(self.viewers, self.tabs, self.shown_to)
        self._front_tab = FrontTab(machine, self.tabs)
        self.prompts = PageDialogs()
        self.driving = InputControl(self, gate or InputGate(), on_hand_back)
        self._followed = FollowedTab(self.tabs, self._driven)
        self._there: frozenset[str] | None = None  # the tabs that were open when this began
        self._audience_changed = False
        self.interest = 0
        self.left = asyncio.Event()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def shown_to(self, viewer: Viewer) -> Tab | None:
        """The tab that this viewer is shown: the chosen one while it is there, else the one that is followed."""
        return self.tabs.get(viewer.pinned) or self._followed.tab

    def _driven(self) -> Tab | None:
        return None if (holder := self.driving.holder) is None else self.shown_to(holder)

    # ---- its life

    async def run(self) -> None:
        """Until the last viewer left, or the browser is gone."""
        reason = "The browser ended."
        try:
            async with cdp.attached(self._machine, self._on_event) as self._devtools, self._group:
                await self._begin()
                self.ready.set_result(None)
                work = [self._group.create_task(self._keep()), self._group.create_task(self._follow())]
                ends = [self._group.create_task(event.wait()) for event in (self.left, self._devtools.closed)]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for task in (*work, *ends):
                    task.cancel()
                self._devtools.end()
        except* (NoBrowser, CdpError) as errors:
            reason = str(errors.exceptions[0])
        except* SandboxError:
            reason = "The sandbox went away."
        finally:
            self.driving.over()
            outlived = await self._outlived()
            if not self.ready.done():
                self.ready.set_result(None)
            if self._machine.stopped:
                self._farewell(self._machine.stopped, STOPPED)
            else:
                self._farewell(reason if outlived else "The sandbox went away.", BROKEN)

    async def _outlived(self) -> bool:
        """Whether the sandbox is still there: the end of its browser may be heard before its own."""
        with suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(_ANSWER_LIMIT):
                await self._machine.ping()
        return self._machine.alive

    async def _begin(self) -> None:
        await self._devtools.call("Target.setDiscoverTargets", discover=True)
        await self._look()
        self._there = frozenset(self.tabs)
        with suppress(TimeoutError):  # a page that hangs does not answer; viewers see that it is there
            async with asyncio.timeout(_ANSWER_LIMIT):
                for tab in self.tabs.copy().values():
                    await tab.attached.wait()
        await self._show_front()

    async def _follow(self) -> None:
        """Find out when the model, or a person, brings a tab to the front."""
        while True:
            await self._front_tab.wait(seen=any(viewer.visible for viewer in self.viewers.values()))
            await self._show_front()

    async def _show_front(self) -> None:
        found = await self._front_tab.read()
        if found is None and self._followed.tab is None:
            found = self._front_tab.any()
        if found is not None and self.ready.done():
            self._use(found, "front")
        elif found is not None and self._followed.tab is None:
            self.front(found)

    async def _keep(self) -> None:
        """The heartbeat, only while the browser answers; and the end of a lease that nobody lengthens."""
        ticks = 0
        while True:
            await asyncio.sleep(_TICK)
            ticks += 1
            self.driving.expire()
            if self._audience_changed:
                self._audience_changed = False
                self.tell_all(self._watchers())
            for tab in self.tabs.values():
                tab.tend()
            with suppress(CdpError):
                await self._look()
                if ticks % _BEAT_EVERY == 0:
                    self.tell_all({"type": "heartbeat"})

    async def _look(self) -> None:
        """See which tabs there are: a title that a page sets itself is no event."""
        listed = (await self._devtools.call("Target.getTargets", limit=_ANSWER_LIMIT)).get("targetInfos")
        changed = False
        for info in listed if isinstance(listed, list) else ():
            if isinstance(info, dict):
                known = self.tabs.get(messages.short(info.get("targetId"), 100))
                if known is None:
                    self._found(info)
                else:
                    changed |= known.rename(info)
        if changed:
            self.tell_tabs()

    def _farewell(self, reason: str, code: int) -> None:
        self.left.set()
        for viewer in self.viewers.values():
            viewer.tell({"type": "state", "browser": "closed", "reason": messages.short(reason)})
            viewer.end(code, reason)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something in the background; what the browser refuses of it is nobody's failure."""

        async def doing() -> None:
            with suppress(CdpError):
                await work

        task = doing()
        try:
            self._group.create_task(task)
        except RuntimeError:  # the view is coming to its end: nothing is begun any more
            task.close()
            work.close()

    def browser_tell(self, method: str, **params: Any) -> None:
        self._devtools.tell(method, **params)

    # ---- viewers

    def enter(self) -> Viewer:
        self._count += 1
        viewer = Viewer(f"v{self._count}")
        self.viewers[viewer.id] = viewer
        latest = self.casting.latest(self.shown_to(viewer))
        viewport: Viewport = {"w": 1280, "h": latest.height if latest else 800}
        viewer.tell({"type": "hello", "version": 1, "viewer": viewer.id, "viewport": viewport})
        viewer.tell(self._state)
        viewer.tell(self._tabs(viewer))
        viewer.tell(self.driving.record(viewer))
        if self._followed.last is not None:
            viewer.tell(self._followed.last.message())
        for prompt in self.prompts:
            if prompt.kind == "dialog":
                viewer.tell(prompt.message)
        if latest is not None:
            viewer.show(latest)
        self.casting.adapt()
        self.audience_changed()
        return viewer

    def leave(self, viewer: Viewer) -> None:
        self.viewers.pop(viewer.id, None)
        self.audience_changed()
        self.driving.left(viewer)
        if not self.left.is_set():
            self.casting.adapt()

    def tell_all(self, message: ServerMessage) -> None:
        text = encoded(message)
        for viewer in self.viewers.values():
            viewer.tell_text(text)

    def audience_changed(self) -> None:
        """Somebody came, left, or has another name: all are told within a second, once for however many."""
        self._audience_changed = True

    def _watchers(self) -> WatchersMessage:
        named = list(self.viewers.values())[:_MAX_NAMED]
        return {
            "type": "watchers",
            "watchers": [{"viewer": one.id, "name": one.name, "view_only": one.view_only} for one in named],
            "more": len(self.viewers) - len(named),
        }

    # ---- tabs

    def _tabs(self, viewer: Viewer) -> TabsMessage:
        shown = self.shown_to(viewer)
        return {
            "type": "tabs",
            "tabs": [tab.record() for tab in self.tabs.values()],
            "active": shown.id if shown else "",
            "followed": self._followed.tab.id if self._followed.tab else "",
            "following": viewer.pinned not in self.tabs,
            "back": shown.back if shown else False,
            "forward": shown.forward if shown else False,
            "loading": shown.loading if shown else False,
            "refusal": self._refusal(shown.unreached) if shown else "",
        }

    def _refusal(self, url: str | None) -> str:
        """Why the egress proxy did not let the browser reach this address, in words for a person; empty if it did."""
        try:
            refusal = self._machine.refusals.latest(str(Target.of(url))) if url else None
        except BadTarget:
            return ""
        return refusal.shown if refusal else ""

    def tell_tabs(self) -> None:
        """Of those who are shown the same, all are told the same."""
        texts: dict[str, str] = {}
        for viewer in self.viewers.values():
            pinned = viewer.pinned if viewer.pinned in self.tabs else ""
            if pinned not in texts:
                texts[pinned] = encoded(self._tabs(viewer))
            viewer.tell_text(texts[pinned])

    def look(self, viewer: Viewer, id: str) -> bool:
        """Show this viewer a tab of its own choice, or again the one that is followed; False if that are too many."""
        tab = self.tabs.get(id)
        if tab is not None and not self.casting.has_room_for(tab):
            return False
        before = self.shown_to(viewer)
        viewer.pinned = tab.id if tab is not None else ""
        if self.shown_to(viewer) is not before:
            self.casting.changed(viewer)
        viewer.tell(self._tabs(viewer))
        return True

    def _found(self, info: dict[str, Any]) -> None:
        id = messages.short(info.get("targetId"), 100)
        if info.get("type") != "page" or not id or id in self.tabs or len(self.tabs) >= _MAX_TABS:
            return
        tab = self.tabs[id] = Tab(self._devtools, id)
        tab.rename(info)
        self.start(self._attach(tab))
        self.tell_tabs()

    async def _attach(self, tab: Tab) -> None:
        try:
            await tab.attach(lambda session: self._sessions.__setitem__(session, tab))
            self.start(self._read_landing(tab))
            self.start(self._read_history(tab))
            if self._there is not None and tab.id not in self._there:
                self._front_tab.opened(tab.id)
                self._use(tab, "opened")
            self.driving.prepare(tab)
            await tab.watched()
        finally:
            tab.attached.set()

    async def open_tab(self, url: str) -> None:
        """A new tab, shown when this returns: what is said next is meant for it."""
        opened = await self._devtools.call("Target.createTarget", url=url)
        tab = self.tabs.get(messages.short(opened.get("targetId"), 100))
        if tab is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_ANSWER_LIMIT):
                    await tab.attached.wait()
            self.front(tab)

    def _lost(self, id: str) -> None:
        tab = self.tabs.pop(id, None)
        if tab is None:
            return
        self._sessions.pop(tab.session, None)
        self.forget(prompt for prompt in self.prompts if prompt.tab == id)
        watched = [viewer for viewer in self.viewers.values() if viewer.pinned == id]
        for viewer in watched:
            viewer.pinned = ""
        self.casting.lost(tab)
        self._front_tab.closed(id)
        if self._followed.lost(tab):
            self._followed_changed()
        else:
            self.casting.changed(*watched)
        self.tell_tabs()

    def front(self, tab: Tab) -> None:
        """Follow this tab: whoever chose no other is shown it."""
        if tab.id in self.tabs and tab.session and self._followed.choose(tab):
            self._followed_changed()
            self.tell_tabs()

    def _use(self, tab: Tab, how: UseKind) -> None:
        """The model, a person or a page did something in this tab."""
        if self._followed.used(tab, how):
            self._followed_changed()
            self.tell_tabs()
        if (news := self._followed.news()) is not None:
            self.tell_all(news.message())

    def _followed_changed(self) -> None:
        self._tell_of_crash()
        self.casting.changed(*(viewer for viewer in self.viewers.values() if viewer.pinned not in self.tabs))

    # ---- what the browser says

    def _on_event(self, event: CdpEvent) -> None:
        params = event.params
        if not event.session:
            info = params.get("targetInfo")
            if isinstance(info, dict):
                known = self.tabs.get(messages.short(info.get("targetId"), 100))
                if known is None:
                    self._found(info)
                elif known.rename(info):
                    self.tell_tabs()
            elif event.method == "Target.targetDestroyed":
                self._lost(messages.short(params.get("targetId"), 100))
            return
        tab = self._sessions.get(event.session)
        if tab is not None:
            self._on_tab_event(tab, event.method, params)

    def _on_navigation(self, tab: Tab, method: str, params: dict[str, Any]) -> None:
        frame = params.get("frame")
        match method:
            case "Page.frameStartedLoading" | "Page.frameStoppedLoading" if params.get("frameId") == tab.id:
                tab.loading = method == "Page.frameStartedLoading"
                tab.unheard = True
                if not tab.loading:
                    self.start(self._read_history(tab))  # a page from the cache tells of itself before its place is set
                elif not tab.navigates_by_itself:
                    self._use(tab, "navigated")
                self.tell_tabs()
            case "Page.frameNavigated" if isinstance(frame, dict) and not frame.get("parentId"):
                self.forget(prompt for prompt in self.prompts if prompt.tab == tab.id and prompt.kind != "dialog")
                tab.crashed = False
                tab.begin_again()
                tab.hear_use()
                moved = tab.land(frame)
                self._tell_of_crash()
                if not tab.refreshed(moved):
                    self._use(tab, "navigated")
                self.start(self._read_history(tab))
            case "Page.frameNavigated":
                tab.unheard = True  # within a second: a page may have any number of frames
            case "Page.frameRequestedNavigation" if params.get("frameId") == tab.id:
                tab.request(params.get("reason"))

    def _on_tab_event(self, tab: Tab, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Page.screencastFrame":
                self.casting.take(tab, params)
            case (
                "Page.frameStartedLoading"
                | "Page.frameStoppedLoading"
                | "Page.frameNavigated"
                | "Page.frameRequestedNavigation"
            ):
                self._on_navigation(tab, method, params)
            case "Page.screencastVisibilityChanged":
                tab.note_drawn(params.get("visible") is True)
                self._front_tab.look_again()
            case "Runtime.bindingCalled" if params.get("name") == USED_BINDING:
                self._use(tab, "input")
            case "Page.navigatedWithinDocument":
                self.start(self._read_history(tab))
            case "Page.javascriptDialogOpening":
                self.tell_all(self.prompts.dialog(tab.id, params).message)
            case "Page.javascriptDialogClosed":
                self.forget(prompt for prompt in self.prompts if prompt.tab == tab.id and prompt.kind == "dialog")
            case "Page.fileChooserOpened":
                self.start(self.driving.choose_files(tab, params))
            case "Page.downloadWillBegin" | "Page.downloadProgress":
                self.driving.download(params)
            case "Inspector.targetCrashed":
                tab.crashed = True
                self._tell_of_crash()

    async def _read_landing(self, tab: Tab) -> None:
        await tab.read_landing()
        self.tell_tabs()

    async def _read_history(self, tab: Tab) -> None:
        await tab.read_history()
        self.tell_tabs()

    def _tell_of_crash(self) -> None:
        """Whether the page that is followed is still there."""
        crashed = self._followed.tab is not None and self._followed.tab.crashed
        state = _CRASHED if crashed else _RUNNING
        if state != self._state:
            self._state = state
            self.tell_all(state)

    def forget(self, closed: Iterable[PageDialog]) -> None:
        """These prompts are no longer open."""
        for prompt in list(closed):
            if self.prompts.close(prompt.id):
                self.tell_all({"type": "gone", "id": prompt.id})
