"""The ways out of a sandbox that are tried, layer by layer, and the answers that show that each is shut."""

from __future__ import annotations

from cubicle.isolation.probe import EscapeProbe

REFUSED = frozenset({"EPERM", "EACCES"})
ABSENT = frozenset({"ENOSYS", "EPERM"})
READ_ONLY = frozenset({"EROFS", "EACCES", "EPERM", "ENOENT"})
GONE = frozenset({"ENOENT", "EACCES", "EPERM", "ENXIO", "ENODEV"})
NOTHING = frozenset({"NOTHING"})
DONE = frozenset({"DONE"})
SHOWN = frozenset({"SHOWN"})


def _call(layer: str, name: str, call: str, expects: frozenset[str] = REFUSED, contained: bool = False) -> EscapeProbe:
    return EscapeProbe(layer, name, f"call({call})", expects, DONE if contained else frozenset())


SYSTEM_CALLS = (
    _call("mounts", "mount a file system", "'mount', b'none', b'/tmp', b'tmpfs', 0, 0"),
    _call("mounts", "bind mount the root", "'mount', b'/', b'/mnt', 0, 4096, 0"),
    _call("mounts", "remount /proc/sys writable", "'mount', 0, b'/proc/sys', 0, 4096 | 32, 0"),
    _call("mounts", "unmount uploads", "'umount2', b'/mnt/user-data/uploads', 2"),
    _call("mounts", "swap the root", "'pivot_root', b'/tmp', b'/tmp'"),
    _call("mounts", "change the root", "'chroot', b'/tmp'"),
    _call("mounts", "open a file system by its name", "'fsopen', b'tmpfs', 0", ABSENT),
    _call("mounts", "detach a tree", "'open_tree', -100, b'/', 1", ABSENT),
    _call("mounts", "change a mount's flags", "'mount_setattr', -100, b'/', 0, buffer, 32", ABSENT),
    _call("namespaces", "a user namespace of its own", "'unshare', 0x10000000", contained=True),
    _call("namespaces", "a mount namespace of its own", "'unshare', 0x20000"),
    _call("namespaces", "a network of its own", "'unshare', 0x40000000", contained=True),
    _call("namespaces", "a process in a new user namespace", "'clone', 0x10000000 | 17, 0, 0, 0, 0", ABSENT, True),
    EscapeProbe(
        "namespaces",
        "enter the guest's namespaces",
        "attempt(lambda: call('setns', os.open('/proc/1/ns/mnt', os.O_RDONLY), 0))",
        REFUSED | {"ENOENT", "EINVAL"},
    ),
    _call("kernel", "load a BPF program", "'bpf', 5, buffer, 72", ABSENT),
    _call("kernel", "trace with perf", "'perf_event_open', buffer, 0, -1, -1, 0", ABSENT | {"ENODEV"}),
    _call("kernel", "load a module", "'init_module', buffer, 16, b''", ABSENT),
    _call("kernel", "load a module from a file", "'finit_module', 0, b'', 0", ABSENT),
    _call("kernel", "load another kernel", "'kexec_load', 0, 0, 0, 0", ABSENT),
    _call("kernel", "reboot", "'reboot', 0xfee1dead, 672274793, 0x1234567, 0", ABSENT),
    _call("kernel", "add swap", "'swapon', b'/tmp/x', 0", ABSENT),
    _call("kernel", "rename the machine", "'sethostname', b'x', 1"),
    _call("kernel", "set the clock", "'clock_settime', 0, buffer", ABSENT),
    _call("kernel", "handle page faults of the kernel", "'userfaultfd', 0", ABSENT),
    _call("kernel", "queue calls past the filter", "'io_uring_setup', 8, buffer", ABSENT),
    _call("kernel", "asynchronous I/O of the host", "'io_setup', 8, ctypes.create_string_buffer(8)", ABSENT, True),
    _call("kernel", "memory that even the kernel does not map", "'memfd_secret', 0", ABSENT),
    _call("kernel", "account processes to a file", "'acct', b'/tmp/x'", ABSENT),
    _call("kernel", "read the kernel's messages", "'syslog', 3, buffer, 4096", ABSENT, contained=True),
    _call("kernel", "watch every file", "'fanotify_init', 0, 0", ABSENT),
    _call("kernel", "turn quotas off", "'quotactl', 0x80000300, b'/dev/vda', 0, 0", ABSENT | {"ENOENT"}),
    _call("keys", "read a keyring", "'keyctl', 0, -3, 0", ABSENT, contained=True),
    _call("keys", "add a key", "'add_key', b'user', b'x', b'x', 1, -3", ABSENT | REFUSED),
    _call("keys", "ask for a key", "'request_key', b'user', b'x', 0, 0", ABSENT | REFUSED),
    _call("host files", "open by handle", "'open_by_handle_at', 0, buffer, 0", ABSENT | {"ENOTSUP"}),
)

