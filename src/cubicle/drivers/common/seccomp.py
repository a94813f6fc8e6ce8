"""The system calls that a sandbox may make: an allow-list. What is not in it does not exist (ENOSYS), so that programs
take their fallback; what is in `REFUSED` is known and refused (EPERM), so that programs say "not permitted"."""

from __future__ import annotations

from typing import Any

EPERM = 1
ENOMEM = 12
EINVAL = 22
ENOSYS = 38
EPROTONOSUPPORT = 93
EAFNOSUPPORT = 97

ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
"""Only the native one: the 32-bit entry points of a 64-bit kernel are a second, less tested way in."""

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET: a sandbox makes no namespaces of its own.
NEW_NAMESPACES = 0x7E020000

_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
PROTOCOLS = {
    _UNIX: (None,),
    _INET: (0, 1, 6, 17),  # the family's default, ICMP, TCP, UDP
    _INET6: (0, 6, 17, 58),
    _NETLINK: (0,),  # NETLINK_ROUTE: what interfaces there are
}
"""Sockets by family. Not AF_VSOCK, which reaches the hypervisor past every network namespace; not the less used parts
of the kernel: MPTCP, SCTP, SMC, UDP-Lite, and netlink for firewalls, audit, states of sockets or devices."""
_CLOSED_PROTOCOLS = {
    _INET: (33, 132, 136, 256, 262),  # DCCP, SCTP, UDP-Lite, SMC, MPTCP
    _INET6: (33, 132, 136, 256, 262),
    _NETLINK: tuple(range(1, 23)),
}
_MAX_FAMILY = 46

HUGE_PAGES = {"mmap": (3, 0x40000, ENOMEM), "shmget": (2, 0o4000, EINVAL), "memfd_create": (1, 4, EINVAL)}
"""By call: the argument and the flag that ask for huge pages, of which the host has one stock for everybody, and what a
kernel without any answers. (Chromium tries a memfd with impossible flags, and insists on EINVAL.)"""

PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ALLOWED = _names("""
    accept accept4 bind connect getpeername getsockname getsockopt listen recv recvfrom recvmmsg recvmsg send
    sendmmsg sendmsg sendto setsockopt shutdown

    access chdir chmod chown chown32 close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2
    fadvise64 fadvise64_64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchown32 fchownat fcntl fcntl64
    fdatasync fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs fstatfs64 fsync
    ftruncate ftruncate64 futimesat getcwd getdents getdents64 getxattr getxattrat lchown lchown32 lgetxattr link
    linkat listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat lstat64 mkdir mkdirat mknod mknodat
    newfstatat open openat openat2 pipe pipe2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead
    readlink readlinkat readv removexattr removexattrat rename renameat renameat2 rmdir sendfile sendfile64
    setxattr setxattrat splice stat stat64 statfs statfs64 statx symlink symlinkat sync sync_file_range syncfs tee
    truncate truncate64 umask unlink unlinkat utime utimensat utimes vmsplice write writev

    epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd
    eventfd2 inotify_add_watch inotify_init inotify_init1 inotify_rm_watch ioctl poll ppoll pselect6 select signalfd
    signalfd4

    arch_prctl brk cachestat get_mempolicy madvise map_shadow_stack mbind membarrier
    mincore mlock mlock2 mlockall mprotect mremap mseal msync munlock munlockall munmap pkey_alloc
    pkey_free pkey_mprotect process_madvise process_mrelease remap_file_pages rseq set_mempolicy
    set_mempolicy_home_node set_thread_area get_thread_area

    alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time timer_create
    timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime times

    capget capset execve execveat exit exit_group fork futex futex_requeue futex_wait futex_waitv futex_wake
    get_robust_list getcpu getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 getpgid
    getpgrp getpid getppid getpriority getrandom getresgid getresgid32 getresuid getresuid32 getrlimit getrusage
    getsid gettid getuid getuid32 ioprio_get ioprio_set kcmp kill pause pidfd_getfd pidfd_open pidfd_send_signal
    prctl prlimit64 process_vm_readv process_vm_writev ptrace restart_syscall rt_sigaction rt_sigpending
    rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max
    sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
    sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp set_robust_list
    set_tid_address setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32 setpgid
    setpriority setregid setregid32 setresgid setresgid32 setresuid setresuid32 setreuid setreuid32 setrlimit
    setsid setuid setuid32 sigaltstack sysinfo tgkill tkill ugetrlimit uname vfork wait4 waitid waitpid

    landlock_add_rule landlock_create_ruleset landlock_restrict_self

    msgctl msgget msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt
""")

