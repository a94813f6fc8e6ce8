"""What the service lays into a sandbox before it is used: the user's skills, and the prompt as README.md."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import anyio

from cubicle.core.caller import Caller
from cubicle.core.chat import Chat
from cubicle.guest.wire import ErrorCode
from cubicle.log import chat_fields
from cubicle.machine.errors import MachineError
from cubicle.machine.machine import HOME, Machine
from cubicle.prompt.catalogue import SkillCatalogue, SkillSet
from cubicle.prompt.skills import MOUNT, BadSkill, Skill, SkillFile
from cubicle.prompt.system_prompt import SystemPrompt
from cubicle.sandbox.initial_files import InitialFile, InitialFiles

log = logging.getLogger(__name__)

MARKER = f"{MOUNT}/.laid-out"
README = f"{HOME}/README.md"
LOOK_SECONDS = 60.0
_MAX_MARKER = 256 * 1024
_MAX_README = 256 * 1024
_LIMIT = 30.0
_AT_ONCE = 32
_BATCH_BYTES = 4 * 1024 * 1024


@dataclass(slots=True, eq=False)
class _Known:
    """What this service knows to be in a sandbox that it is connected to."""

    laid_out: dict[str, str] | None = None
    skill_set: SkillSet | None = None
    readme: str = ""
    written: bytes | None = None
    looked_at: float = float("-inf")
    lock: anyio.Lock = field(default_factory=anyio.Lock)


class Provisioner:
    """Keeps skills and README.md of sandboxes current; does nothing, quickly, when they are."""

    def __init__(
        self, library: SkillCatalogue, prompt: SystemPrompt, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._library = library
        self._prompt = prompt
        self._clock = clock
        self._known: WeakKeyDictionary[Machine, _Known] = WeakKeyDictionary()

    async def dress(self, machine: Machine, tenant: str = "main") -> None:
        """Lay what every chat gets into a blank sandbox, so that the first use of it does not wait."""
        known = self._known.setdefault(machine, _Known())
        async with known.lock:
            await self._lay_out(machine, known, await self._library.of(None, tenant), own=False)

    async def prepare(self, machine: Machine, caller: Caller) -> None:
        """Call before a use of the sandbox. A failure is logged: a tool works without skills too.

        Commands can remove README.md. So it is looked at once a minute, and a write that failed is tried again then.
        """
        known = self._known.setdefault(machine, _Known())
        skill_set = await self._library.of(caller.email, caller.chat.tenant)
        text = await self._prompt.text(caller.chat, caller.email, caller.name)
        if known.skill_set is skill_set and known.readme == text and not self._look_is_due(known):
            return
        async with known.lock:
            if known.skill_set is not skill_set:
                with _logged("skills", caller.chat):
                    await self._lay_out(machine, known, skill_set, own=bool(caller.email))
                known.skill_set = skill_set  # also after a failure: it would be refused again
            if known.readme != text or self._look_is_due(known):
                with _logged("README.md", caller.chat):
                    known.written = await _keep_readme(machine, text.encode(), known.written)
                known.readme, known.looked_at = text, self._clock()

    async def receive(self, machine: Machine, visitor: Caller) -> None:
        """Call before a use by hand. Whoever names no user leaves what a caller's user has there."""
        if visitor.email or not await _has_readme(machine):
            await self.prepare(machine, visitor)

    def _look_is_due(self, known: _Known) -> bool:
        return self._clock() - known.looked_at >= LOOK_SECONDS

    async def _lay_out(self, machine: Machine, known: _Known, skill_set: SkillSet, *, own: bool) -> None:
        """Make /mnt/skills what the skill set says. A caller without an e-mail leaves the user's own as they are."""
        if known.laid_out is None:
            known.laid_out = await _read_marker(machine)
        there = known.laid_out
        wanted = {s.folder: s for s in skill_set.skills if own or s.source.group == "public"}
        kept = {} if own else {f: d for f, d in there.items() if f.startswith("user/")}
        target = {folder: skill.digest for folder, skill in wanted.items()} | kept
        if target == there:
            return
        for folder in there.keys() - target.keys():
            await _remove(machine, folder)
        changed = [skill for folder, skill in wanted.items() if there.get(folder) != skill.digest]
        for skill in changed:
            if skill.folder in there:
                await _remove(machine, skill.folder)
        await _write(machine, changed)
        await machine.write(MARKER, _marker(target), as_root=True, roots=(MOUNT,))
        known.laid_out = target


