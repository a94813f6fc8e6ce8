"""The profile of seccomp.py as a BPF program, for whoever puts it on itself (prctl) and is given none by an engine."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from cubicle.drivers.common import seccomp
from cubicle.drivers.common.syscall_numbers import NUMBERS

_AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LOAD, _AND, _RETURN, _JUMP, _IF_EQUAL, _IF_AT_LEAST = 0x20, 0x54, 0x06, 0x05, 0x15, 0x35
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000
"""Calls of the 32-bit interface on x86_64 have this bit, and are none of ours."""

_Instruction = tuple[int, int, int, int]


def compile_filter(machine: str, *, queues: bool = False) -> bytes:
    """Instructions as the kernel takes them: 16 bits of code, two jumps of 8 bits, 32 bits of operand."""
    profile = seccomp.profile(machine, queues=queues)
    default = _errno(profile["defaultErrnoRet"])
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 1, 0, _AUDIT_ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        program += [(_IF_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, default)]
    for number, rules in _by_number(profile["syscalls"], NUMBERS[machine]).items():
        block = [instruction for rule in rules for instruction in _rule(rule)]
        if any(rule.get("args") for rule in rules):
            block.append((_RETURN, 0, 0, default))
        program += [(_IF_EQUAL, 1, 0, number), (_JUMP, 0, 0, len(block)), *block]
    program.append((_RETURN, 0, 0, default))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def _by_number(rules: Sequence[dict[str, Any]], numbers: dict[str, int]) -> dict[int, list[dict[str, Any]]]:
    """The rules of each call that this machine has, in their order."""
    found: dict[int, list[dict[str, Any]]] = {}
    for rule in rules:
        for name in rule["names"]:
            if name in numbers:
                found.setdefault(numbers[name], []).append(rule)
    return found


def _rule(rule: dict[str, Any]) -> list[_Instruction]:
    """Goes on after the last instruction if a condition does not hold. Of an argument the lower half counts: every one
    that a rule looks at is an int, or flags that lie there."""
    checks: list[_Instruction] = []
    for argument in rule.get("args", ()):
        checks.append((_LOAD, 0, 0, _ARGUMENTS + 8 * argument["index"]))
        if argument["op"] == "SCMP_CMP_MASKED_EQ":
            checks += [(_AND, 0, 0, argument["value"]), (_IF_EQUAL, 0, 0, argument["valueTwo"])]
        else:
            checks.append((_IF_EQUAL, 0, 0, argument["value"]))
    size = len(checks) + 1
    block = [
        (code, 0, size - place - 1, operand) if code == _IF_EQUAL else (code, 0, 0, operand)
        for place, (code, _, _, operand) in enumerate(checks)
    ]
    return [*block, (_RETURN, 0, 0, _action(rule))]


def _action(rule: dict[str, Any]) -> int:
    return _ALLOW if rule["action"] == "SCMP_ACT_ALLOW" else _errno(rule["errnoRet"])


def _errno(number: int) -> int:
    return _ERRNO | number
