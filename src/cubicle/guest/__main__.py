"""PID 1 of a sandbox: `python3 -I -S guest.pyz '<json>'`. Beside it: `guest.pyz relay SOCKET SECONDS`."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

from . import exec_channels, listening, operations, ports, process_table, wire
from .call_records import CallRecords, read_boot
from .commands import CommandTable
from .connection import GuestChannel, GuestConnection
from .guest_config import GuestConfig
from .halting import halt_channel
from .identity import Identity
from .loop import READ, Loop
from .operation_table import OperationTable


class Guest:
    """The whole guest: one loop, its commands, and the links that the host has open."""

    def __init__(self, config: GuestConfig) -> None:
        self.loop = Loop()
        self.began = time.monotonic()
        self.home = config.home
        identity = Identity(config.uid, config.gid)
        if identity.switches:
            os.setgroups([])
            _shut(config.aliases)
            _shut_control_groups()
        self.links: list[GuestConnection] = []
        self.records = CallRecords(config.records, read_boot())
        self._listening = listening.ListeningPorts(
            apart=identity.switches, connections=lambda: sum(link.counted for link in self.links)
        )
        self.command_table = CommandTable(
            self.loop,
            identity,
            self.home,
            config.env,
            self.records,
            self._listening,
            lambda: bool(self.links),
            config.spawn_helper,
        )
        self._apart = identity.switches
        self._hands = not config.spawn_helper  # gVisor's sockets are none of the host's kernel
        self.operations = OperationTable(self._operations(), lambda: self._file_operations(config, identity))
        self._begin = self._signed(config) if config.tcp else lambda sock: self._enter(sock, 0)
        self._server = _listen(config)
        self.loop.watch(self._server.fileno(), READ, self._accept)
        self._reap_on_signal()

    def _signed(self, config: GuestConfig) -> Callable[[socket.socket], None]:
        from .handshake import Handshakes

        return Handshakes(self.loop, config.identity, config.keys, self._enter).begin

    def _operations(self) -> dict[str, type[GuestChannel]]:
        guest = self

        class Hello(GuestChannel):
            REQUEST = operations.Hello

            def begin(self, request: operations.Hello) -> None:
                self.end(
                    operations.Welcome(
                        version=wire.common_version(request.oldest, request.newest) or wire.NEWEST_VERSION,
                        oldest=wire.OLDEST_VERSION,
                        newest=wire.NEWEST_VERSION,
                        uptime=guest.uptime,
                        commands=list(guest.command_table.commands),
                        hands=guest._hands and self.link.outside,
                        keeps=True,
                    )
                )

        class Stats(GuestChannel):
            REQUEST = operations.Stats

            def begin(self, request: operations.Stats) -> None:
                self.end(process_table.usage(guest.home, guest.command_table.kills, guest.uptime, len(guest.links)))

        class Ping(GuestChannel):
            REQUEST = operations.Ping

            def begin(self, request: operations.Ping) -> None:
                self.end()

        found: dict[str, type[GuestChannel]] = {kind.REQUEST.OP: kind for kind in (Hello, Stats, Ping)}
        found.update(exec_channels.channels(self.command_table))
        for kind in ports.CHANNELS:
            found[kind.REQUEST.OP] = type(kind.__name__, (kind,), {"loop": self.loop})
        bound = {"listening": self._listening}
        found[operations.Halt.OP] = halt_channel(
            self.loop, lambda *only: self.operations.serve_only(*only), self.links, self.command_table
        )
        found[operations.Ports.OP] = type("PortsChannel", (listening.PortsChannel,), bound)
        return found

    def _file_operations(self, config: GuestConfig, identity: Identity) -> dict[str, type[GuestChannel]]:
        from . import files, version_channels
        from .kept_files import KeptFiles
        from .path_policy import PathPolicy
        from .synced_files import Publisher

        parts = {
            "policy": PathPolicy(identity, config.aliases),
            "publisher": Publisher(self.loop, KeptFiles(os.path.join(os.path.dirname(config.records), "kept"))),
            "records": self.records,
        }
        kinds = [*files.CHANNELS, *version_channels.CHANNELS]
        return {kind.REQUEST.OP: type(kind.__name__, (kind,), parts) for kind in kinds}

    @property
    def uptime(self) -> float:
        return time.monotonic() - self.began

    def _accept(self, events: int) -> None:
        try:
            sock, _ = self._server.accept()
        except OSError:
            return
        self._begin(sock)

    def _enter(self, sock: socket.socket, epoch: int) -> None:
        """Serve a connection; those of owners before this one are cut."""
        for link in [link for link in self.links if link.epoch < epoch]:
            link.close()
        self.links.append(GuestConnection(self.loop, sock, self.operations.find, self.links.remove, epoch))

    def _reap_on_signal(self) -> None:
        # A pair of sockets and no pipe, for on gVisor a command can open the pipes of any process.
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if self._apart:  # or a command could send it
            signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

        def woken(events: int) -> None:
            try:
                reader.recv(4096)
            except (BlockingIOError, InterruptedError):
                return
            self.command_table.reap()

        self.loop.watch(reader.fileno(), READ, woken)

    def _stop(self, number: int, frame: object) -> None:
        """Process 1 has no default action; when it ends, the kernel ends all the others."""
        self.loop.stopped = True


def _shut(aliases: dict[str, str]) -> None:
    """Close the folder of the second, writable mounts to commands, whoever made it: not every image brings it."""
    for folder in {os.path.dirname(path) for path in aliases.values()}:
        if os.stat(folder).st_mode & 0o077:
            os.chmod(folder, 0o700)


def _shut_control_groups() -> None:
    """Runtimes mount the trees of cgroup version 1 in a folder that crun lets everybody write to."""
    with contextlib.suppress(OSError):
        if os.stat(process_table.CGROUPS).st_mode & 0o022:
            os.chmod(process_table.CGROUPS, 0o755)  # noqa: S103 (less than before)


def _listen(config: GuestConfig) -> socket.socket:
    if config.tcp is not None:
        listening.hidden_ports.add(config.tcp)
    if config.listen_fd is not None:
        server = socket.socket(fileno=config.listen_fd)
        server.set_inheritable(False)
    elif config.tcp is not None:
        server = _listen_tcp(config.tcp)
    else:
        path = config.socket
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


def _listen_tcp(port: int) -> socket.socket:
    try:
        server = socket.socket(socket.AF_INET6)
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        address: tuple[str, int] = ("::", port)
    except OSError:  # a kernel without IPv6
        server = socket.socket(socket.AF_INET)
        address = ("0.0.0.0", port)  # noqa: S104 - who connects has to sign
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(address)
    server.listen(64)
    return server


def main() -> None:
    if sys.argv[1] == "relay":
        from .relay import relay  # not for PID 1, which stays small: threads cost it memory

        relay(sys.argv[2], float(sys.argv[3]))
    Guest(GuestConfig.decode_line(os.fsencode(sys.argv[1]))).loop.run()


if __name__ == "__main__":
    main()
