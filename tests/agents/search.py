"""Looks for secrets everywhere in a sandbox, from the host and as its root: not by what the sandbox shows of itself.

Searched: environment, arguments, open files and every readable mapping of each process, the guest (process 1)
included; the files on its disk, deleted ones too; its file systems in memory.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import stat
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cubicle.drivers.oci.driver import OciDriver

_CHUNK = 1 << 24
_PIECE = 12
# The kernel's own pages, the same in every process.
_KERNEL = ("[vvar]", "[vvar_vclock]", "[vsyscall]", "[vdso]", "[vectors]")


@dataclass(frozen=True, order=True)
class Find:
    """One place at which a secret is."""

    secret: str
    kind: str
    """environ, cmdline, fd, open file, memory and its mode, file, disk."""
    where: str


def forms(secret: str) -> set[bytes]:
    """A secret as memory may hold it: in pieces, as a header is cut; in wide characters; encoded."""
    plain = secret.encode()
    middle = (len(plain) - _PIECE) // 2
    found = {plain[:_PIECE], plain[middle : middle + _PIECE], plain[-_PIECE:]}
    found |= {plain.decode().encode("utf-16-le")[2 * middle :][: 2 * _PIECE], plain[:_PIECE].hex().encode()}
    for lead in range(3):  # wherever in a longer text it stands, as behind the name of a user
        found.add(base64.b64encode(b"x" * lead + plain)[4 : 4 + _PIECE])
    return found


@dataclass
class Search:
    """One search in one sandbox, while it runs. All of it blocks."""

    secrets: Mapping[str, str]
    """By the name under which a find is told."""
    processes: int = 0
    mapped: int = 0
    files: int = 0
    disk: int = 0

    def __post_init__(self) -> None:
        self._needles = [(name, form) for name, secret in self.secrets.items() for form in forms(secret)]
        self._longest = max(len(form) for _, form in self._needles)

    def through(self, driver: OciDriver, name: str) -> set[Find]:
        home = driver._records.home(name)
        run = home.run()
        assert run is not None
        guest = run.process.pid
        found: set[Find] = set()
        for pid in sandbox_processes(guest, name):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                found |= set(self._process(pid))
        roots = [driver._assembly.disk(home, None).target]
        roots += [Path(f"/proc/{guest}/root{target}") for target in _in_memory(guest)]
        for root in roots:
            found |= set(self._tree(root))
        subprocess.run(["sync", "--file-system", str(roots[0])], check=True, timeout=60)
        image = home.path / "disk.img"
        if image.exists():
            found |= set(self._image(image))
        return found

    def _process(self, pid: int) -> Iterator[Find]:
        self.processes += 1
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        where = f"{pid} {command[:60].decode(errors='replace')}"
        for kind, content in (("cmdline", command), ("environ", Path(f"/proc/{pid}/environ").read_bytes())):
            yield from self._in(content, kind, where)
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield from self._in(os.readlink(entry.path).encode(), "fd", where)
                if stat.S_ISREG(os.stat(entry.path).st_mode):
                    yield from self._file(entry.path, "open file", where)
        yield from self._memory(pid, where)

    def _memory(self, pid: int, where: str) -> Iterator[Find]:
        with open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                span, mode, *rest = line.split(maxsplit=5)
                low, high = (int(part, 16) for part in span.split("-"))
                if "r" not in mode or (rest and rest[-1] in _KERNEL):
                    continue
                anonymous = len(rest) < 4 or rest[3].startswith("[")
                for start, end in _written(pid, low, high) if anonymous else [(low, high)]:
                    for content in _read(memory.fileno(), start, end, self._longest):
                        self.mapped += len(content)
                        yield from self._in(content, f"memory {mode}", where)

    def _tree(self, root: Path) -> Iterator[Find]:
        for folder, _, names in os.walk(root):
            for name in names:
                path = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError, PermissionError):  # files of /sys that can only be written
                    yield from self._in(name.encode(errors="surrogateescape"), "file", path)
                    if stat.S_ISREG(os.lstat(path).st_mode):
                        self.files += 1
                        yield from self._file(path, "file", path)

    def _file(self, path: str, kind: str, where: str) -> Iterator[Find]:
        fd = os.open(path, os.O_RDONLY)
        try:
            for content in _read(fd, 0, os.fstat(fd).st_size, self._longest):
                yield from self._in(content, kind, where)
        finally:
            os.close(fd)

    def _image(self, path: Path) -> Iterator[Find]:
        """The disk itself, holes left out: it also holds what was deleted."""
        fd, end = os.open(path, os.O_RDONLY), 0
        try:
            while True:
                try:
                    start = os.lseek(fd, end, os.SEEK_DATA)
                except OSError:
                    return
                end = os.lseek(fd, start, os.SEEK_HOLE)
                for content in _read(fd, start, end, self._longest):
                    self.disk += len(content)
                    yield from self._in(content, "disk", path.name)
        finally:
            os.close(fd)

    def _in(self, content: bytes, kind: str, where: str) -> Iterator[Find]:
        for name, form in self._needles:
            if form in content:
                yield Find(name, kind, where)


def sandbox_processes(guest: int, name: str) -> list[int]:
    """Every process of a sandbox, by the host's number: of its pid namespace, or of its cgroup."""
    namespace = os.readlink(f"/proc/{guest}/ns/pid")
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
            inside = any(f"/{name}" in line for line in groups)
            if inside or os.readlink(f"/proc/{pid}/ns/pid") == namespace:
                found.append(pid)
    assert guest in found
    return found


def _in_memory(guest: int) -> list[str]:
    """Where the sandbox has file systems that lie in memory."""
    mounts = (line.split() for line in Path(f"/proc/{guest}/mountinfo").read_text().splitlines())
    return [words[4] for words in mounts if words[words.index("-") + 1] == "tmpfs"]


def _written(pid: int, low: int, high: int) -> list[tuple[int, int]]:
    """The parts of a span that hold something: pages in memory or swapped out. The rest was never written."""
    size = os.sysconf("SC_PAGE_SIZE")
    with open(f"/proc/{pid}/pagemap", "rb", 0) as pages:
        entries = os.pread(pages.fileno(), (high - low) // size * 8, low // size * 8)
    return [
        (low + found.start() * size, low + found.end() * size)
        for found in re.finditer(rb"[\x40-\xff]+", entries[7::8])  # bit 63: present, bit 62: swapped
    ]


def _read(fd: int, low: int, high: int, overlap: int) -> Iterator[bytes]:
    """A span in chunks that overlap, so that nothing hides between two; ends at what cannot be read."""
    position = low
    while position < high:
        try:
            content = os.pread(fd, min(_CHUNK, high - position), position)
        except OSError:
            return
        if not content:
            return
        yield content
        position += len(content)
        if position < high and len(content) > overlap:
            position -= overlap
