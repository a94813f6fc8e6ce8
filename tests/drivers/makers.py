"""How a test makes each driver."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cubicle.drivers.docker.driver import DockerDriver
from cubicle.drivers.docker.engine import EngineAddress
from cubicle.drivers.memory import MemoryDriver
from cubicle.drivers.oci import runtimes
from cubicle.drivers.oci.driver import OciDriver
from cubicle.images.store import SUBUID_START, BuiltImage, ImageStore
from cubicle.machine.errors import Unusable
from cubicle.sandbox.driver import Driver
from cubicle.settings import load
from tests.conftest import absent
from tests.drivers.kubernetes import cluster

Maker = Callable[[], Driver]


def memory(folder: Path) -> Maker:
    return lambda: MemoryDriver(folder)


def oci(runtime: str) -> Callable[[Path], Maker]:
    def make(folder: Path) -> Maker:
        if not runtimes.find(runtime, folder):
            absent(f"needs {runtime}: scripts/packages test")
        store = ImageStore(load().image_dir)
        base = some_base(store)
        return lambda: OciDriver(folder / "data", store, base.digest, SUBUID_START, runtime=runtime)

    return make


def some_base(store: ImageStore) -> BuiltImage:
    """The smallest image that is built."""
    for variant in ("slim", "standard", "full"):
        try:
            return store.resolve(variant)
        except Unusable:
            continue
    built = store.built()
    if not built:
        absent("needs a sandbox image: make image")
    return min(built, key=lambda base: base.manifest.size)


def engine_runtimes() -> str:
    """What the engine says of the runtimes that it has."""
    asked = ["docker", "info", "--format", "{{json .Runtimes}}"]
    return subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False).stdout


def docker(runtime: str) -> Callable[[Path], Maker]:
    def make(folder: Path) -> Maker:
        if runtime and runtime not in engine_runtimes():
            absent(f"needs a Docker engine that has the runtime {runtime}: scripts/with-dockerd pytest …")
        store = ImageStore(load().image_dir)
        base, address = some_base(store), EngineAddress(load().docker_host)
        return lambda: DockerDriver(folder / "data", store, base.digest, runtime=runtime, address=address)

    return make


def podman(folder: Path) -> Maker:
    host = os.environ.get("PODMAN_HOST")
    if not host:
        absent("needs Podman's socket: scripts/with-podman pytest …")
    store = ImageStore(load().image_dir)
    base, address = some_base(store), EngineAddress(str(host))
    return lambda: DockerDriver(folder / "data", store, base.digest, address=address)


def kubernetes(folder: Path) -> Maker:
    return cluster.make(folder)


def small_cluster(folder: Path) -> Maker:
    return cluster.make_small(folder)


MAKERS = [
    pytest.param(memory, id="memory"),
    pytest.param(oci("runc"), id="oci-runc", marks=pytest.mark.oci),
    pytest.param(oci("runsc"), id="oci-runsc", marks=pytest.mark.oci),
    pytest.param(docker(""), id="docker-runc", marks=pytest.mark.docker),
    pytest.param(docker("runsc"), id="docker-runsc", marks=pytest.mark.docker),
    pytest.param(podman, id="podman", marks=pytest.mark.real),
    pytest.param(small_cluster, id="small-cluster"),
    pytest.param(kubernetes, id="kubernetes", marks=pytest.mark.kubernetes),
]


def _seldom(*names: str) -> list[Any]:
    """The makers, some of them in the long version alone."""
    return [
        pytest.param(*maker.values, id=maker.id, marks=[*maker.marks, pytest.mark.long]) if maker.id in names else maker
        for maker in MAKERS
    ]


ALIKE = _seldom("docker-runsc", "podman")
"""Those on which what the guest does is tried: on gVisor in Docker it is what it is on both alone, and takes longest;
with Podman the kernel and the guest are those of Docker."""

STORING = _seldom("oci-runsc", "docker-runsc", "podman")
"""Those on which it is tried what a driver does with files of which no process runs: the runtime has no part in that."""

ISOLATING = [
    *(maker for maker in MAKERS if maker.id not in ("memory", "small-cluster")),
    pytest.param(oci("crun"), id="oci-crun", marks=pytest.mark.oci),
]
"""Those whose sandboxes are isolated."""
