"""Makes user namespaces for the driver: a small program of its own, which uses nothing but the standard library.

A user namespace is made by a process that enters it, and a process with threads cannot. A fork of the service would
copy its page tables each time; this program is small, and is forked within a fraction of a millisecond.

One packet asks and one answers, over a socket that is the standard input. The namespace comes as a descriptor with the
answer. The program ends with the socket.
"""

from __future__ import annotations

import array
import ctypes
import errno
import json
import os
import resource
import signal
import socket
import struct
from contextlib import suppress
from typing import Any

MAX_PACKET = 65536
_NEW_USER = 0x10000000
_CAPABILITY_VERSION = 0x20080522
_PATHS = "/proc/sys/user"
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel clears children away: nobody waits for their end
    channel = socket.socket(fileno=os.dup(0))
    while packet := channel.recv(MAX_PACKET):
        try:
            made = make_all(json.loads(packet))
        except OSError as error:
            channel.send(json.dumps({"errno": error.errno or 0, "error": str(error)}).encode())
            continue
        try:
            channel.sendmsg([b"{}"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", made))])
        finally:
            for namespace in made:
                os.close(namespace)


def make_all(wanted: list[dict[str, Any]]) -> list[int]:
    """Descriptors of new user namespaces, made at the same time. Raises OSError, and then there are none."""
    children = [(_begin(one), one) for one in wanted]
    made: list[int] = []
    failed: OSError | None = None
    for child, one in children:
        try:
            made.append(_finish(child, one))
        except OSError as error:
            failed = error
    if failed is not None:
        for namespace in made:
            os.close(namespace)
        raise failed
    return made


def _begin(wanted: dict[str, Any]) -> tuple[int, int, int]:
    """A process that enters a new namespace: its number, where it reports, and what it waits for to be closed."""
    ready, said = os.pipe()
    hold, release = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(ready)
        os.close(release)
        _enter(wanted, said, hold)
    os.close(said)
    os.close(hold)
    return pid, ready, release


def _finish(child: tuple[int, int, int], wanted: dict[str, Any]) -> int:
    pid, ready, release = child
    try:
        with open(ready, "rb") as answer:
            code = answer.read(4)
            number = struct.unpack("=i", code)[0] if len(code) == 4 else errno.ECHILD
            if number:
                raise OSError(number, f"no user namespace could be made: {os.strerror(number)}")
            text = "".join(f"{inside} {outside} {count}\n" for inside, outside, count in wanted["map"])
            for name in ("uid_map", "gid_map"):
                with open(f"/proc/{pid}/{name}", "w", buffering=len(text) + 1) as file:
                    file.write(text)
            return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.write(release, b"x")  # the next child has inherited this end: closing it would say nothing
        os.close(release)


def _enter(wanted: dict[str, Any], said: int, hold: int) -> None:
    """In the child: make the namespace, and keep it until it is held by somebody else."""
    code = 0
    try:
        for name, most in wanted["rlimits"].items():
            _lower(getattr(resource, name), most)
        if owner := wanted["owner"]:
            os.setegid(owner)
            os.seteuid(owner)
            _raise_capabilities()
        if _libc.unshare(_NEW_USER) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        for name, most in wanted["sysctls"].items():
            # /proc/sys may be read-only here: then the limits of the host hold for this user.
            with suppress(OSError), open(f"{_PATHS}/{name}", "w") as file:
                file.write(str(most))
    except OSError as error:
        code = error.errno or 1
    finally:
        os.write(said, struct.pack("=i", code))
        os.close(said)
        os.read(hold, 1)
        os._exit(0)


def _lower(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(kind, (most, most))


def _raise_capabilities() -> None:
    """A change of the user took them; hosts that let only root make user namespaces ask for them."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()
    if _libc.capget(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    sets[0], sets[3] = sets[1], sets[4]
    if _libc.capset(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")


if __name__ == "__main__":
    main()
