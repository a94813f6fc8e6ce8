"""The bundle is a pure function: what it says is checked without a host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cubicle.drivers.common import seccomp
from cubicle.drivers.common.container import CAPABILITIES, RLIMITS
from cubicle.drivers.common.hidden import hidden
from cubicle.drivers.oci.config import (
    TERMINALS,
    BundleSpec,
    Folders,
    HostFacts,
    bundle_config,
    guest_args,
    guest_mounts,
)
from cubicle.sandbox.driver import SandboxLimits

FOLDERS = Folders(Path("/r"), Path("/u"), Path("/o"), Path("/s"), Path("/g.pyz"))


def config(limits: SandboxLimits | None = None, facts: HostFacts | None = None) -> dict[str, Any]:
    wanted = BundleSpec(
        Path("/r"),
        "/cubicle/x/y",
        1_000_000,
        limits or SandboxLimits(),
        guest_args(FOLDERS, {"LANG": "C"}),
        guest_mounts(FOLDERS),
    )
    return bundle_config(wanted, facts or HostFacts("x86_64"))


def mounts_at(target: str) -> list[dict[str, Any]]:
    return [m for m in config()["mounts"] if m["destination"] == target]


def test_every_namespace_is_its_own():
    kinds = {n["type"] for n in config()["linux"]["namespaces"]}
    assert kinds == {"user", "pid", "mount", "ipc", "uts", "network", "cgroup"}
    assert not any("path" in n for n in config()["linux"]["namespaces"])


def test_root_of_the_sandbox_is_nobody_of_the_host():
    (mapping,) = config()["linux"]["uidMappings"]
    assert mapping == {"containerID": 0, "hostID": 1_000_000, "size": 65536}
    assert config()["linux"]["gidMappings"] == [mapping]


def test_the_guest_has_its_capabilities_and_no_more():
    sets = config()["process"]["capabilities"]
    assert sets["bounding"] == sets["effective"] == sets["permitted"] == list(CAPABILITIES)
    assert sets["inheritable"] == sets["ambient"] == []
    assert "CAP_SYS_ADMIN" not in CAPABILITIES
    assert config()["process"]["noNewPrivileges"] is True


def test_limits_are_in_the_bundle_and_swap_adds_nothing():
    resources = config(SandboxLimits(memory_bytes=100 << 20, cpus=1.5, pids=7))["linux"]["resources"]
    assert resources["memory"] == {"limit": 100 << 20, "swap": 100 << 20}
    assert resources["cpu"] == {"period": 100_000, "quota": 150_000}
    assert resources["pids"] == {"limit": 7}


def test_a_host_that_does_not_count_swap_is_not_asked_to():
    assert "swap" not in config(facts=HostFacts("x86_64", swap_accounting=False))["linux"]["resources"]["memory"]


@pytest.mark.parametrize("target", ["/mnt/user-data/uploads", "/mnt/skills", "/run/cubicle/guest.pyz"])
def test_what_commands_only_read_is_mounted_read_only(target):
    (mount,) = mounts_at(target)
    assert "ro" in mount["options"]


@pytest.mark.parametrize("target", ["/mnt/user-data/outputs", "/run/cubicle/uploads", "/run/cubicle/skills"])
def test_what_is_written_is_mounted_writable_without_devices(target):
    (mount,) = mounts_at(target)
    assert {"rw", "nosuid", "nodev"} <= set(mount["options"])


def test_the_guests_folder_is_closed_to_commands():
    (mount,) = mounts_at("/run/cubicle")
    assert "mode=0700" in mount["options"]


def test_tmp_is_part_of_the_limited_disk():
    assert not mounts_at("/tmp")


def test_shared_memory_is_large_enough_for_a_browser():
    (mount,) = mounts_at("/dev/shm")
    assert "size=256m" in mount["options"]


def test_the_guest_is_told_its_socket_and_its_commands_environment():
    told = json.loads(guest_args(FOLDERS, {"LANG": "C"})[-1])
    assert told["listen_fd"] == 3
    assert told["env"] == {"LANG": "C"}
    bound = Folders(Path("/r"), Path("/u"), Path("/o"), Path("/s"), Path("/g"), socket_dir=Path("/h"))
    told = json.loads(guest_args(bound, {})[-1])
    assert "listen_fd" not in told
    assert told["socket"].startswith("/run/cubicle/")


def test_the_limits_of_a_process_are_in_the_bundle_of_gvisor_alone():
    """The other runtimes are started with them, and hand them on."""
    assert config()["process"]["rlimits"] == []
    found = config(facts=HostFacts("x86_64", gvisor=True, rlimits={"RLIMIT_CORE": 0, "RLIMIT_NOFILE": 1000}))
    assert found["process"]["rlimits"] == [
        {"type": "RLIMIT_CORE", "hard": 0, "soft": 0},
        {"type": "RLIMIT_NOFILE", "hard": 1000, "soft": 1000},
    ]


def test_no_core_dump_reaches_the_hosts_handler():
    assert RLIMITS["RLIMIT_CORE"] == 0


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_unknown_system_calls_do_not_exist(machine):
    profile = seccomp.profile(machine)
    assert (profile["defaultAction"], profile["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 38)
    assert profile["architectures"] == [seccomp.ARCHITECTURES[machine]]
    rules = {name: rule for rule in profile["syscalls"] for name in rule["names"]}
    assert rules["clone3"]["errnoRet"] == 38
    assert "io_uring_setup" not in rules


@pytest.mark.parametrize(
    "name",
    [
        "mount",
        "umount2",
        "unshare",
        "setns",
        "bpf",
        "keyctl",
        "add_key",
        "userfaultfd",
        "perf_event_open",
        "open_by_handle_at",
        "kexec_load",
        "init_module",
        "pivot_root",
        "move_mount",
        "fsopen",
        "swapon",
        "reboot",
    ],
)
def test_dangerous_system_calls_are_refused(name):
    assert name in seccomp.REFUSED
    assert name not in seccomp.ALLOWED


def test_a_clone_with_a_new_namespace_is_not_allowed():
    (rule,) = [r for r in seccomp.profile("x86_64")["syscalls"] if r["names"] == ["clone"]]
    (argument,) = rule["args"]
    assert argument["op"] == "SCMP_CMP_MASKED_EQ"
    assert argument["valueTwo"] == 0
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert argument["value"] & flag


def socket_rules(family: int, protocol: int) -> list[int | None]:
    """What the profile answers to a socket: None to let it pass, or the error."""
    found = []
    for rule in seccomp.profile("x86_64")["syscalls"]:
        asked = {0: family, 2: protocol}
        if "socket" in rule["names"] and all(asked[a["index"]] == a["value"] for a in rule["args"]):
            found.append(None if rule["action"] == "SCMP_ACT_ALLOW" else rule["errnoRet"])
    return found


@pytest.mark.parametrize(
    ("family", "protocol", "answer"),
    [
        (1, 0, [None]),
        (2, 0, [None]),
        (2, 6, [None]),
        (10, 17, [None]),
        (16, 0, [None]),  # getifaddrs
        (2, 262, [seccomp.EPROTONOSUPPORT]),  # MPTCP
        (10, 132, [seccomp.EPROTONOSUPPORT]),  # SCTP
        (16, 9, [seccomp.EPROTONOSUPPORT]),  # audit
        (16, 15, [seccomp.EPROTONOSUPPORT]),  # events of devices
        (40, 0, [seccomp.EAFNOSUPPORT]),  # VSOCK
        (17, 0, [seccomp.EAFNOSUPPORT]),  # packets
        (2, 255, []),  # no such call
        (99, 0, []),
    ],
)
def test_sockets_are_of_few_kinds(family, protocol, answer):
    assert socket_rules(family, protocol) == answer


def test_system_calls_that_take_what_the_host_has_once_do_not_exist():
    names = {name for rule in seccomp.profile("x86_64")["syscalls"] for name in rule["names"]}
    assert not names & {"io_setup", "io_submit", "memfd_secret", "io_uring_setup"}
    for call in seccomp.HUGE_PAGES:
        rules = [r for r in seccomp.profile("x86_64")["syscalls"] if call in r["names"]]
        assert [r["action"] for r in rules] == ["SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"]


def test_what_a_kernel_adds_to_proc_and_sys_is_hidden(tmp_path):
    for name in ("proc/stat", "proc/brand-new", "sys/block", "sys/fs/cgroup", "sys/fs/ext4", "sys/kernel/mm/ksm"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("proc/17", "sys/devices/system/cpu", "sys/devices/pci1", "sys/kernel/mm/transparent_hugepage"):
        (tmp_path / name).mkdir(parents=True)
    assert hidden(tmp_path) == (
        "/proc/brand-new",
        "/sys/block",
        "/sys/devices/pci1",
        "/sys/fs/ext4",
        "/sys/kernel/mm/ksm",
    )


def test_terminals_are_limited():
    (mount,) = mounts_at("/dev/pts")
    assert f"max={TERMINALS}" in mount["options"]
