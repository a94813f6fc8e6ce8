"""The chart on a real cluster: what the API server says of every object, and a service that Helm installs."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.conftest import absent
from tests.drivers.kubernetes import cluster, service_image
from tests.drivers.kubernetes.cluster import kubectl
from tests.support.helm import CHART, REQUIRED, helm, merged, render
from tests.support.service import ACCEPT, messages, text
from tests.test_helm_chart import EVERYTHING, SEVERAL

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]
RELEASE = "rel"


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    """Of the service; sandboxes are in that of the other tests."""
    name = f"{cluster.test_cluster().namespace}-service"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false", check=False)


@pytest.mark.parametrize("more", [{}, EVERYTHING, SEVERAL], ids=["defaults", "everything", "several"])
def test_the_api_server_takes_every_object(namespace: str, more: dict[str, Any]) -> None:
    apart = {"sandboxes": {"namespace": cluster.test_cluster().namespace, "createNamespace": False}}
    values = merged(merged(REQUIRED, more), apart)
    version = json.loads(kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
    found = render(values, "--namespace", namespace, "--kube-version", version)
    objects = [one for one in found if one["kind"] != "ServiceMonitor"]  # its CRD is not here
    listed = json.dumps({"kind": "List", "apiVersion": "v1", "items": objects})
    shown = kubectl("apply", "--dry-run=server", "-f", "-", told=listed)
    assert len(shown.splitlines()) == len(objects) >= 11


@dataclass
class Installed:
    """A release that serves."""

    namespace: str
    release: str = RELEASE
    instance: str = "charted"
    key: str = "a-key-of-the-test"

    def pods(self) -> list[dict[str, Any]]:
        chosen = ("-l", f"app.kubernetes.io/name=cubicle,app.kubernetes.io/instance={self.release}", "-o", "json")
        found = json.loads(kubectl("-n", self.namespace, "get", "pods", *chosen))["items"]
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    def addresses(self) -> list[str]:
        return [f"http://{pod['status']['podIP']}:8081" for pod in self.pods()]

    def address(self) -> str:
        (only,) = self.addresses()
        return only

    async def bash(self, command: str, address: str = "") -> str:
        params = {"name": "bash_tool", "arguments": {"command": command, "description": "test"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {"Authorization": f"Bearer {self.key}", "Accept": ACCEPT, "X-Chat-Id": "charted"}
        async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
            address = address or await asyncio.to_thread(self.address)
            answer = await client.post(f"{address}/mcp", json=body, headers=headers)
        result = messages(answer)[-1]["result"]
        assert not result["isError"], result
        return text(result)

    def helm(self, verb: str, more: dict[str, Any]) -> None:
        ours = cluster.test_cluster()
        server = ours.find().server
        host, _, port = server.removeprefix("https://").rpartition(":")
        repository, _, tag = service_image.NAME.rpartition(":")
        values: dict[str, Any] = {
            "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
            "secret": {"apiKey": self.key},
            "apiServer": {"host": host, "port": port},  # this cluster has no kube-proxy
            "persistence": {"enabled": False},  # nor a provisioner of volumes
            "sandboxes": {
                "image": ours.image,
                "namespace": ours.namespace,
                "instance": self.instance,
                "files": {"existingClaim": "cubicle-files"},
                "limits": {"memoryMb": 1024},
                "pool": {"size": 2},
            },
        }
        words = (verb, self.release, str(CHART), "--namespace", self.namespace, "--wait", "--timeout", "10m")
        done = helm(*words, values=merged(values, more), check=False)
        if done.returncode:
            chosen = ("-l", f"app.kubernetes.io/instance={self.release}", "--tail=40", "--prefix")
            logs = kubectl("-n", self.namespace, "logs", *chosen, check=False)
            shown = kubectl("-n", self.namespace, "describe", "pods", check=False)
            raise AssertionError(f"{done.stderr[-2000:]}\n{logs[-4000:]}\n{shown[-4000:]}")


@pytest.fixture(scope="module")
def installed(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    ours = cluster.test_cluster()
    if ours.folder is None:
        absent("needs the private cluster, whose nodes take an image without a registry: scripts/with-kubernetes")
    assert ours.folder is not None
    service_image.bring_in(ours.folder, ours.image, tmp_path_factory.mktemp("image"))
    release = Installed(namespace)
    release.helm("install", {})
    yield release
    remove(release)


def remove(release: Installed) -> None:
    helm("uninstall", release.release, "--namespace", release.namespace, "--wait", check=False)
    made = ("deployments,pods,leases,configmaps", "-l", f"app.kubernetes.io/instance={release.instance}")
    kubectl("-n", cluster.test_cluster().namespace, "delete", *made, "--wait=false", check=False)


@pytest.fixture
def several(installed: Installed) -> Iterator[Installed]:
    """Two replicas that share a claim."""
    release = Installed(installed.namespace, "two", "charted2")
    claim = make_shared_claim(release.namespace)
    release.helm("install", {"replicas": 2, "persistence": {"enabled": True, "existingClaim": claim}})
    yield release
    remove(release)
    kubectl("delete", "persistentvolume", claim, "--wait=false", check=False)


def make_shared_claim(namespace: str) -> str:
    """A folder of this machine, which both nodes are on; the service's user may write there."""
    name = f"{namespace}-shared"
    folder = cluster.test_cluster().volume.parent / name
    folder.mkdir()
    os.chown(folder, 10001, 10001)
    modes = {"accessModes": ["ReadWriteMany"]}
    volume = {**modes, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}}
    claim = {**modes, "storageClassName": "", "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
    items = [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": claim},
    ]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    kubectl("-n", namespace, "apply", "-f", "-", told=listed)
    return name


@pytest.mark.long
async def test_a_chat_works_in_a_service_that_helm_installed(installed: Installed) -> None:
    started = time.monotonic()
    assert await installed.bash("id -un; hostname; echo kept > ~/kept") == "assistant\ncubicle\n"
    assert time.monotonic() - started < 60
    chosen = ("-l", "app.kubernetes.io/instance=charted,cubicle.dev/state=taken", "-o", "name")
    pods = await asyncio.to_thread(kubectl, "-n", cluster.test_cluster().namespace, "get", "pods", *chosen)
    assert len(pods.split()) == 1


@pytest.mark.long
async def test_the_isolation_is_proved_from_inside_the_service(installed: Installed) -> None:
    headers = {"Authorization": f"Bearer {installed.key}"}
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        found = await client.get(f"{await asyncio.to_thread(installed.address)}/health/walls", headers=headers)
    told = found.json()
    assert "missing" not in [finding["verdict"] for finding in told["findings"]]
    assert told["attempts"] > 60


@pytest.mark.long
async def test_the_metrics_are_for_whoever_has_the_token(installed: Installed) -> None:
    shown = await asyncio.to_thread(kubectl, "-n", installed.namespace, "get", "secret", RELEASE, "-o", "json")
    token = base64.b64decode(json.loads(shown)["data"]["metrics-token"]).decode()
    address = await asyncio.to_thread(installed.address)
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        assert (await client.get(f"{address}/metrics")).status_code == 401
        read = await client.get(f"{address}/metrics", headers={"Authorization": f"Bearer {token}"})
    assert "cubicle_build_info" in read.text


@pytest.mark.long
async def test_an_upgrade_keeps_chats_keys_and_files(installed: Installed) -> None:
    secret = ("-n", installed.namespace, "get", "secret", RELEASE, "-o", "jsonpath={.data}")
    before, keys = await asyncio.to_thread(installed.address), await asyncio.to_thread(kubectl, *secret)
    await installed.bash("echo kept > ~/kept; setsid sleep 3600 </dev/null >/dev/null 2>&1 &")
    await asyncio.to_thread(installed.helm, "upgrade", {"settings": {"COMMAND_TIMEOUT": 60}})
    assert await asyncio.to_thread(installed.address) != before
    assert await asyncio.to_thread(kubectl, *secret) == keys
    assert await installed.bash("cat ~/kept; pgrep -c sleep") == "kept\n1\n"


@pytest.mark.long
async def test_a_release_that_is_installed_again_finds_its_chats(installed: Installed) -> None:
    """Keys and claims stay after an uninstall, and so do pods and records, which the service made."""
    await installed.bash("echo still > ~/there; setsid sleep 3165 </dev/null >/dev/null 2>&1 &")
    await asyncio.to_thread(helm, "uninstall", RELEASE, "--namespace", installed.namespace, "--wait")
    gone = ("-n", installed.namespace, "wait", "pods", "-l", "app.kubernetes.io/name=cubicle", "--for=delete")
    await asyncio.to_thread(kubectl, *gone, "--timeout=100s", check=False)
    await asyncio.to_thread(installed.helm, "install", {})
    assert await installed.bash("cat ~/there; pgrep -cfx 'sleep 3165'") == "still\n1\n"


@pytest.mark.long
async def test_each_of_two_replicas_answers_for_the_same_chat(several: Installed) -> None:
    first, second = await asyncio.to_thread(several.addresses)
    await several.bash("echo $RANDOM > ~/drawn", first)
    assert await several.bash("cat ~/drawn", second) == await several.bash("cat ~/drawn", first)
