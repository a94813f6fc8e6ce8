"""Many chats in a cluster, without their containers: the records, claims, watch and sweeper of the driver on a real API
server, against fake kubelets.

    scripts/with-kubernetes python -m bench.scale [--chats 10000] [--blank 200] [--rate 20] [--seconds 60]

Chats are Leases and pods as the driver makes them, bound to fake nodes. A replica (bench/scale_replica.py) then lists,
finds, connects, claims and sweeps; everything shares this machine. Nothing of it is left in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.report import Report, percentile
from bench.scale_nodes import node_name
from bench.scale_terms import Terms, owner
from cubicle.drivers.kubernetes import template
from cubicle.drivers.kubernetes.driver import KubernetesDriver
from cubicle.drivers.kubernetes.objects import BOUND, Record, pods_selector
from cubicle.sandbox.warm_pool import new_name

CLAIM_P99_MS = 500.0
REPLICA_MB = 400.0
_AT_ONCE = 24
_A_NODE = 200
_ROLE = Path(__file__).parents[1] / "deploy" / "kubernetes" / "role.yaml"
_PROGRAMS = ("kube-apiserver", "etcd", "kube-controller", "kube-scheduler")


def kubectl(*words: str, told: str | None = None, check: bool = True) -> str:
    """As the cluster's administrator."""
    done = subprocess.run(["kubectl", *words], input=told, capture_output=True, text=True, timeout=600, check=False)
    if check and done.returncode:
        raise SystemExit(f"kubectl {' '.join(words)}: {done.stderr}")
    return done.stdout


@dataclass
class Outcome:
    """What one run found."""

    terms: Terms
    loaded_seconds: float
    running_seconds: float
    pod_bytes: int
    lease_bytes: int
    replica: dict[str, Any]
    control_plane: dict[str, tuple[float, float]]
    """MiB and processor seconds of each program, since it was started."""

    @property
    def claim_p99(self) -> float:
        return percentile(self.replica["claims"] + self.replica["cold"], 0.99)


@asynccontextmanager
async def cluster(terms: Terms, *, clean: bool) -> AsyncIterator[None]:
    """A namespace, rights for the service, and fake nodes. Everything goes at the end, with `clean`."""
    await asyncio.to_thread(kubectl, "create", "namespace", terms.namespace)
    nodes = None
    try:
        role = json.dumps(yaml.safe_load(_ROLE.read_text()))
        await asyncio.to_thread(kubectl, "-n", terms.namespace, "apply", "-f", "-", told=role)
        bind = ("create", "rolebinding", "cubicle", "--role=cubicle", "--user=cubicle-service")
        await asyncio.to_thread(kubectl, "-n", terms.namespace, *bind)
        await asyncio.to_thread(kubectl, "apply", "-f", "-", told=_volume(terms.namespace))
        count = (terms.chats + terms.blank + int(terms.rate * terms.seconds)) // _A_NODE + 2
        argv = [sys.executable, "-m", "bench.scale_nodes", terms.namespace, str(count), terms.label]
        nodes = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
        assert nodes.stdout is not None
        async with asyncio.timeout(120):
            if await nodes.stdout.readline() != b"ready\n":
                raise SystemExit("the fake nodes do not start")
        yield
    finally:
        if clean:  # before the nodes, which end the pods
            gone = ("delete", "namespace", terms.namespace, "--timeout=600s")
            await asyncio.to_thread(kubectl, *gone, check=False)
        if nodes is not None:
            nodes.terminate()
            await nodes.wait()
        if clean:
            await asyncio.to_thread(_remove_nodes, terms.label)
            await asyncio.to_thread(kubectl, "delete", "persistentvolume", terms.namespace, "--wait=false", check=False)