QUEUES = _names("mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink")

REFUSED = _names("""
    acct add_key bpf chroot clock_adjtime clock_settime delete_module fanotify_init fanotify_mark finit_module fsconfig
    fsmount fsopen fspick init_module ioperm iopl kexec_file_load kexec_load keyctl lookup_dcookie mount
    mount_setattr move_mount move_pages name_to_handle_at nfsservctl open_by_handle_at open_tree perf_event_open
    pivot_root quotactl quotactl_fd reboot request_key sethostname setdomainname setns settimeofday stime swapoff
    swapon syslog umount umount2 unshare userfaultfd vhangup adjtimex migrate_pages
""")


def profile(machine: str, *, queues: bool = True) -> dict[str, Any]:
    """The `linux.seccomp` object for a machine (as `uname -m` names it). Without `queues` there are no message queues
    of POSIX: the kernel counts them by user, and in an engine all sandboxes are one."""
    allow = "SCMP_ACT_ALLOW"
    rules: list[dict[str, Any]] = [
        {"names": sorted(ALLOWED | (QUEUES if queues else frozenset())), "action": allow},
        {"names": sorted(REFUSED), "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM},
        # clone3 hides its flags behind a pointer, where a filter cannot look: libc falls back to clone on ENOSYS, which
        # is said here because engines before Docker 23 do not know `defaultErrnoRet`.
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS},
        {"names": ["clone"], "action": allow, "args": [_argument(0, NEW_NAMESPACES, 0, "SCMP_CMP_MASKED_EQ")]},
    ]
    rules += [*_sockets(), *_without_huge_pages()]
    rules += [{"names": ["personality"], "action": allow, "args": [_argument(0, p)]} for p in PERSONALITIES]
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": ENOSYS,
        "architectures": [ARCHITECTURES[machine]] if machine in ARCHITECTURES else [],
        "syscalls": rules,
    }


def _sockets() -> list[dict[str, Any]]:
    """What is closed says so as a kernel without it would: programs ask, and go on without."""
    rules = [_rule(["socketpair"], _argument(0, _UNIX))]
    for family, protocols in PROTOCOLS.items():
        for protocol in protocols:
            more = [] if protocol is None else [_argument(2, protocol)]
            rules.append(_rule(["socket"], _argument(0, family), *more))
    for family, closed in _CLOSED_PROTOCOLS.items():
        for protocol in closed:
            arguments = (_argument(0, family), _argument(2, protocol))
            rules.append(_rule(["socket"], *arguments, refusal=EPROTONOSUPPORT))
    for family in (*range(_MAX_FAMILY),):
        if family not in PROTOCOLS:
            rules.append(_rule(["socket"], _argument(0, family), refusal=EAFNOSUPPORT))
    return rules


def _without_huge_pages() -> list[dict[str, Any]]:
    rules = []
    for name, (index, flag, refusal) in HUGE_PAGES.items():
        rules.append(_rule([name], _argument(index, flag, 0, "SCMP_CMP_MASKED_EQ")))
        rules.append(_rule([name], _argument(index, flag, flag, "SCMP_CMP_MASKED_EQ"), refusal=refusal))
    return rules


def _rule(names: list[str], *arguments: dict[str, Any], refusal: int | None = None) -> dict[str, Any]:
    if refusal is None:
        return {"names": names, "action": "SCMP_ACT_ALLOW", "args": list(arguments)}
    return {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": refusal, "args": list(arguments)}


def _argument(index: int, value: int, value_two: int = 0, op: str = "SCMP_CMP_EQ") -> dict[str, Any]:
    return {"index": index, "value": value, "valueTwo": value_two, "op": op}
