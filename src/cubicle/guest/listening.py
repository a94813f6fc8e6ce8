"""Which ports of the sandbox are listened on, and by which program: read from /proc, as programs come and go."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator

from . import operations
from .connection import GuestChannel
from .messages import MAX_NUMBER
from .process_table import processes, text

_MAX_PORTS = 256
_MAX_LISTENING = 4096
"""Sockets that listen, of each kind, of which is kept anything."""
_MAX_LINES = 100_000
_MAX_LINE = 1024
_MAX_NAME = 40
_LISTEN = b" 0A "
_TABLES = (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6))
_COUNTS = (("/proc/net/sockstat", b"TCP: inuse ", ""), ("/proc/net/sockstat6", b"TCP6: inuse ", "/proc/net/tcp6"))
"""Where the kernel counts sockets, after which words, and what is not there either if there are none of a kind."""
_MPTCP = 262
_READ = 8192
_LAST = 2048
"""The kernel gives out a page of a table at a time: a read of less was the last one."""
_INTERPRETERS = ("python", "node", "nodejs", "ruby", "perl", "php", "bun", "deno", "java", "bash", "sh")
_ENDINGS = (".py", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".php", ".sh", ".jar")

own_ports: set[int] = set()
"""The ports that the guest itself listens on. Known without /proc, which a program can fill with sockets of its own."""

hidden_ports: set[int] = set()
"""Where the service reaches the guest. Nothing inside may use them, and nobody is told of them."""


class ListeningPorts:
    """Reads what the kernel says. The owner of a socket is looked for once: that means to look at every process."""

    def __init__(self, apart: bool, connections: Callable[[], int] = lambda: 0) -> None:
        self._apart = apart
        """Whether the sandbox has a network of its own. If not, only what its own processes have counts."""
        self._connections = connections
        """How many TCP connections the service has to the guest: no program's, and in every count of the kernel."""
        self._owners: dict[int, str] = {}
        self._has_counts = _counts_all()

    def read(self) -> operations.PortList:
        """One entry for each port, first those of the guest: one that anybody else listens on, too, is the guest's."""
        own = [operations.ListeningPort(port=port, address="127.0.0.1", own=True) for port in sorted(own_ports)]
        found: dict[int, tuple[str, int]] = {}
        for path, family in _TABLES:
            for address, port, inode in _listening(path, family):
                if port not in own_ports and port not in hidden_ports:
                    found.setdefault(port, (address, inode))
        room = max(0, _MAX_PORTS - len(own))
        ports = sorted(found)[:room] if self._apart else sorted(found)
        self._find_owners({found[port][1] for port in ports})
        others = [
            operations.ListeningPort(port=port, address=address, process=self._owners.get(inode, ""))
            for port, (address, inode) in ((port, found[port]) for port in ports)
            if self._apart or inode in self._owners
        ]
        return operations.PortList(ports=own + others[:room])

    def mark(self) -> int:
        """Another number when other sockets listen; most of the time one look is all that is needed."""
        count = _count_sockets() if self._has_counts else None
        if count is not None and count == len(own_ports) + len(hidden_ports) + self._connections():
            return _mark([])
        found = [
            (port, inode)
            for path, family in _TABLES
            for _, port, inode in _listening(path, family)
            if port not in own_ports and port not in hidden_ports
        ]
        return _mark(found)

    def _find_owners(self, inodes: set[int]) -> None:
        self._owners = {inode: name for inode, name in self._owners.items() if inode in inodes}
        missing = inodes - self._owners.keys()
        if not missing:
            return
        for pid in processes():
            held = missing & _sockets(pid)
            if held:
                name = _name(pid)
                self._owners.update((inode, name) for inode in held)


def _mark(found: list[tuple[int, int]]) -> int:
    return hash(tuple(sorted(found))) & MAX_NUMBER


