"""What the container of a sandbox is like, whoever makes it."""

from __future__ import annotations

import resource

GUEST = "/run/cubicle/guest.pyz"
AGENTS = "/opt/agents"
"""Where a sandbox sees the programs of coding agents."""
CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SYS_PTRACE",
)
"""What the guest needs to act for its commands and to stay out of their reach; all of it counts only inside its user
namespace, and its commands have none."""

READ_ONLY = ("/proc/sys", "/proc/sysrq-trigger")

SYSCTLS = {
    # Servers in a sandbox may take port 80: nothing but the sandbox itself is on its network.
    "net.ipv4.ip_unprivileged_port_start": "0",
    # Buffers of TCP come out of one budget of the host (tcp_mem); one socket takes no great part of it.
    "net.ipv4.tcp_rmem": "4096 131072 4194304",
    "net.ipv4.tcp_wmem": "4096 16384 4194304",
    "net.ipv4.tcp_max_tw_buckets": "4096",
}
"""Of the sandbox's own network namespace."""

GVISOR_TASKS = 8
"""Tasks of the host for one process in gVisor, at the most: it dies as a whole when it gets no more."""

PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
WRITABLE = {"/mnt/user-data/uploads": "/run/cubicle/uploads", "/mnt/skills": "/run/cubicle/skills"}
"""Folders that commands may only read, and where the guest writes them."""

RLIMITS = {
    # A core dump would be piped to whatever the host's core_pattern names.
    "RLIMIT_CORE": 0,
    "RLIMIT_NOFILE": 65_536,
    "RLIMIT_SIGPENDING": 4096,
    "RLIMIT_MSGQUEUE": 819_200,
    "RLIMIT_MEMLOCK": 8 * 1024**2,
}
"""The limits of a process. Of the last three, a sandbox as a whole has no more either: the kernel counts them by user,
and remembers in a user namespace what its maker had. Pending signals are timers of POSIX, too."""


def at_most(kind: str, most: int) -> int:
    """A limit that this process may set: nobody may pass the one that it has."""
    hard = resource.getrlimit(getattr(resource, kind))[1]
    return most if hard == resource.RLIM_INFINITY else min(hard, most)