PRIVILEGES = (
    _call("capabilities", "become root", "'setresuid', 0, 0, 0"),
    _call("capabilities", "join root's groups", "'setgroups', 1, buffer"),
    EscapeProbe(
        "capabilities",
        "raise capabilities",
        "import struct\n"
        "call('capset', struct.pack('II', 0x20080522, 0), struct.pack('6I', 0xffffffff, 0xffffffff, 0, 255, 255, 0))",
        REFUSED,
    ),
    EscapeProbe(
        "capabilities",
        "keep any at all",
        "set(open('/proc/self/status').read().split('CapEff:')[1][1:17])",
        frozenset({"{'0'}"}),
    ),
    EscapeProbe(
        "capabilities",
        "a setuid program",
        "import shutil, subprocess\n"
        "shutil.copy('/bin/bash', '/tmp/suid'); os.chmod('/tmp/suid', 0o6755)\n"
        "tries = [['/tmp/suid', '-p', '-c', 'id -u'], ['su', '-c', 'id -u'], ['sudo', '-n', 'id', '-u']]\n"
        "def said(argv):\n    try: return subprocess.run(argv, capture_output=True, input=b'').stdout.strip()\n"
        "    except OSError: return b''\n"
        "said = [said(argv) for argv in tries]\n"
        "'ROOT' if b'0' in said else 'NOTHING'",
        NOTHING,
    ),
    EscapeProbe(
        "system call filter",
        "run without one",
        "s = open('/proc/self/status').read()\n"
        "'FILTERED' if 'Seccomp:\\t2' in s and 'NoNewPrivs:\\t1' in s else 'BARE'",
        frozenset({"FILTERED"}),
        frozenset({"BARE"}),
    ),
)

GUEST = (
    _call("guest", "trace the guest", "'ptrace', 16, 1, 0, 0"),
    _call("guest", "seize the guest", "'ptrace', 0x4206, 1, 0, 0"),
    EscapeProbe(
        "guest",
        "read the guest's memory by system call",
        "import struct\nv = ctypes.create_string_buffer(struct.pack('QQ', ctypes.addressof(buffer), 8))\n"
        "r = ctypes.create_string_buffer(struct.pack('QQ', 0x400000, 8))\ncall('process_vm_readv', 1, v, 1, r, 1, 0)",
        ABSENT,
    ),
    EscapeProbe("guest", "read the guest's memory by file", "reading('/proc/1/mem')", GONE | {"EIO"}),
    EscapeProbe("guest", "write the guest's memory by file", "writing('/proc/1/mem')", GONE),
    EscapeProbe(
        "guest",
        "take the guest's descriptors",
        "fd = libc.syscall(numbers['pidfd_open'][which], 1, 0)\ncall('pidfd_getfd', fd, 3, 0)",
        ABSENT | {"EBADF"},
    ),
    EscapeProbe(
        "guest",
        "open the guest's descriptors",
        "import stat\nfound = set()\n"
        "for n in range(32):\n"
        "    for mode in (os.O_RDWR, os.O_WRONLY | os.O_NONBLOCK, os.O_RDONLY | os.O_NONBLOCK):\n"
        "        attempt(lambda: found.add(stat.S_IFMT(os.fstat(os.open(f'/proc/1/fd/{n}', mode)).st_mode)))\n"
        "'EACCES' if not found else 'SOCKET' if stat.S_IFSOCK in found else 'PIPES'",
        REFUSED,
        # gVisor lets everybody open the files and pipes of every process, but no socket: these are the sandbox's own.
        frozenset({"PIPES"}),
    ),
    EscapeProbe("guest", "see its private folder", "attempt(lambda: os.listdir('/run/cubicle') and None)", REFUSED),
    EscapeProbe("guest", "read its program", "reading('/run/cubicle/guest.pyz')", REFUSED),
    EscapeProbe(
        "guest",
        "speak to it as the host does",
        "attempt(lambda: socket.socket(socket.AF_UNIX).connect('/run/cubicle/host/guest.sock'))",
        REFUSED,
    ),
    EscapeProbe(
        "guest",
        "stop and kill it",
        "import time\nfor n in range(1, 65): attempt(lambda: os.kill(1, n))\n"
        "time.sleep(0.05)\nopen('/proc/1/stat').read().rsplit(')', 1)[1].split()[0]",
        frozenset({"S", "R", "D"}),  # asleep, at work, or waiting for a disk: not stopped, and not dead
    ),
    EscapeProbe("guest", "raise its chance to be killed", "writing('/proc/1/oom_score_adj', '1000')", REFUSED),
    EscapeProbe("guest", "reach its root", "attempt(lambda: os.listdir('/proc/1/root/run/cubicle') and None)", REFUSED),
    EscapeProbe(
        "guest", "enter its folder", "attempt(lambda: os.chdir('/proc/1/cwd/run/cubicle'))", REFUSED | {"ENOENT"}
    ),
)

