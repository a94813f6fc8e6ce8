"""The programs of a pod, and of a container on a network, each in namespaces of its own: no cluster is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cubicle.drivers.common import container_programs, seccomp
from cubicle.drivers.common.container_programs import provision
from cubicle.drivers.common.seccomp_filter import compile_filter
from cubicle.drivers.common.syscall_numbers import NUMBERS

PROGRAMS = Path(str(container_programs.__file__)).parent
ATTEMPTS = Path(__file__).with_name("network_attempts.py")
NEED_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces and owners")
# A pod's network in small: eth0, a neighbour that listens on 8000 and 9000, and a guest that listens on 8000.
_NETWORK = """
set -e
ip link set lo up
ip link add eth0 type veth peer name peer
echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
ip address add 10.99.0.2/24 dev eth0
ip link set eth0 up
unshare --net sleep 300 &
neighbour=$!
while [ "$(readlink /proc/$neighbour/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.02; done
ip link set peer netns $neighbour
inside() { nsenter --net=/proc/$neighbour/ns/net "$@"; }
inside ip link set lo up
inside ip address add 10.99.0.3/24 dev peer
inside ip link set peer up
inside "$python" "$attempts" serve 8000 9000 5353 &
"$python" "$attempts" serve 8000 &
ip route add default via 10.99.0.3
for i in $(seq 200); do "$python" "$attempts" ready 10.99.0.3 8000 && "$python" "$attempts" ready 10.99.0.2 8000 && break; done
[ "$rules" = none ] || "$python" -I -S "$programs/network_rules.py" 8000 127.0.0.11
"$python" "$attempts" answers "$neighbour"
setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs "$python" "$attempts" try
kill $(jobs -p)
"""


def network(rules: str) -> dict[str, str]:
    """What each attempt finds, from inside, as a user without capabilities."""
    env = {**os.environ, "python": sys.executable, "attempts": str(ATTEMPTS), "programs": str(PROGRAMS), "rules": rules}
    done = subprocess.run(
        ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", _NETWORK],
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        found |= json.loads(line)
    return found


OPEN = {
    "guest by loopback": "OPEN",
    "guest by own address": "OPEN",
    "neighbour": "OPEN",
    "neighbour by device": "OPEN",
    "datagram to neighbour": "SENT",
    "datagram by device": "SENT",
    "broadcast": "SENT",
    "multicast": "SENT",
    "multicast of IPv6": "SENT",
    "outside in": "OPEN",
    "outside to the guest": "OPEN",
    "own loopback": "OPEN",
    "the host by loopback": "OPEN",
    "own address": "OPEN",
    "raw socket": "EPERM",
    "packet socket": "EPERM",
    "flush the rules": "EPERM",
}
CLOSED = OPEN | {
    "guest by loopback": "ECONNREFUSED",
    "guest by own address": "ECONNREFUSED",
    "neighbour": "EHOSTUNREACH",
    "neighbour by device": "EHOSTUNREACH",
    "datagram to neighbour": "EPERM",
    "datagram by device": "EPERM",
    "broadcast": "EPERM",
    "multicast": "EPERM",
    "multicast of IPv6": "EPERM",
    "outside in": "TIMEOUT",
    "the host by loopback": "EHOSTUNREACH",
}


@NEED_ROOT
def test_the_attempts_succeed_where_no_rules_are() -> None:
    assert network("none") == OPEN


@NEED_ROOT
def test_with_the_rules_nothing_leaves_and_only_the_guest_is_reached() -> None:
    assert network("rules") == CLOSED


@NEED_ROOT
def test_without_the_right_to_set_rules_the_program_fails() -> None:
    done = subprocess.run(
        [
            *("unshare", "--net", "setpriv", "--reuid", "1000", "--clear-groups", "--bounding-set=-all"),
            *(sys.executable, str(PROGRAMS / "network_rules.py"), "8000"),
        ],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0


@NEED_ROOT
def test_folders_are_made_once_and_temporary_ones_anew(tmp_path: Path) -> None:
    home, volume = tmp_path / "image-home", tmp_path / "volume"
    (home / "sub").mkdir(parents=True)
    (home / "sub" / "file").write_text("from the image")
    (home / "link").symlink_to("/etc/passwd")
    volume.mkdir()
    (volume / "home.new").mkdir()  # of a start that was cut off
    (volume / "home.new" / "half").write_text("")
    provision.provision(str(volume), str(home))
    assert (volume / "home" / "sub" / "file").read_text() == "from the image"
    assert (volume / "home" / "sub" / "file").stat().st_uid == 1000
    assert (volume / "home" / "link").is_symlink()
    assert not (volume / "home" / "half").exists()
    found = {entry.name: (entry.stat().st_uid, entry.stat().st_mode & 0o7777) for entry in volume.iterdir()}
    assert found == {
        "home": (1000, 0o755),
        "outputs": (1000, 0o755),
        "uploads": (0, 0o755),
        "skills": (0, 0o755),
        "records": (0, 0o700),
        "tmp": (0, 0o1777),
        "vartmp": (0, 0o1777),
    }
    (volume / "home" / "mine").write_text("kept")
    (volume / "tmp" / "old").write_text("gone")
    provision.provision(str(volume), str(home))
    assert (volume / "home" / "mine").read_text() == "kept"
    assert not (volume / "tmp" / "old").exists()
    assert not list(volume.glob("*.new"))


_GIVEN_UP = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import launcher
launcher.give_up([12, 8])
os.execv("/bin/sh", ["sh", "-c", "grep ^Cap /proc/self/status"])
"""


@NEED_ROOT
def test_capabilities_that_are_given_up_do_not_come_back() -> None:
    """Root of a new program would get all that are in the bounding set, or inherited."""
    kept, both = "0x" + f"{1 << 6 | 1 << 7:x}", f"{1 << 6 | 1 << 7 | 1 << 8 | 1 << 12:x}"
    words = ["setpriv", "--inh-caps=-all,+setgid,+setuid,+setpcap,+net_admin"]
    words += ["--bounding-set=-all,+setgid,+setuid,+setpcap,+net_admin", "--no-new-privs"]
    show = [*words, "grep", "^CapEff", "/proc/self/status"]
    before = subprocess.run(show, capture_output=True, text=True, timeout=60, check=True).stdout
    assert int(before.split()[1], 16) == int(both, 16)
    done = subprocess.run(
        [*words, sys.executable, "-c", _GIVEN_UP, str(PROGRAMS)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {line.split()[0]: int(line.split()[1], 16) for line in done.stdout.splitlines()}
    assert set(found.values()) <= {0, int(kept, 16)}
    assert found["CapEff:"] == int(kept, 16)


_FILTERED = """
import sys
sys.path.insert(0, sys.argv[1])
import launcher
launcher.apply_filter(sys.argv[2])
import ctypes, errno, json, mmap, os, socket, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    return errno.errorcode.get(ctypes.get_errno(), "OK") if libc.syscall(number, *arguments) < 0 else "OK"
def made(family, kind, protocol=0):
    try: socket.socket(family, kind, protocol).close(); return "OK"
    except OSError as error: return errno.errorcode[error.errno]
numbers = json.loads(sys.argv[3])
print(json.dumps({
    "unix": made(1, 1), "inet": made(2, 1), "inet6": made(10, 2), "route": made(16, 3, 0),
    "vsock": made(40, 1), "alg": made(38, 5), "packet": made(17, 3), "mptcp": made(2, 1, 262), "audit": made(16, 3, 9),
    "netfilter": made(16, 3, 12),
    "io_uring": call(425, 1, 0), "unshare": call(numbers["unshare"], 0x10000000), "clone3": call(numbers["clone3"], 0, 0),
    "namespace": call(numbers["clone"], 0x10000000 | 17, 0, 0, 0, 0), "bpf": call(numbers["bpf"], 0, 0, 0),
    "keyctl": call(numbers["keyctl"], 0, 0, 0, 0, 0), "huge": call(numbers["mmap"], 0, 1 << 21, 3, 0x40022, -1, 0),
    "personality": call(numbers["personality"], 0xFFFFFFFF), "odd personality": call(numbers["personality"], 0x40000),
    "x32": call(0x40000000 | 39), "unknown": call(9999),
    "program": subprocess.run(["bash", "-c", "echo $(echo fine)"], capture_output=True, text=True).stdout.strip(),
}))
"""


def test_the_filter_does_what_the_profile_says(tmp_path: Path) -> None:
    machine = os.uname().machine
    if machine not in NUMBERS:
        pytest.fail(f"no numbers of system calls for {machine}")
    file = tmp_path / "filter"
    file.write_bytes(compile_filter(machine))
    words = [sys.executable, "-c", _FILTERED, str(PROGRAMS), str(file), json.dumps(NUMBERS[machine])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        **dict.fromkeys(("unix", "inet", "inet6", "route", "personality"), "OK"),
        **dict.fromkeys(("vsock", "alg", "packet"), "EAFNOSUPPORT"),
        **dict.fromkeys(("mptcp", "audit", "netfilter"), "EPROTONOSUPPORT"),
        **dict.fromkeys(("io_uring", "clone3", "unknown", "x32", "namespace", "odd personality"), "ENOSYS"),
        **dict.fromkeys(("unshare", "bpf", "keyctl"), "EPERM"),
        "huge": "ENOMEM",
        "program": "fine",
    }


@pytest.mark.parametrize("machine", NUMBERS)
def test_every_name_of_the_profile_has_a_number_or_is_of_another_machine(machine: str) -> None:
    known = set(NUMBERS["x86_64"]) | set(NUMBERS["aarch64"])
    of_32_bits = {name for name in seccomp.ALLOWED | seccomp.REFUSED if name not in known}
    assert all(name.endswith(("32", "64")) or name in _OLD for name in of_32_bits), of_32_bits
    assert len(compile_filter(machine)) // 8 < 4096
    assert len(set(NUMBERS[machine].values())) == len(NUMBERS[machine])


_OLD = {"recv", "send", "stime", "ugetrlimit", "umount", "waitpid"}
