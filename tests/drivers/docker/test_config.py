"""The container of a sandbox, as the engine is told."""

from __future__ import annotations

import io
import json
import resource
import tarfile
from pathlib import Path

import pytest

from cubicle.drivers.common.checks import Verdict
from cubicle.drivers.docker import config, engine
from cubicle.drivers.docker.checks import sharing
from cubicle.drivers.docker.config import ContainerSpec, EngineFacts
from cubicle.guest.guest_config import GuestConfig
from cubicle.machine.errors import Unusable
from cubicle.sandbox.driver import SandboxLimits

LIMITED = {"core", "sigpending", "msgqueue", "memlock"}
LIMITS = SandboxLimits(memory_bytes=1 << 30, cpus=1.5, pids=100, disk_bytes=1 << 32)


def container(facts: EngineFacts | None = None, socket_dir: Path | None = Path("/data/one/host")) -> dict:
    wanted = ContainerSpec("inst", "one", "image:tag", "digest", {"LANG": "C.UTF-8"}, LIMITS, socket_dir)
    return config.container(wanted, facts or EngineFacts("aarch64"))


def test_nothing_is_given_that_is_not_needed():
    host = container()["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["CapDrop"] == ["ALL"]
    assert set(host["CapAdd"]) == {"CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID", "SYS_PTRACE"}
    assert host["Privileged"] is False
    assert "no-new-privileges" in host["SecurityOpt"]
    assert "Devices" not in host
    assert "Binds" not in host


def test_no_limit_of_a_process_is_above_the_engines_own():
    for limit in container()["HostConfig"]["Ulimits"]:
        hard = resource.getrlimit(getattr(resource, f"RLIMIT_{limit['Name'].upper()}"))[1]
        assert limit["Soft"] == limit["Hard"]
        assert hard == resource.RLIM_INFINITY or limit["Hard"] <= hard


def test_what_the_host_shows_of_itself_is_hidden_also_where_it_cannot_be_looked_at():
    hidden = set(container()["HostConfig"]["MaskedPaths"])
    assert {
        "/sys/block",
        "/sys/devices/virtual",
        "/sys/fs/ext4",
        "/sys/kernel",
        "/proc/fs",
        "/proc/diskstats",
    } <= hidden
    (mask,) = [
        o for o in container(EngineFacts("aarch64", podman=True))["HostConfig"]["SecurityOpt"] if o.startswith("mask=")
    ]
    assert {"/sys/block", "/proc/fs"} <= set(mask.removeprefix("mask=").split(":"))
    assert hidden <= set(config.facts_of_host(EngineFacts("aarch64")).hidden)


@pytest.mark.parametrize("remapped", [False, True])
def test_that_sandboxes_of_an_engine_share_is_told(remapped):
    check = sharing(EngineFacts("aarch64", user_namespace=remapped))
    assert check.verdict is Verdict.WEAK
    assert ("engine's root" in check.found) is remapped
    assert "runsc" in check.fix
    assert sharing(EngineFacts("aarch64", gvisor=True)).verdict is Verdict.GOOD


def test_the_seccomp_profile_is_the_embedded_drivers_without_message_queues():
    (option,) = [o for o in container()["HostConfig"]["SecurityOpt"] if o.startswith("seccomp=")]
    profile = json.loads(option.removeprefix("seccomp="))
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    (clone3,) = [rule for rule in profile["syscalls"] if "clone3" in rule["names"]]
    assert clone3["errnoRet"] == 38
    assert "mq_open" not in {name for rule in profile["syscalls"] for name in rule["names"]}


def test_podman_is_told_the_same_in_its_own_way(tmp_path: Path):
    """Its seccomp option names a file, and what limits it is not told it raises, which takes a capability."""
    host = container(EngineFacts("aarch64", podman=True, seccomp_file=tmp_path / "seccomp.json"))["HostConfig"]
    assert f"seccomp={tmp_path}/seccomp.json" in host["SecurityOpt"]
    assert {limit["Name"] for limit in host["Ulimits"]} == {*LIMITED, "nofile", "nproc"}
    far = container(EngineFacts("aarch64", podman=True), None)["HostConfig"]
    assert not any(option.startswith("seccomp=") for option in far["SecurityOpt"])
    assert {limit["Name"] for limit in container()["HostConfig"]["Ulimits"]} == LIMITED


async def test_podman_is_known_and_its_machine_is_named_as_the_kernel_does():
    facts, sockets = await engine.examine(Engine(Architecture="arm64", BuildahVersion="1.28.2"), "")  # type: ignore[arg-type]
    assert (facts.podman, facts.machine, sockets) == (True, "aarch64", True)
    facts, _ = await engine.examine(Engine(), "")  # type: ignore[arg-type]
    assert not facts.podman


def test_a_guest_on_tcp_is_closed_in_before_it_starts():
    """Its first program needs two more rights, which it gives up before it becomes the guest."""
    spec = ContainerSpec(
        "inst", "one", "image:tag", "digest", {}, LIMITS, None, tcp=config.TcpGuest("bridge", ("abc",))
    )
    made = config.container(spec, EngineFacts("aarch64"))
    host = made["HostConfig"]
    assert (host["NetworkMode"], made["NetworkDisabled"]) == ("bridge", False)
    assert host["PortBindings"] == {"8000/tcp": [{"HostIp": "", "HostPort": ""}]}
    assert set(host["CapAdd"]) - set(container()["HostConfig"]["CapAdd"]) == {"NET_ADMIN", "SETPCAP"}
    assert not any(
        option.startswith("seccomp=") for option in host["SecurityOpt"]
    )  # its launcher brings a stricter one
    shell, flag, script, *_, told = made["Entrypoint"]
    assert (shell, flag) == ("/bin/sh", "-c")
    assert script.index("network_rules.py 8000 127.0.0.11") < script.index("exec")
    assert script.rstrip().endswith("12 8")  # NET_ADMIN, SETPCAP
    guest = GuestConfig.decode_line(told.encode())
    assert (guest.socket, guest.tcp, guest.identity, list(guest.keys)) == ("", 8000, "inst-one", ["abc"])
    assert made["Labels"][config.TERMS] != container()["Labels"][config.TERMS]
    with tarfile.open(fileobj=io.BytesIO(config.guest_archive(b"", "/", config.tcp_programs("aarch64")))) as tar:
        names = {entry.name: entry.mode for entry in tar}
    assert {names[f"run/cubicle/{name}"] for name in ("network_rules.py", "launcher.py", "seccomp-aarch64")} == {0o600}


def test_limits_are_told():
    host = container()["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"], host["PidsLimit"]) == (
        1 << 30,
        1 << 30,
        15 * 10**8,
        100,
    )
    assert "StorageOpt" not in host
    assert container(EngineFacts("aarch64", disk_quota=True))["HostConfig"]["StorageOpt"] == {"size": str(1 << 32)}
    assert container(EngineFacts("aarch64", gvisor=True))["HostConfig"]["PidsLimit"] == 800


