"""Attempts to get out of a sandbox, each with the answer that shows that its layer holds.

An attempt is a program for the sandbox, run as any command is. It holds when the last word that it prints is one of
those it expects: the kernel's own refusal, not just the absence of success.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_NUMBERS = {
    # name: (x86_64, aarch64)
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "clone": (56, 220),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "open_by_handle_at": (304, 265),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "sethostname": (170, 161),
    "clock_settime": (227, 112),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "fsopen": (430, 430),
    "open_tree": (428, 428),
    "mount_setattr": (442, 442),
    "acct": (163, 89),
    "syslog": (103, 116),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "setresuid": (117, 147),
    "setgroups": (116, 159),
    "capset": (126, 91),
    "timer_create": (222, 107),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "io_setup": (206, 0),
    "memfd_secret": (447, 447),
}

PRELUDE = f"""
import ctypes, errno, os, socket, sys
numbers = {_NUMBERS!r}
which = 0 if os.uname().machine == "x86_64" else 1
libc = ctypes.CDLL(None, use_errno=True)
def word(number): return errno.errorcode.get(number, str(number))
def call(name, *args):
    ctypes.set_errno(0)
    args = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    if libc.syscall(ctypes.c_long(numbers[name][which]), *args) == -1: return word(ctypes.get_errno())
    return "DONE"
def attempt(work):
    try: return work() or "DONE"
    except OSError as error: return word(error.errno)
def reading(path): return attempt(lambda: open(path, "rb", buffering=0).read(1) and None)
def writing(path, text="1"):
    def work():
        with open(path, "r+b", buffering=0) as file: file.write(text.encode())
    return attempt(work)
def hidden(*paths):
    answer = "NOTHING"
    for path in paths:
        try: found = os.listdir(path) if os.path.isdir(path) else open(path, "rb", buffering=0).read(64)
        except OSError as error: answer, found = word(error.errno), b""
        if found: return "SHOWN"
    return answer
buffer = ctypes.create_string_buffer(4096)
"""


@dataclass(frozen=True, slots=True)
class EscapeProbe:
    """One way out, tried."""

    layer: str
    name: str
    program: str
    """An expression of Python, after the prelude; its value is printed. It may have statements before it, by lines."""
    expects: frozenset[str]
    contained: frozenset[str] = frozenset()
    """Answers that are as good in gVisor and in a virtual machine: the kernel that says yes is the sandbox's own."""

    @property
    def source(self) -> str:
        """Its statements, the last of which prints the answer."""
        *before, last = self.program.strip().splitlines()
        return "\n".join([*before, f"print({last}, flush=True)"])

    def holds(self, output: str, own_kernel: bool) -> bool:
        said = output.split()
        return bool(said) and (said[-1] in self.expects or (own_kernel and said[-1] in self.contained))


_BATCH = """
import json, signal
def child(source, writer):
    os.dup2(writer, 1)
    os.close(writer)
    signal.alarm(120)
    try: exec(source, globals())
    except BaseException as error: print("BROKEN", type(error).__name__, error, flush=True)
    os._exit(0)
for source in %s:
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reader)
        child(source, writer)
    os.close(writer)
    heard = b""
    while chunk := os.read(reader, 4096): heard = (heard + chunk)[-400:]
    os.waitpid(pid, 0)
    os.close(reader)
    print(json.dumps((heard.decode(errors="replace").strip().splitlines() or ["SILENT"])[-1]), flush=True)
"""


def batch(sources: Sequence[str]) -> list[str]:
    """The argv that tries them in turn, each in a process of its own, and prints a line of JSON for each."""
    return ["python3", "-I", "-c", PRELUDE + _BATCH % repr(list(sources))]
