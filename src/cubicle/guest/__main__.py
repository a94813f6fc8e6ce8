"""PID 1 of a sandbox: `python3 -I -S guest.pyz '<json>'`. Beside it: `guest.pyz relay SOCKET SECONDS`."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time

from . import exec_channels, files, ports, process_table, wire
from .commands import Office
from .connection import Channel, Link
from .identity import Identity
from .loop import READ, Loop
from .path_policy import Shelf
from .synced_files import Publisher


class Guest:
    """The whole guest: one loop, its commands, and the links that the host has open."""

    def __init__(self, config: dict[str, object]) -> None:
        self.loop = Loop()
        self.began = time.monotonic()
        self.home = str(config.get("home", "/home/assistant"))
        env = config.get("env")
        aliases = config.get("aliases")
        identity = Identity(int(str(config.get("uid", 1000))), int(str(config.get("gid", 1000))))
        if identity.switches:
            os.setgroups([])
            _shut(aliases)
        self.office = Office(
            self.loop,
            identity,
            self.home,
            dict(env) if isinstance(env, dict) else {},
            through_deputy=bool(config.get("deputy")),
        )
        self._hands = not config.get("deputy")  # gVisor's sockets are none of the host's kernel
        shelf = Shelf(identity, dict(aliases) if isinstance(aliases, dict) else {})
        self.links: list[Link] = []
        self.operations = self._operations(shelf)
        self._server = _listen(config)
        self.loop.watch(self._server.fileno(), READ, self._accept)
        self._reap_on_signal()

    def _operations(self, shelf: Shelf) -> dict[str, type[Channel]]:
        guest = self
        publisher = Publisher(self.loop)

        class Hello(Channel):
            def begin(self, request: dict[str, object]) -> None:
                self.end(
                    version=wire.VERSION,
                    uptime=time.monotonic() - guest.began,
                    commands=list(guest.office.commands),
                    hands=guest._hands and self.link.outside,
                )

        class Stats(Channel):
            def begin(self, request: dict[str, object]) -> None:
                self.end(
                    **process_table.usage(guest.home, guest.office.kills),
                    uptime=time.monotonic() - guest.began,
                    links=len(guest.links),
                )

        class Ping(Channel):
            def begin(self, request: dict[str, object]) -> None:
                self.end()

        found: dict[str, type[Channel]] = {"hello": Hello, "stats": Stats, "ping": Ping}
        found.update(exec_channels.operations(self.office))
        for name, kind in files.OPERATIONS.items():
            found[name] = type(kind.__name__, (kind,), {"shelf": shelf, "publisher": publisher})
        for name, port_kind in ports.OPERATIONS.items():
            found[name] = type(port_kind.__name__, (port_kind,), {"loop": self.loop})
        return found

    def _accept(self, events: int) -> None:
        try:
            sock, _ = self._server.accept()
        except OSError:
            return
        self.links.append(Link(self.loop, sock, self.operations, self.links.remove))

    def _reap_on_signal(self) -> None:
        # A pair of sockets and no pipe, for on gVisor a command can open the pipes of any process.
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

        def woken(events: int) -> None:
            try:
                reader.recv(4096)
            except (BlockingIOError, InterruptedError):
                return
            self.office.reap()

        self.loop.watch(reader.fileno(), READ, woken)


def _shut(aliases: object) -> None:
    """Close the folder of the second, writable mounts to commands, whoever made it: not every image brings it."""
    for folder in {os.path.dirname(path) for path in (aliases.values() if isinstance(aliases, dict) else ())}:
        if os.stat(folder).st_mode & 0o077:
            os.chmod(folder, 0o700)


def _listen(config: dict[str, object]) -> socket.socket:
    inherited = config.get("listen_fd")
    if isinstance(inherited, int):
        server = socket.socket(fileno=inherited)
        server.set_inheritable(False)
    else:
        path = str(config["socket"])
        if os.path.exists(path):
            os.unlink(path)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(path)
        try:
            os.chmod(path, 0o600)
        except PermissionError:
            pass  # gVisor lets nobody chmod a socket of the host; its folder is closed to others anyway
        server.listen(64)
    server.setblocking(False)
    return server


def main() -> None:
    if sys.argv[1] == "relay":
        from .relay import relay  # not for PID 1, which stays small: threads cost it memory

        relay(sys.argv[2], float(sys.argv[3]))
    Guest(json.loads(sys.argv[1])).loop.run()


if __name__ == "__main__":
    main()