def _counts_all() -> bool:
    """Whether the kernel counts every socket. Many before 2026 do not count those of MPTCP over IPv6, on which Go's
    servers listen."""
    before = _count_sockets()
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM, _MPTCP) as server:
            server.bind(("::1", 0))
            server.listen(1)
            return before is not None and before != _count_sockets()
    except OSError:  # no MPTCP here, or no IPv6
        return True


def _count_sockets() -> int | None:
    """How many TCP sockets there are, of any state but TIME_WAIT; None if that is not told (gVisor).

    Looking for those that listen, the kernel passes all places of its table of connections: it is one for the whole
    host, and half a million places on a large one.
    """
    count = 0
    for path, name, table in _COUNTS:
        number = _read(path).partition(name)[2].partition(b"\n")[0].partition(b" ")[0]
        if number.isdigit():
            count += int(number)
        elif not table or os.path.exists(table):
            return None
    return count


def _read(path: str) -> bytes:
    """A file of one read: this is done after every command, and a file object costs three more calls."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _READ)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _listening(path: str, family: int) -> list[tuple[str, int, int]]:
    """Address, port and inode of each socket that listens."""
    found: list[tuple[str, int, int]] = []
    for line in _lines(path):
        if _LISTEN in line and (entry := _entry(line, family)) is not None:
            found.append(entry)
            if len(found) >= _MAX_LISTENING:
                break
    return found


def _lines(path: str) -> Iterator[bytes]:
    """The whole lines of a table of the kernel, up to a limit."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rest, left, got = b"", _MAX_LINES, _READ
        while got > _LAST and left > 0 and len(rest) <= _MAX_LINE:
            read = os.read(fd, _READ)
            *lines, rest = (rest + read).split(b"\n")
            yield from lines[:left]
            got, left = len(read), left - len(lines)
    except OSError:
        pass
    finally:
        os.close(fd)


def _entry(line: bytes, family: int) -> tuple[str, int, int] | None:
    """None for the headings, and for what does not listen."""
    fields = line.decode("ascii", "replace").split()
    if len(fields) < 10 or fields[3] != "0A" or not fields[9].isdigit():
        return None
    raw, _, port = fields[1].partition(":")
    try:
        entry = (_address(raw, family), int(port, 16), int(fields[9]))
    except (ValueError, OSError):
        return None
    return entry if 0 < entry[1] < 65536 else None


def _address(raw: str, family: int) -> str:
    """As /proc writes it: words of 32 bits in the byte order of the machine."""
    words = [int(raw[start : start + 8], 16) for start in range(0, len(raw), 8)]
    return socket.inet_ntop(family, b"".join(socket.ntohl(word).to_bytes(4, "big") for word in words))


def _sockets(pid: int) -> set[int]:
    """The inodes of a process's sockets, as far as it can be looked at."""
    found: set[int] = set()
    try:
        names = os.listdir("/proc/%d/fd" % pid)
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink("/proc/%d/fd/%s" % (pid, name))
        except OSError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


def _name(pid: int) -> str:
    """What people call the program: of an interpreter, the script or module that it runs."""
    words = [word for word in text("/proc/%d/cmdline" % pid).split("\0") if word]
    name = os.path.basename(words[0]) if words else text("/proc/%d/comm" % pid).strip()
    if name.rstrip("0123456789.") in _INTERPRETERS:
        name = _script(words[1:]) or name
    return "".join(letter if letter.isprintable() else "?" for letter in name)[:_MAX_NAME]


def _script(words: list[str]) -> str:
    for place, word in enumerate(words):
        if word == "-m" and place + 1 < len(words):
            return words[place + 1]
        if word in ("-c", "-e"):
            return ""
        if not word.startswith("-"):
            name = os.path.basename(word)
            for ending in _ENDINGS:
                if name.endswith(ending) and len(name) > len(ending):
                    return name[: -len(ending)]
            return name
    return ""


class PortsChannel(GuestChannel):
    """Tell which ports are listened on now."""

    REQUEST = operations.Ports
    listening: ListeningPorts

    def begin(self, request: operations.Ports) -> None:
        self.end(self.listening.read())