def initial_files(library: SkillCatalogue) -> InitialFiles | None:
    """What `dress` would lay into a new sandbox, for a driver that can do so before it starts; blocking."""
    skills = library.for_everyone().group("public")
    marker = _marker({skill.folder: skill.digest for skill in skills})

    def read() -> Iterator[InitialFile]:
        for skill in skills:
            for file in skill.files:
                yield InitialFile(f"{skill.folder}/{file.path}", file.unchanged(), file.mode)
        yield InitialFile(MARKER.removeprefix(f"{MOUNT}/"), marker, 0o644)

    return InitialFiles(marker.decode(), read)


def _marker(laid_out: dict[str, str]) -> bytes:
    return json.dumps(laid_out).encode()


@contextmanager
def _logged(what: str, chat: Chat) -> Iterator[None]:
    """What fails in the block is a line in the log. A caller that goes away does not leave half of it behind."""
    try:
        with anyio.fail_after(_LIMIT, shield=True):
            yield
    except (MachineError, BadSkill, OSError) as error:
        log.warning("%s not laid out: %s", what, error, extra=chat_fields(chat))


async def _keep_readme(machine: Machine, text: bytes, before: bytes | None) -> bytes:
    """Write README.md where it is missing or still as it was written `before`; what is there now of ours.

    One that a command wrote is the work of somebody, whose home this is, and stays.
    """
    try:
        found = await machine.read_bytes(README, limit=_MAX_README, roots=(HOME,))
    except MachineError as error:
        if error.code == ErrorCode.TOO_BIG:
            return before or b""
        log.debug("README.md cannot be read: %s", error)
    else:
        # After a restart of the service nobody remembers the text, but all of them begin alike.
        ours = found == before if before is not None else found.startswith(text.partition(b"\n")[0])
        if found == text or not ours:
            return text if found == text else before or b""
    await machine.write(README, text, roots=(HOME,))
    return text


async def _has_readme(machine: Machine) -> bool:
    try:
        await machine.stat(README, follow=False)
    except MachineError:
        return False
    return True


async def _read_marker(machine: Machine) -> dict[str, str]:
    """Folder to digest, as the last lay-out left it; the sandbox's commands cannot write there."""
    try:
        marker = json.loads(await machine.read_bytes(MARKER, limit=_MAX_MARKER, roots=(MOUNT,)))
    except (MachineError, ValueError, RecursionError):
        return {}
    if not isinstance(marker, dict):
        return {}
    return {str(k): str(v) for k, v in marker.items() if _is_folder(str(k))}


def _is_folder(text: str) -> bool:
    group, _, name = text.partition("/")
    return group in ("public", "user") and bool(name) and "/" not in name and name not in (".", "..")


async def _remove(machine: Machine, folder: str) -> None:
    try:
        await machine.remove(f"{MOUNT}/{folder}", recursive=True, as_root=True, roots=(MOUNT,))
    except MachineError as error:
        if error.code != ErrorCode.NOT_FOUND:
            raise


async def _write(machine: Machine, skills: Sequence[Skill]) -> None:
    """All files side by side: one after the other, each would wait for its own answer."""
    gate = anyio.CapacityLimiter(_AT_ONCE)
    refusals: list[MachineError] = []

    async def write(skill: Skill, file: SkillFile, content: bytes) -> None:
        path = f"{skill.target}/{file.path}"
        async with gate:
            try:
                await machine.write(path, content, mode=file.mode, as_root=True, roots=(MOUNT,))
            except MachineError as error:
                refusals.append(error)

    for batch in _batches([(skill, file) for skill in skills for file in skill.files]):
        contents = await anyio.to_thread.run_sync(_contents, batch)
        async with asyncio.TaskGroup() as group:
            for (skill, file), content in zip(batch, contents, strict=True):
                group.create_task(write(skill, file, content))
        if refusals:
            raise refusals[0]


def _contents(batch: Sequence[tuple[Skill, SkillFile]]) -> list[bytes]:
    return [file.read() for _, file in batch]


def _batches(files: Sequence[tuple[Skill, SkillFile]]) -> Iterator[list[tuple[Skill, SkillFile]]]:
    """The files in order, in groups that fit in memory; a larger file is a group of its own."""
    batch: list[tuple[Skill, SkillFile]] = []
    size = 0
    for item in files:
        if batch and size + item[1].size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item[1].size
    if batch:
        yield batch
