"""The first program of a sandbox: `launcher.py FOLDER LIMITS CONFIG [CAPABILITY...]` sets the limits of processes,
gives these capabilities (numbers) up for good, puts the system call filter of this machine on itself, and becomes the
guest.

No privilege is needed for a filter once no new ones can be gained. This is a program of its own so that the guest,
which stays, does not carry ctypes.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys

_SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_READ_BOUNDING, _DROP_BOUNDING, _AMBIENT, _CLEAR_ALL = 23, 24, 47, 4
_CAPABILITIES_3 = 0x20080522
_INSTRUCTION_BYTES = 8
_PYTHON = "/usr/bin/python3"
_DEFAULT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "HOME": "/home/assistant",
    "LANG": "C.UTF-8",
}


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


def apply_filter(file: str) -> None:
    """Raises OSError; a machine without a filter starts nothing."""
    with open(file, "rb") as stream:
        content = stream.read()
    buffer = ctypes.create_string_buffer(content, len(content))
    program = _Program(len(content) // _INSTRUCTION_BYTES, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Sets(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


def give_up(capabilities: list[int]) -> None:
    """Neither this process nor any that it becomes has these again. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(_CAPABILITIES_3, 0), (_Sets * 2)()
    refused = libc.prctl(_AMBIENT, _CLEAR_ALL, 0, 0, 0) or libc.capget(ctypes.byref(header), sets)
    for number in capabilities:
        refused = refused or libc.prctl(_DROP_BOUNDING, number, 0, 0, 0) or libc.prctl(_READ_BOUNDING, number, 0, 0, 0)
        for name in ("effective", "permitted", "inheritable"):
            setattr(sets[number // 32], name, getattr(sets[number // 32], name) & ~(1 << number % 32))
    if refused or libc.capset(ctypes.byref(header), sets):
        raise OSError(ctypes.get_errno(), "capabilities could not be given up: " + os.strerror(ctypes.get_errno()))


def apply_limits(limits: dict[str, int]) -> None:
    """No limit is raised: what the runtime gave stays where it is lower."""
    for name, most in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        least = most if hard == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(kind, (least, least))


def environment() -> dict[str, str]:
    """What the image says that each command has."""
    found = dict(_DEFAULT)
    try:
        with open("/etc/environment", encoding="utf-8") as file:
            for line in file:
                name, equals, value = line.strip().partition("=")
                if equals and not name.startswith("#"):
                    found[name] = value.strip("\"'")
    except OSError:
        pass
    return found


def main() -> None:
    folder, limits, config = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    config["env"] = {**environment(), **config.get("env", {})}
    apply_limits(limits)
    if len(sys.argv) > 4:
        give_up([int(word) for word in sys.argv[4:]])
    apply_filter(folder + "/seccomp-" + os.uname().machine)
    words = [_PYTHON, "-I", "-S", folder + "/guest.pyz", json.dumps(config)]
    os.execve(_PYTHON, words, {"PATH": _DEFAULT["PATH"]})  # noqa: S606 - it becomes the guest


if __name__ == "__main__":
    main()