def _volume(namespace: str) -> str:
    """A claim that is bound, which the scheduler wants to see; nobody mounts it."""
    size, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
    volume = {"capacity": size, "accessModes": modes, "hostPath": {"path": "/nonexistent"}}
    claim = {"accessModes": modes, "storageClassName": "", "volumeName": namespace, "resources": {"requests": size}}
    names = ({"name": namespace}, {"name": "cubicle-files", "namespace": namespace})
    items = [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": names[0], "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": names[1], "spec": claim},
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _remove_nodes(label: str) -> None:
    kubectl("delete", "nodes", "-l", f"cubicle.dev/fake={label}", "--wait=false", check=False)
    leases = kubectl("-n", "kube-node-lease", "get", "leases", "-o", "name", check=False).split()
    ours = [name for name in leases if name.startswith(f"lease.coordination.k8s.io/{label}-")]
    if ours:
        kubectl("-n", "kube-node-lease", "delete", *ours, "--wait=false", check=False)


async def load(driver: KubernetesDriver, terms: Terms) -> tuple[float, float]:
    """Make the chats: seconds until all were written, and until all pods ran."""
    began = time.perf_counter()
    gate = asyncio.Semaphore(_AT_ONCE)
    extra = {"nodeSelector": None}

    async def one(number: int) -> None:
        async with gate:
            name = new_name()
            record = await driver._records.create(Record("chat", name, owner(number), pod=name, step=BOUND))
            body = template.sandbox_pod(driver._terms, name, name, record)
            body["spec"] |= {"nodeName": node_name(terms.label, number // _A_NODE), **extra}
            await driver._pods.create(body)
            if number % 1000 == 999:
                print(f"  {number + 1} chats, {time.perf_counter() - began:.0f} s", file=sys.stderr)

    await asyncio.gather(*map(one, range(terms.chats)))
    written = time.perf_counter() - began
    selector = pods_selector(terms.instance)
    async with asyncio.timeout(900):
        while not await _all_run(driver, selector):  # noqa: ASYNC110 - what is waited for is in the cluster
            await asyncio.sleep(1)
    return written, time.perf_counter() - began


async def _all_run(driver: KubernetesDriver, selector: str) -> bool:
    params = {"labelSelector": selector, "fieldSelector": "status.phase!=Running", "limit": "1"}
    waiting = await driver._client.request("GET", driver._client.path("pods"), params=params)
    return not waiting["items"]


async def _sizes(driver: KubernetesDriver, terms: Terms) -> tuple[int, int]:
    """Bytes of one chat's pod and Lease, as JSON."""
    lease = await driver._records.of_owner(owner(0))
    assert lease is not None
    pod = await driver._client.get("pods", lease.pod)
    return len(json.dumps(pod)), len(json.dumps(lease.found))


async def run(terms: Terms, *, clean: bool = True) -> Outcome:
    async with cluster(terms, clean=clean):
        driver = terms.driver(pool_size=0)
        await driver.open()
        try:
            written, running = await load(driver, terms)
            sizes = await _sizes(driver, terms)
        finally:
            await driver.close()
        print("  the replica", file=sys.stderr)
        argv = [sys.executable, "-m", "bench.scale_replica", terms.to_json()]
        replica = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
        said, _ = await replica.communicate()
        if replica.returncode:
            raise SystemExit("the replica failed")
        return Outcome(terms, written, running, *sizes, json.loads(said), control_plane())


def control_plane() -> dict[str, tuple[float, float]]:
    """What the programs of a private cluster have used."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "comm").read_text().strip()
            if name.startswith(_PROGRAMS) and os.environ.get("CUBICLE_KUBERNETES_FOLDER"):
                pages = int((process / "statm").read_text().split()[1])
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                found[name] = (pages * os.sysconf("SC_PAGESIZE") / 1024**2, seconds)
        except OSError:
            continue
    return found


def show(found: Outcome) -> Report:
    terms, replica = found.terms, found.replica
    report = Report(f"{terms.chats} chats without containers, on a real API server")
    rate = terms.chats / found.loaded_seconds
    report.note(
        "chats made",
        f"{found.loaded_seconds:.0f} s, {rate:.0f} a second; all running after {found.running_seconds:.0f} s",
    )
    report.note("size of a chat", f"pod {found.pod_bytes} bytes, Lease {found.lease_bytes} bytes, as JSON")
    connected, seconds = replica["connected"], replica["adopt_seconds"]
    report.note(
        "start of a replica", f"{seconds:.0f} s until it is connected to {connected} chats", connected == terms.chats
    )
    everything = replica["claims"] + replica["cold"]
    met = found.claim_p99 < CLAIM_P99_MS and not replica["failed"]
    note = f"p99 {found.claim_p99:.0f} ms at {terms.rate:g} a second (bar {CLAIM_P99_MS:.0f})"
    report.row("claim of a new chat", everything, met, note)
    report.note(
        "of these without a blank pod",
        f"{len(replica['cold'])}; failed: {len(replica['failed'])} {replica['failed'][:1]}",
    )
    each = replica["events"] / max(1, len(everything))
    report.note("events of the watch", f"{each:.1f} for each claim, {each * found.pod_bytes / 1024:.0f} KB")
    report.row("find: whose sandbox", replica["finds"])
    report.row("connect, as a replica that does not know it", replica["connects"])
    report.row(f"list of {replica['listed']} that run", replica["lists"], replica["listed"] == terms.chats)
    report.row("stop of a chat", replica["stops"])
    report.row("sweep of everything", replica["sweeps"], None, str(replica["swept"]))
    peak = replica["peak_mb"]
    report.note("memory of the replica, most", f"{peak:.0f} MB (bar {REPLICA_MB:.0f})", peak < REPLICA_MB)
    for name, value in replica["memory_mb"].items():
        report.note(f"memory {name}", f"{value:.0f} MB")
    for name, value in replica["lag"].items():
        cpu = replica["cpu_seconds"][name]
        report.note(f"event loop at {name}", f"stood still for {value:.0f} ms at most; {cpu:.1f} s of processor time")
    for name, (memory, cpu) in sorted(found.control_plane.items()):
        report.note(name, f"{memory:.0f} MB, {cpu:.0f} s of processor time")
    report.show()
    return report


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scale")
    parser.add_argument("--chats", type=int, default=10_000)
    parser.add_argument("--blank", type=int, default=200)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path, help="write what was found here, too")
    told = parser.parse_args(argv)
    if not os.environ.get("KUBECONFIG"):
        parser.error("needs a cluster: scripts/with-kubernetes python -m bench.scale")
    word = secrets.token_hex(3)
    with tempfile.TemporaryDirectory() as folder:
        terms = Terms(f"scale-{word}", f"fake-{word}", folder, told.chats, told.blank, told.rate, told.seconds)
        # A private cluster goes with all that is in it.
        found = asyncio.run(run(terms, clean="CUBICLE_KUBERNETES_FOLDER" not in os.environ))
    if told.json:
        told.json.write_text(json.dumps({"replica": found.replica, "control_plane": found.control_plane}))
    return 0 if show(found).good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
