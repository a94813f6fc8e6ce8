"""Skills in the open Agent Skills format: a folder with a SKILL.md that has YAML front matter.

BadSkill         the folder is not a skill; the message says why, and the skill is left out
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import yaml

from cubicle.core.text import one_line

log = logging.getLogger(__name__)

MANIFEST = "SKILL.md"
MOUNT = "/mnt/skills"
MAX_FILES = 500
MAX_FILE_BYTES = 8 * 1024 * 1024
MAX_SKILL_BYTES = 32 * 1024 * 1024
MAX_SKILLS = 200
_MAX_MANIFEST_BYTES = 256 * 1024
_MAX_FRONT_MATTER = 16 * 1024
_MAX_BRACKETS = 100  # the time for nested ones grows with their square
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_LEFT_OUT = frozenset({"__pycache__", "node_modules"})


class BadSkill(Exception):
    """The folder is not a skill."""


class Source(StrEnum):
    """Where a skill comes from; the later one hides an earlier one of the same name."""

    PUBLIC = "public"
    OPERATOR = "operator"
    USER = "user"
    SETTINGS = "settings"

    @property
    def group(self) -> str:
        """The folder of /mnt/skills that it is in."""
        return "user" if self in (Source.USER, Source.SETTINGS) else "public"


@dataclass(frozen=True, slots=True)
class SkillFile:
    """One file of a skill: where it goes, and where its bytes are."""

    path: str
    size: int
    sha256: str
    executable: bool
    content: Path | bytes

    def read(self) -> bytes:
        return self.content if isinstance(self.content, bytes) else _bounded(self.content, MAX_FILE_BYTES)

    def unchanged(self) -> bytes:
        """The bytes, as they were when the skill was found. Raises ValueError if they are others now."""
        try:
            found = self.read()
        except BadSkill as error:
            raise ValueError(str(error)) from None
        if hashlib.sha256(found).hexdigest() != self.sha256:
            raise ValueError(f"{self.path} has changed")
        return found

    @property
    def mode(self) -> int:
        return 0o755 if self.executable else 0o644


@dataclass(frozen=True, slots=True)
class Skill:
    name: str
    description: str
    source: Source
    files: tuple[SkillFile, ...]

    @property
    def folder(self) -> str:
        return f"{self.source.group}/{self.name}"

    @property
    def target(self) -> str:
        """The folder inside the sandbox."""
        return f"{MOUNT}/{self.folder}"

    @property
    def location(self) -> str:
        return f"{self.target}/{MANIFEST}"

    @property
    def digest(self) -> str:
        lines = (f"{f.path}\0{f.sha256}\0{f.executable}" for f in self.files)
        return hashlib.sha256("\n".join((self.folder, *lines)).encode()).hexdigest()


def user_digest(email: str, tenant: str) -> str:
    """The name of a user's folder in USER_SKILLS_DIR; with one API key, `sha256(e-mail)`."""
    address = email.strip().lower()
    text = address if tenant == "main" else f"{tenant}\0{address}"
    return hashlib.sha256(text.encode()).hexdigest()


def front_matter(manifest: bytes) -> tuple[str, str]:
    """(name, description) of a SKILL.md, or BadSkill."""
    try:
        text = manifest.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadSkill(f"{MANIFEST} is not UTF-8 text") from None
    found = _FRONT_MATTER.match(text)
    if not found or len(found[1]) > _MAX_FRONT_MATTER:
        raise BadSkill(f"{MANIFEST} does not begin with front matter between two lines of ---")
    if found[1].count("[") + found[1].count("{") > _MAX_BRACKETS:
        raise BadSkill(f"the front matter has more than {_MAX_BRACKETS} opening brackets")
    try:
        fields = yaml.safe_load(found[1])
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BadSkill(f"the front matter is not YAML: {one_line(str(error))}") from None
    if not isinstance(fields, dict):
        raise BadSkill("the front matter is not a mapping")
    return _name(fields.get("name")), _description(fields.get("description"))


def _name(value: object) -> str:
    if not isinstance(value, str) or len(value) > 64 or not _NAME.fullmatch(value):
        raise BadSkill("name must be 1 to 64 characters of a-z, 0-9 and single hyphens between them")
    return value


def _description(value: object) -> str:
    if not isinstance(value, str) or not one_line(value) or len(value) > 1024:
        raise BadSkill("description must be a text of 1 to 1,024 characters")
    return one_line(value, 1024)


def assemble(folder: str, source: Source, files: Sequence[SkillFile]) -> Skill:
    """A skill of these files, checked; `folder` is the name of the folder that they were in."""
    manifest = next((f for f in files if f.path == MANIFEST), None)
    if manifest is None:
        raise BadSkill(f"there is no {MANIFEST}")
    name, description = front_matter(manifest.read())
    if name != folder:
        raise BadSkill(f"the name is {name!r}, but the folder is another one")
    return Skill(name, description, source, tuple(sorted(files, key=lambda f: f.path)))


def read_skill(folder: Path, source: Source) -> Skill:
    """The skill in this folder. Symbolic links and special files in it are left out, never followed."""
    files: list[SkillFile] = []
    total = 0
    for path, status in _walk(folder):
        limit = _MAX_MANIFEST_BYTES if path == folder / MANIFEST else MAX_FILE_BYTES
        total += status.st_size
        if len(files) >= MAX_FILES or total > MAX_SKILL_BYTES:
            raise BadSkill(f"it has more than {MAX_FILES} files or {MAX_SKILL_BYTES >> 20} MiB")
        content = _bounded(path, limit)
        digest = hashlib.sha256(content).hexdigest()
        relative = path.relative_to(folder).as_posix()
        if not relative.isprintable():
            raise BadSkill("a file name has control characters")
        files.append(SkillFile(relative, len(content), digest, bool(status.st_mode & 0o100), path))
    return assemble(folder.name, source, files)


def _walk(folder: Path, depth: int = 8) -> Iterable[tuple[Path, os.stat_result]]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda e: e.name)
    for entry in found:
        if entry.name.startswith(".") or entry.name in _LEFT_OUT:
            continue
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            yield Path(entry.path), status
        elif stat.S_ISDIR(status.st_mode) and depth > 0:
            yield from _walk(Path(entry.path), depth - 1)


def _bounded(path: Path, limit: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise BadSkill(f"{path.name} is larger than {limit >> 10} KiB")
    return content


def read_folder(folder: Path, source: Source) -> list[Skill]:
    """Every good skill of a folder of skills, by name; each broken one is a line in the log."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        log.warning("skills folder cannot be read: %s: %s", folder, error.strerror)
        return []
    skills: list[Skill] = []
    for name in names[:MAX_SKILLS]:
        try:
            skills.append(read_skill(folder / name, source))
        except (BadSkill, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            log.warning("skill left out: %s (%s): %s", one_line(name), source, reason)
    return skills