_FILES = (
    ("kernel files", "core_pattern", "writing('/proc/sys/kernel/core_pattern', '|/tmp/x')", READ_ONLY),
    ("kernel files", "modprobe path", "writing('/proc/sys/kernel/modprobe', '/tmp/x')", READ_ONLY),
    ("kernel files", "binfmt_misc", "writing('/proc/sys/fs/binfmt_misc/register', ':x:')", READ_ONLY),
    ("kernel files", "sysrq", "writing('/proc/sysrq-trigger', 'h')", READ_ONLY | {"EIO"}),
    ("kernel files", "kernel memory", "hidden('/proc/kcore')", GONE | NOTHING),
    ("host files", "the disks of all sandboxes", "hidden('/sys/block', '/sys/class/block')", GONE | NOTHING, SHOWN),
    ("host files", "disks by another name", "hidden('/sys/devices/virtual/block')", GONE | NOTHING, SHOWN),
    ("host files", "their file systems", "hidden('/sys/fs/ext4', '/sys/fs/xfs', '/proc/fs')", GONE | NOTHING, SHOWN),
    ("host files", "use of the disks", "hidden('/proc/diskstats', '/proc/partitions')", GONE | NOTHING, SHOWN),
    ("host files", "the kernel's own settings", "hidden('/sys/module', '/proc/cmdline')", GONE | NOTHING, SHOWN),
    ("kernel files", "uevent helper", "writing('/sys/kernel/uevent_helper', '/tmp/x')", READ_ONLY),
    ("kernel files", "firmware", "attempt(lambda: None if os.listdir('/sys/firmware') else 'ENOENT')", GONE),
    ("kernel files", "a page cache knob", "writing('/proc/sys/vm/drop_caches')", READ_ONLY),
    ("control groups", "release_agent", "writing('/sys/fs/cgroup/memory/release_agent', '/tmp/x')", READ_ONLY),
    (
        "control groups",
        "a group of its own",
        "attempt(lambda: os.mkdir('/sys/fs/cgroup/memory/x'))",
        READ_ONLY,
    ),
    (
        "control groups",
        "a group beside the trees, or a figure that the service would read",
        "attempt(lambda: os.mkdir('/sys/fs/cgroup/x'))",
        READ_ONLY,
    ),
    ("control groups", "allow devices", "writing('/sys/fs/cgroup/devices/devices.allow', 'a')", READ_ONLY | {"EINVAL"}),
    (
        "control groups",
        "raise the memory limit",
        "writing('/sys/fs/cgroup/memory/memory.limit_in_bytes', '-1')",
        READ_ONLY,
    ),
    ("control groups", "raise the process limit", "writing('/sys/fs/cgroup/pids/pids.max', 'max')", READ_ONLY),
    ("devices", "make a disk node", "attempt(lambda: os.mknod('/tmp/disk', 0o60666, os.makedev(254, 0)))", REFUSED),
    ("devices", "make a memory node", "attempt(lambda: os.mknod('/tmp/mem', 0o20666, os.makedev(1, 1)))", REFUSED),
    ("devices", "open physical memory", "reading('/dev/mem')", GONE),
    ("devices", "open kernel messages", "reading('/dev/kmsg')", GONE),
    (
        "devices",
        "find one of the host",
        "import stat\nknown = {'null','zero','full','random','urandom','tty','ptmx','console'}\n"
        "found = [n for n in os.listdir('/dev') if n not in known and (stat.S_ISBLK(os.lstat('/dev/' + n).st_mode) or "
        "stat.S_ISCHR(os.lstat('/dev/' + n).st_mode))]\n' '.join(found) or 'NOTHING'",
        NOTHING,
        frozenset({"fuse"}),
    ),
    ("base image", "overwrite a program", "writing('/usr/bin/python3', 'x')", REFUSED | {"EROFS", "ETXTBSY"}),
    ("base image", "overwrite its own program", "writing('/proc/self/exe', 'x')", REFUSED | {"EROFS", "ETXTBSY"}),
    ("base image", "add a user", "writing('/etc/passwd', 'x')", REFUSED | {"EROFS"}),
    ("base image", "preload a library", "attempt(lambda: open('/etc/ld.so.preload', 'w'))", REFUSED | {"EROFS"}),
    ("read-only folders", "write to uploads", "attempt(lambda: open('/mnt/user-data/uploads/x', 'w'))", READ_ONLY),
    ("read-only folders", "write to skills", "attempt(lambda: open('/mnt/skills/x', 'w'))", READ_ONLY),
    (
        "read-only folders",
        "rename uploads away",
        "attempt(lambda: os.rename('/mnt/user-data/uploads', '/tmp/u'))",
        READ_ONLY | {"EXDEV", "EBUSY"},
    ),
    (
        "host files",
        "an engine's socket",
        "' '.join(p for p in ('/var/run/docker.sock', '/run/docker.sock', '/run/containerd/containerd.sock', "
        "'/run/podman/podman.sock') if os.path.exists(p)) or 'NOTHING'",
        NOTHING,
    ),
    (
        "host files",
        "a descriptor left open",
        "found = []\n"
        "for n in map(int, os.listdir('/proc/self/fd')):\n"
        "    attempt(lambda: found.append(os.readlink(f'/proc/self/fd/{n}')) if n > 2 else None)\n"
        "' '.join(f for f in found if not f.startswith('/proc/')) or 'NOTHING'",
        NOTHING,
    ),
    (
        "processes",
        "see those of others",
        "'MANY' if sum(n.isdigit() for n in os.listdir('/proc')) > 20 else 'NOTHING'",
        NOTHING,
    ),
    (
        "network",
        "an interface besides loopback",
        "' '.join(line.split(':')[0].strip() for line in open('/proc/net/dev').readlines()[2:])",
        frozenset({"lo"}),
    ),
    (
        "network",
        "the cloud's metadata address",
        "s = socket.socket(); s.settimeout(20)\n"
        "def ask():\n    s.connect(('169.254.169.254', 80)); s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n"
        "    return 'REACHED' if b' 200' in s.recv(100) else 'ECONNRESET'\n"
        "attempt(ask)",
        frozenset({"ENETUNREACH", "EHOSTUNREACH", "ENETDOWN", "EACCES", "ECONNREFUSED", "ECONNRESET"}),
    ),
    (
        "network",
        "raw sockets",
        "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1) and None)",
        REFUSED | {"EPROTONOSUPPORT"},
    ),
    (
        "network",
        "TCP over many paths",
        "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) and None)",
        REFUSED | {"ENOSYS", "EPROTONOSUPPORT", "EINVAL"},
    ),
    (
        "network",
        "the kernel's other ways of netlink",
        "' '.join({attempt(lambda: socket.socket(16, socket.SOCK_RAW, n) and None) for n in range(1, 23)})",
        REFUSED | {"ENOSYS", "EPROTONOSUPPORT"},
        frozenset({"DONE"}),
    ),
    (
        "network",
        "packet sockets",
        "attempt(lambda: socket.socket(17, socket.SOCK_RAW, 0) and None)",
        REFUSED | {"ENOSYS", "EAFNOSUPPORT"},
    ),
    (
        "network",
        "the hypervisor's sockets",
        "attempt(lambda: socket.socket(40, socket.SOCK_STREAM) and None)",
        REFUSED | {"ENOSYS", "EAFNOSUPPORT"},
    ),
    (
        "network",
        "the kernel's cipher sockets",
        "attempt(lambda: socket.socket(38, socket.SOCK_SEQPACKET) and None)",
        REFUSED | {"ENOSYS", "EAFNOSUPPORT"},
    ),
)
FILES = tuple(EscapeProbe(*row) for row in _FILES)

ATTEMPTS = (*SYSTEM_CALLS, *PRIVILEGES, *GUEST, *FILES)
