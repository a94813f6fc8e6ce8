"""The transparent proxy: in a sandbox's own namespace every way leads to the egress proxy.

Programs that heed the proxy variables do not need it. For the others, every address is local (AnyIP), and what is not
loopback is redirected to the port on which the guest listens for the proxy. A sandbox cannot change it: it has no
capability over its network.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import threading

from cubicle.egress.environment import NAMES_PORT, TRANSPARENT_PORT

_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
_LIMIT = 60
_RULES = f"""
table ip cubicle {{
    chain output {{
        type nat hook output priority -100; policy accept;
        ip daddr != 127.0.0.0/8 meta l4proto tcp redirect to :{TRANSPARENT_PORT}
        ip daddr != 127.0.0.0/8 udp dport 53 redirect to :{NAMES_PORT}
    }}
}}
"""
_NEW_NETWORK = 0x40000000
_SET_FLAGS, _UP_AND_RUNNING = 0x8914, 0x41
_libc = ctypes.CDLL(None, use_errno=True)

# rtnetlink: header (length, type, flags, sequence, sender), then rtmsg and one attribute (length, type, value).
_HEADER, _ROUTE, _DEVICE = struct.Struct("=IHHII"), struct.Struct("=BBBBBBBBI"), struct.Struct("=HHI")
_NEW_ROUTE, _ACKNOWLEDGE = 24, 0x1 | 0x4 | 0x100 | 0x400
_LOCAL_TABLE, _BOOT, _HOST_SCOPE, _LOCAL = 255, 3, 254, 2
_OUTPUT_DEVICE = 4


def available() -> bool:
    """Whether this host has the program that it takes."""
    return shutil.which("nft", path=_PATH) is not None


def capture(pid: int) -> str:
    """Set the network of this sandbox up; why that failed, or nothing. It blocks."""
    said: list[str] = []
    # In a thread that ends there: it never comes back from the sandbox's namespace.
    thread = threading.Thread(target=_capture, args=(pid, said), name="network of a sandbox", daemon=True)
    thread.start()
    thread.join(_LIMIT + 5)
    return said[0] if said else "it takes too long"


def _capture(pid: int, said: list[str]) -> None:
    try:
        _enter(pid)
        _set_loopback_up()
        _make_all_local()
        nft = shutil.which("nft", path=_PATH) or "nft"
        done = subprocess.run(
            [nft, "-f", "-"], input=_RULES.encode(), env={"PATH": _PATH}, capture_output=True, timeout=_LIMIT
        )
        said.append("" if done.returncode == 0 else done.stderr.decode(errors="replace").strip()[-300:])
    except (OSError, subprocess.TimeoutExpired) as error:
        said.append(str(error))


def _enter(pid: int) -> None:
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(namespace, _NEW_NETWORK) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(namespace)


def _set_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP_AND_RUNNING))


def _make_all_local() -> None:
    """`ip route replace local default dev lo`"""
    route = _ROUTE.pack(socket.AF_INET, 0, 0, 0, _LOCAL_TABLE, _BOOT, _HOST_SCOPE, _LOCAL, 0)
    body = route + _DEVICE.pack(_DEVICE.size, _OUTPUT_DEVICE, socket.if_nametoindex("lo"))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_LIMIT)
        kernel.send(_HEADER.pack(_HEADER.size + len(body), _NEW_ROUTE, _ACKNOWLEDGE, 1, 0) + body)
        code = -struct.unpack_from("=i", kernel.recv(4096), _HEADER.size)[0]
    if code:
        raise OSError(code, os.strerror(code))
