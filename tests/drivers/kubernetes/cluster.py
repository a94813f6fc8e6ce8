"""The cluster of the tests: a namespace of this run, with a volume, and a service that may do what deploy/ allows it."""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import secrets
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cubicle.drivers.common.guest_tcp import GuestKeys
from cubicle.drivers.kubernetes.cluster import Cluster, find_cluster
from cubicle.drivers.kubernetes.driver import KubernetesDriver
from cubicle.drivers.kubernetes.template import PodTerms
from cubicle.sandbox.driver import SandboxLimits
from tests.conftest import absent
from tests.support import small_cluster

_DEPLOY = Path(__file__).parents[3] / "deploy" / "kubernetes"
LIMITS = SandboxLimits(memory_bytes=1024**3)


@dataclass(frozen=True)
class TestCluster:
    """What a test needs to know of it."""

    __test__ = False
    namespace: str
    image: str
    kubeconfig: Path
    folder: Path | None
    """Files of a private cluster."""

    def find(self) -> Cluster:
        return find_cluster(self.kubeconfig, "", "", self.namespace)

    @property
    def volume(self) -> Path:
        assert self.folder is not None
        return self.folder / "volumes" / self.namespace

    def cut(self, node: str, off: bool = True) -> None:
        """Take the node off the network, or put it back; its processes run on."""
        assert self.folder is not None
        switch = f"k{self.folder.name.rpartition('.')[2].lower()}-switch"
        state = "down" if off else "up"
        subprocess.run(["ip", "-n", switch, "link", "set", f"to-{node}", state], check=True, timeout=10)

    def kill_api_server(self) -> None:
        """As kill -9 does."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"/kube-apiserver") and f"{self.folder}/".encode() in b" ".join(words):
                    os.kill(int(process.name), signal.SIGKILL)

    def start_api_server(self) -> None:
        """It ends with the cluster, and is none of this run's processes: it gets nothing of its environment."""
        assert self.folder is not None
        command = f"setsid env -i PATH=$PATH {self.folder}/api-server </dev/null >>{self.folder}/api-server.log 2>&1 &"
        subprocess.run(["bash", "-c", command], check=True, timeout=10, cwd="/")


def private() -> TestCluster:
    """A cluster whose parts may be taken away."""
    cluster = test_cluster()
    if cluster.folder is None:
        pytest.skip("takes parts of the cluster away, which is done to a private one only")
    return cluster


def kubectl(*words: str, told: str | None = None, check: bool = True) -> str:
    """As the cluster's administrator."""
    done = subprocess.run(["kubectl", *words], input=told, capture_output=True, text=True, timeout=120, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


def warnings(namespace: str) -> str:
    """What the cluster itself says is wrong, the last ten of it; one in this process says nothing."""
    if not os.environ.get("KUBECONFIG"):
        return ""
    selected = ("--field-selector", "type=Warning", "--sort-by", ".lastTimestamp", "--no-headers")
    return "\n".join(kubectl("-n", namespace, "get", "events", *selected, check=False).splitlines()[-10:])


@functools.cache
def test_cluster() -> TestCluster:
    if not os.environ.get("KUBECONFIG"):
        absent("needs a cluster: scripts/with-kubernetes pytest …")
    folder = Path(found) if (found := os.environ.get("CUBICLE_KUBERNETES_FOLDER")) else None
    image = os.environ.get("CUBICLE_KUBERNETES_IMAGE", "")
    assert image, "CUBICLE_KUBERNETES_IMAGE has to name a sandbox image that the cluster can pull"
    namespace = f"cubicle-{secrets.token_hex(4)}"
    kubectl("create", "namespace", namespace)
    volume = f"{namespace}-files"
    atexit.register(_remove, namespace, volume)
    cluster = TestCluster(namespace, image, Path(os.environ["KUBECONFIG"]), folder)
    claim: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "cubicle-files", "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "10Gi"}}},
    }
    if folder is not None:
        cluster = replace(cluster, kubeconfig=folder / "service.kubeconfig")
        cluster.volume.mkdir(parents=True)
        claim["spec"] |= {"storageClassName": "", "volumeName": volume}
        kubectl("apply", "-f", "-", told=json.dumps(_volume(volume, cluster.volume)))
    kubectl("apply", "-f", "-", told=json.dumps(claim))
    role = yaml.safe_load((_DEPLOY / "role.yaml").read_text())
    kubectl("-n", namespace, "apply", "-f", "-", told=json.dumps(role))
    kubectl("-n", namespace, "create", "rolebinding", "cubicle", "--role=cubicle", "--user=cubicle-service")
    kubectl("-n", namespace, "apply", "-f", str(_DEPLOY / "network-policy.yaml"))
    return cluster


def make_volumes(count: int) -> str:
    """So many volumes that claims of one sandbox may have; the name of their storage class."""
    cluster = test_cluster()
    kind = f"{cluster.namespace}-{secrets.token_hex(2)}"
    for number in range(count):
        path = cluster.volume.parent / f"{kind}-{number}"
        path.mkdir()
        body = _volume(f"{kind}-{number}", path)
        body["spec"] |= {"accessModes": ["ReadWriteOnce"], "storageClassName": kind}
        kubectl("apply", "-f", "-", told=json.dumps(body))
        atexit.register(kubectl, "delete", "persistentvolume", f"{kind}-{number}", "--wait=false", check=False)
    return kind


def _volume(name: str, path: Path) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": str(path)},
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }


def _remove(namespace: str, volume: str) -> None:
    kubectl("delete", "namespace", namespace, "--wait=false", check=False)
    kubectl("delete", "persistentvolume", volume, "--wait=false", check=False)


def make(
    folder: Path, *, pool_size: int = 0, change: Callable[[PodTerms], PodTerms] = lambda terms: terms
) -> Callable[[], KubernetesDriver]:
    """Makes drivers over one and the same state, which the folder stands for; other processes can be given it."""
    cluster = test_cluster()
    instance = "t" + hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    terms = change(PodTerms(instance=instance, image=cluster.image, limits=LIMITS))
    return functools.partial(KubernetesDriver, cluster.find, _key_file(folder), terms, pool_size=pool_size)


def make_small(folder: Path, *, pool_size: int = 0) -> Callable[[], KubernetesDriver]:
    """The same on a cluster in one process, which has no image: sandboxes see the host's programs."""
    if os.geteuid() != 0:
        absent("needs root: pods of the small cluster are namespaces")
    running = small_cluster.Running(folder)
    terms = PodTerms(instance="small", image="host", limits=LIMITS)
    found = functools.partial(Cluster, running.server, None, "test")
    return functools.partial(KubernetesDriver, found, _key_file(folder), terms, pool_size=pool_size)


def _key_file(folder: Path) -> Path:
    """The key of the guests; one for all tests of a process, as each takes a tenth of a second to make."""
    file = folder / "guest-key.pem"
    if not file.exists():
        file.write_bytes(_key())
    return file


@functools.cache
def _key() -> bytes:
    return GuestKeys.generate().to_pem()