def test_only_the_socket_folder_is_of_the_host_and_no_engine_socket_is_mounted():
    mounts = container()["HostConfig"]["Mounts"]
    assert [m["Source"] for m in mounts if m["Type"] == "bind"] == ["/data/one/host"]
    assert not [m for m in container(socket_dir=None)["HostConfig"]["Mounts"] if m["Type"] == "bind"]
    read_only = {m["Target"] for m in mounts if m.get("ReadOnly")}
    assert read_only == {"/mnt/user-data/uploads", "/mnt/skills"}
    assert {m["Target"] for m in mounts if not m.get("ReadOnly")} == {
        "/run/cubicle/uploads",
        "/run/cubicle/skills",
        "/run/cubicle/host",
    }


def test_coding_agents_can_be_read_and_not_written():
    wanted = ContainerSpec("inst", "one", "image:tag", "digest", {}, LIMITS, None, agents=Path("/images/agents"))
    mounts = config.container(wanted, EngineFacts("aarch64"))["HostConfig"]["Mounts"]
    (bind,) = [m for m in mounts if m["Type"] == "bind"]
    assert (bind["Source"], bind["Target"], bind["ReadOnly"]) == ("/images/agents", "/opt/agents", True)


def test_a_name_tells_the_owner():
    blank, owned = config.container_name("inst", "one", None), config.container_name("inst", "one", "a" * 32)
    assert config.owner_of("inst", f"/{blank}") is None
    assert config.owner_of("inst", f"/{owned}") == "a" * 32


def test_the_guest_lies_in_a_folder_that_only_root_enters():
    with tarfile.open(fileobj=io.BytesIO(config.guest_archive(b"program"))) as tar:
        modes = {entry.name: (entry.mode, entry.uid, entry.isdir()) for entry in tar}
    assert modes["run/cubicle"] == (0o700, 0, True)
    assert modes["run/cubicle/guest.pyz"] == (0o600, 0, False)


class Engine:
    """An engine that only tells about itself."""

    def __init__(self, **info: object) -> None:
        self.system = self
        self._info = {"Architecture": "aarch64", "CgroupVersion": "2", **info}

    async def info(self) -> dict:
        return self._info


GVISOR = {"runsc": {"path": "/usr/bin/runsc", "runtimeArgs": list(engine.GVISOR_ARGUMENTS)}}


@pytest.mark.parametrize(
    ("runtime", "known", "sockets"),
    [
        ("", {}, True),
        ("runc", {"runc": {}}, True),
        ("runsc", GVISOR, True),
        ("runsc", {"runsc": {"path": "runsc", "runtimeArgs": ["--overlay2=none"]}}, False),
        ("kata", {"kata": {"path": "kata"}}, False),
    ],
)
async def test_a_guest_is_reached_by_a_socket_where_that_can_be_shared(runtime, known, sockets):
    _, found = await engine.examine(Engine(Runtimes=known), runtime)  # type: ignore[arg-type]
    assert found is sockets


@pytest.mark.parametrize(
    ("runtime", "known", "said"),
    [
        ("runsc", {"runc": {}}, "has no runtime runsc"),
        ("runsc", {"runsc": {"path": "runsc", "runtimeArgs": []}}, "--overlay2=none"),
    ],
)
async def test_an_engine_that_would_not_do_is_refused_in_words(runtime, known, said):
    with pytest.raises(Unusable, match=said):
        await engine.examine(Engine(Runtimes=known), runtime)  # type: ignore[arg-type]


async def test_what_the_engine_offers_is_seen():
    facts, _ = await engine.examine(
        Engine(  # type: ignore[arg-type]
            SecurityOptions=["name=seccomp", "name=userns"],
            Driver="overlay2",
            DriverStatus=[["Backing Filesystem", "xfs"]],
        ),
        "",
    )
    assert facts.user_namespace
    assert facts.disk_quota
