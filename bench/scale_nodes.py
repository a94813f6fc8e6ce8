"""Fake kubelets for bench/scale.py: nodes that say that they are ready, pods that are called running as soon as they
are bound, and one listener that answers for all their guests. No container runs.

python -m bench.scale_nodes NAMESPACE NODES LABEL      as an administrator of the cluster of KUBECONFIG
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
import os
import resource
import sys
from contextlib import aclosing
from pathlib import Path

from cubicle.drivers.kubernetes.client import ApiError, KubernetesClient, Object
from cubicle.drivers.kubernetes.cluster import find_cluster
from cubicle.drivers.kubernetes.template import GUEST_PORT
from cubicle.guest import handshake, operations, wire

HEARTBEAT_SECONDS = 10.0
AT_ONCE = 24
"""Status patches under way."""
_PODS_A_NODE = 250


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def node_name(label: str, number: int) -> str:
    return f"{label}-{number}"


class Addresses:
    """Each pod has one of loopback: whoever connects to it reaches the listener here."""

    def __init__(self) -> None:
        self._next = itertools.count(1)
        self.uid_of: dict[str, str] = {}
        self.address_of: dict[str, str] = {}

    def give(self, uid: str) -> str:
        number = next(self._next)
        address = f"127.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
        self.uid_of[address] = uid
        self.address_of[uid] = address
        return address

    def take_back(self, uid: str) -> None:
        self.uid_of.pop(self.address_of.pop(uid, ""), None)


class FakeGuest(asyncio.Protocol):
    """Says who it is, believes everybody, and answers hello, ping and halt; everything else it refuses."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._buffer = bytearray()
        self._known = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        uid = self._addresses.uid_of.get(transport.get_extra_info("sockname")[0])
        if uid is None:
            transport.abort()
            return
        transport.write(handshake.challenge(os.urandom(handshake.NONCE_BYTES), uid.encode()))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._known:
            size = handshake.ANSWER.size
            if len(self._buffer) < size or len(self._buffer) < size + handshake.ANSWER.unpack_from(self._buffer)[1]:
                return
            del self._buffer[: size + handshake.ANSWER.unpack_from(self._buffer)[1]]
            self._known = True
            self._transport.write(handshake.ACCEPTED)
        while len(self._buffer) >= wire.HEADER.size:
            length, channel, kind, _, _ = wire.HEADER.unpack_from(self._buffer)
            if len(self._buffer) < wire.HEADER.size + length:
                return
            payload = bytes(self._buffer[wire.HEADER.size : wire.HEADER.size + length])
            del self._buffer[: wire.HEADER.size + length]
            if kind == wire.OPEN:
                self._transport.write(self._answer(channel, wire.read_message(payload).get("op")))

    def _answer(self, channel: int, op: object) -> bytes:
        if op == "hello":
            newest = wire.NEWEST_VERSION
            welcome = operations.Welcome(version=newest, oldest=wire.OLDEST_VERSION, newest=newest)
            return wire.frame(channel, wire.END, welcome.encode())
        if op in ("ping", "halt"):
            return wire.frame(channel, wire.END, operations.Nothing().encode())
        failure = operations.Failure(error=wire.ErrorCode.REFUSED, message="nothing runs here")
        return wire.frame(channel, wire.FAIL, failure.encode())


