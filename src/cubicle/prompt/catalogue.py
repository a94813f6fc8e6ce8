"""Which skills a user has: the shipped ones, the operator's, the user's own."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import anyio

import cubicle
from cubicle.prompt.settings_service import NOTHING, SettingsService, UserSettings
from cubicle.prompt.skills import Skill, Source, read_folder, user_digest

FRESH_SECONDS = 30.0
MAX_USERS = 1000
_MAX_READERS = 2


def shipped_folder() -> Path:
    """The public skills: inside the installed package, or beside the sources of a checkout."""
    installed = Path(cubicle.__file__).with_name("skills")
    return installed if installed.is_dir() else Path(cubicle.__file__).parents[2] / "skills"


@dataclass(frozen=True, slots=True)
class SkillSet:
    """The skills that one user sees, by name, each once."""

    skills: tuple[Skill, ...]

    def group(self, name: str) -> tuple[Skill, ...]:
        """Those of one folder of /mnt/skills."""
        return tuple(s for s in self.skills if s.source.group == name)


def digest(skills: Iterable[Skill]) -> str:
    """One text that changes when a file of one of them does."""
    return hashlib.sha256("\n".join(s.digest for s in skills).encode()).hexdigest()


def arrange(skills: Iterable[Skill]) -> SkillSet:
    """A later skill hides an earlier one of the same name: the nearer to the user wins."""
    by_name = {s.name: s for s in skills}
    return SkillSet(tuple(by_name[name] for name in sorted(by_name)))


class SkillCatalogue:
    """Reads skills from folders and the settings service; keeps each user's skill set for a short while."""

    def __init__(
        self,
        public: Path | None = None,
        operator: Path | None = None,
        users: Path | None = None,
        settings: SettingsService | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._public = public or shipped_folder()
        self._operator = operator
        self._users = users
        self._settings = settings
        self._clock = clock
        self._shelves: OrderedDict[tuple[str, str], tuple[float, SkillSet]] = OrderedDict()
        self._everyones: tuple[float, tuple[Skill, ...]] = (float("-inf"), ())
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._reading = asyncio.Semaphore(_MAX_READERS)

    async def of(self, email: str | None, tenant: str = "main") -> SkillSet:
        """The skill set of this user; without an e-mail, what everyone has."""
        key = (tenant, (email or "").strip().lower())
        # However many ask at a time, one reads: a hundred threads in the folders would hold up the event loop.
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            known = self._shelves.get(key)
            if known is not None and self._is_fresh(known[0]):
                return known[1]
            own = await self._settings.of(key[1], tenant) if self._settings and key[1] else NOTHING
            async with self._reading:
                read_at, skill_set = await anyio.to_thread.run_sync(self._read, key, own)
            self._keep(key, read_at, skill_set)
            return skill_set

    def _is_fresh(self, read_at: float) -> bool:
        return self._clock() - read_at < FRESH_SECONDS

    def _keep(self, key: tuple[str, str], read_at: float, skill_set: SkillSet) -> None:
        self._shelves[key] = (read_at, skill_set)
        self._shelves.move_to_end(key)
        while len(self._shelves) > MAX_USERS:
            self._shelves.popitem(last=False)

    def _read(self, key: tuple[str, str], own: UserSettings) -> tuple[float, SkillSet]:
        tenant, email = key
        read_at, skills = self._everyones_now()
        if self._users and email:
            skills += tuple(read_folder(self._users / user_digest(email, tenant), Source.USER))
        return read_at, arrange((*skills, *own.skills))

    def for_everyone(self) -> SkillSet:
        """What a user has who has none of his own. It blocks."""
        return arrange(self._everyones_now()[1])

    def _everyones_now(self) -> tuple[float, tuple[Skill, ...]]:
        found = self._everyones
        if not self._is_fresh(found[0]):
            self._everyones = found = (self._clock(), self._read_everyones())
        return found

    def _read_everyones(self) -> tuple[Skill, ...]:
        skills = read_folder(self._public, Source.PUBLIC)
        if self._operator:
            skills += read_folder(self._operator, Source.OPERATOR)
        return tuple(skills)