class FakeNodes:
    """What kubelets would tell the API server."""

    def __init__(self, client: KubernetesClient, label: str, count: int) -> None:
        self._client = client
        self._label = label
        self._count = count
        self._addresses = Addresses()
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._seen: set[tuple[str, bool]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        await asyncio.gather(*(self._register(number) for number in range(self._count)))
        loop = asyncio.get_running_loop()
        await loop.create_server(lambda: FakeGuest(self._addresses), "0.0.0.0", GUEST_PORT, backlog=4096)
        print("ready", flush=True)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat())
            group.create_task(self._follow())

    async def _register(self, number: int) -> None:
        name = node_name(self._label, number)
        most = {"cpu": "1000", "memory": "4Ti", "pods": str(_PODS_A_NODE), "ephemeral-storage": "10Ti"}
        await self._client.request(
            "POST",
            "/api/v1/nodes",
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {"cubicle.dev/fake": self._label, "kubernetes.io/hostname": name}},
                "spec": {"taints": [{"key": "cubicle.dev/fake", "effect": "NoSchedule"}]},
            },
        )
        await self._heartbeat(number)
        kinds = (("Ready", "True"), ("MemoryPressure", "False"), ("DiskPressure", "False"), ("PIDPressure", "False"))
        moment = now()[:19] + "Z"
        said = {"lastHeartbeatTime": moment, "lastTransitionTime": moment, "reason": "Fake", "message": "nothing runs"}
        conditions = [{"type": kind, "status": status, **said} for kind, status in kinds]
        status = {"capacity": most, "allocatable": most, "conditions": conditions}
        await self._client.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, _MERGE)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await asyncio.gather(*(self._heartbeat(number) for number in range(self._count)))

    async def _heartbeat(self, number: int) -> None:
        name = node_name(self._label, number)
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now()}
        try:
            await self._client.request("PATCH", f"{path}/{name}", {"spec": spec}, _MERGE)
        except ApiError as error:
            if error.status != 404:
                print(f"a heartbeat failed: {error}", file=sys.stderr)
                return
            kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            await self._client.request("POST", path, {**kind, "metadata": {"name": name}, "spec": spec})

    async def _follow(self) -> None:
        while True:
            try:
                found, version = await self._client.list("pods", "")
                for pod in found:
                    self._attend("ADDED", pod)
                async with aclosing(self._client.watch("pods", {"resourceVersion": version}, 3600)) as events:
                    async for event, pod in events:
                        if event in ("ADDED", "MODIFIED", "DELETED"):
                            self._attend(event, pod)
            except ApiError as error:
                print(f"pods cannot be followed: {error}", file=sys.stderr)
                await asyncio.sleep(0.5)

    def _attend(self, event: str, pod: Object) -> None:
        meta = pod["metadata"]
        leaving = bool(meta.get("deletionTimestamp"))
        if event == "DELETED":
            self._addresses.take_back(meta["uid"])
            self._seen -= {(meta["uid"], True), (meta["uid"], False)}
            return
        if not str(pod["spec"].get("nodeName", "")).startswith(self._label) or (meta["uid"], leaving) in self._seen:
            return
        self._seen.add((meta["uid"], leaving))
        task = asyncio.ensure_future(self._end(pod) if leaving else self._start(pod))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, pod: Object) -> None:
        if (pod.get("status") or {}).get("phase") == "Running":
            return
        address = self._addresses.give(pod["metadata"]["uid"])
        moment = now()[:19] + "Z"
        kinds = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
        status: Object = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "startTime": moment,
            "conditions": [{"type": kind, "status": "True", "lastTransitionTime": moment} for kind in kinds],
            "containerStatuses": [_container(one, moment) for one in pod["spec"]["containers"]],
        }
        await self._patch(pod, status)

    async def _end(self, pod: Object) -> None:
        path = self._client.path("pods", pod["metadata"]["name"])
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        async with self._gate:
            try:
                await self._client.request("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", **options})
            except ApiError as error:
                if error.status != 404:
                    print(f"a pod could not be ended: {error}", file=sys.stderr)

    async def _patch(self, pod: Object, status: Object) -> None:
        path = self._client.path("pods", pod["metadata"]["name"]) + "/status"
        async with self._gate:
            try:
                await self._client.request("PATCH", path, {"status": status}, _MERGE)
            except ApiError as error:
                if error.status != 404:
                    print(f"a pod could not be called running: {error}", file=sys.stderr)


def _container(spec: Object, moment: str) -> Object:
    state = {"running": {"startedAt": moment}}
    ids = {"image": spec["image"], "imageID": "none", "containerID": "fake://0"}
    return {"name": spec["name"], "ready": True, "started": True, "restartCount": 0, "state": state, **ids}


_MERGE = "application/merge-patch+json"


async def main(namespace: str, count: int, label: str) -> None:
    client = KubernetesClient(find_cluster(Path(os.environ["KUBECONFIG"]), "", "", namespace))
    try:
        await FakeNodes(client, label, count).run()
    finally:
        await client.close()


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65536), most))
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
