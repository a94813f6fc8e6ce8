"""A cluster in one process, for tests of the driver's own logic: an API server that keeps objects in memory with versions,
conflicts and watches as Kubernetes has them, a Deployment controller, and one node that runs the true programs of a pod in
namespaces, without an image. What isolation and a real kubelet do is tested on a real cluster (scripts/with-kubernetes).

    python -m tests.support.small_cluster FOLDER      prints the address of its API server
"""

from __future__ import annotations

import asyncio
import base64
import copy
import datetime
import gc
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from cubicle.guest import bundle
from tests.support.fork_server import Forked, the_server

Object = dict[str, Any]
_END_SECONDS = 60
_KINDS = ("pods", "configmaps", "leases", "deployments", "persistentvolumeclaims")
_SCRIPT = """
set -e
mount -t tmpfs tmpfs /home; mount -t tmpfs tmpfs /mnt; mount -t tmpfs -o mode=755 tmpfs /run
ip link set lo up
while read -r source target; do
    mkdir -p "$target"
    if [ "$source" = tmpfs ]; then mount -t tmpfs tmpfs "$target"; else mkdir -p "$source"; mount --bind "$source" "$target"; fi
done <"$mounts"
exec setpriv --no-new-privs --inh-caps=-all --bounding-set="$capabilities" -- "$@"
"""


def merged(old: Any, change: Any) -> Any:
    """JSON merge patch."""
    if not isinstance(change, dict):
        return change
    found = dict(old) if isinstance(old, dict) else {}
    for name, value in change.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


def matches(labels: Object, selector: str) -> bool:
    pairs = [part.split("=", 1) for part in selector.split(",") if part]
    return all(labels.get(name) == value for name, value in pairs)


class Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Store:
    """Every object, by kind and name; each change has a version, and is told to who watches."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Object]] = {kind: {} for kind in _KINDS}
        self.version = 1
        self.watchers: list[tuple[str, asyncio.Queue[tuple[str, Object]]]] = []
        self.removed: deque[tuple[str, Object]] = deque(maxlen=1000)
        """For those who begin to watch from a version before."""

    def tell(self, event: str, kind: str, body: Object) -> None:
        for watched, queue in self.watchers:
            if watched == kind:
                queue.put_nowait((event, copy.deepcopy(body)))

    def put(self, kind: str, body: Object, event: str = "MODIFIED") -> Object:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.objects[kind][body["metadata"]["name"]] = body
        self.tell(event, kind, body)
        return body

    def create(self, kind: str, body: Object) -> Object:
        if body["metadata"]["name"] in self.objects[kind]:
            raise Refusal(409, "already exists")
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body["metadata"] |= {"uid": secrets.token_hex(8), "creationTimestamp": now}
        return self.put(kind, body, "ADDED")

    def get(self, kind: str, name: str) -> Object:
        if name not in self.objects[kind]:
            raise Refusal(404, "not found")
        return self.objects[kind][name]

    def patch(self, kind: str, name: str, change: Object) -> Object:
        old = self.get(kind, name)
        told = change.get("metadata", {})
        for field in ("resourceVersion", "uid"):
            if told.get(field, old["metadata"][field]) != old["metadata"][field]:
                raise Refusal(409, "the object has been modified")
        return self.put(kind, merged(old, change))

    def remove(self, kind: str, name: str) -> None:
        body = self.objects[kind].pop(name, None)
        if body is not None:
            self.version += 1
            body["metadata"]["resourceVersion"] = str(self.version)
            self.removed.append((kind, body))
            self.tell("DELETED", kind, body)


class Node:
    """Runs pods."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._started: list[asyncio.subprocess.Process] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def begin(self, pod: Object) -> None:
        if not self._closed:
            self._spawn(self._run(pod["metadata"]["name"], pod))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self, name: str) -> None:
        self._spawn(self._end(name))

    async def _end(self, name: str) -> None:
        process = self._running.get(name)
        while process is not None and process.returncode is None:
            self._kill(process)
            with suppress(TimeoutError):  # what was begun this moment has no children yet
                async with asyncio.timeout(0.1):
                    await process.wait()
        self._store.remove("pods", name)

    async def close(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()  # what one of them just starts ends with it
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self._started:
            self._kill(process)
            if process.returncode is None:
                process.kill()  # a child that it has not made yet ends with it

    def _kill(self, process: asyncio.subprocess.Process) -> None:
        with suppress(OSError):
            for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    def _status(self, name: str, uid: str, **status: Any) -> None:
        pod = self._store.objects["pods"].get(name)
        if pod is not None and pod["metadata"]["uid"] == uid:
            self._store.put("pods", merged(pod, {"status": status}))

    async def _run(self, name: str, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        values = {"POD_NAME": name, "POD_UID": uid}
        spec = pod["spec"]
        for container in spec.get("initContainers", ()):
            if await (await self._start(name, spec, container, values, None)).wait():
                over = [{"state": {"terminated": {"exitCode": 1, "message": "failed"}}}]
                self._status(name, uid, phase="Failed", initContainerStatuses=over)
                return
        with _listening() as server:
            address = server.getsockname()[0]
            process = await self._start(name, spec, spec["containers"][0], values, server)
        self._running[name] = process
        self._status(name, uid, phase="Running", podIP=address, containerStatuses=[{"state": {"running": {}}}])
        code = await process.wait()
        self._running.pop(name, None)
        over = [{"state": {"terminated": {"exitCode": code, "reason": "Error"}}}]
        self._status(name, uid, phase="Failed" if code else "Succeeded", containerStatuses=over)

    async def _start(
        self, name: str, spec: Object, container: Object, values: dict[str, str], server: socket.socket | None
    ) -> asyncio.subprocess.Process:
        place = self._folder / "pods" / name
        place.mkdir(parents=True, exist_ok=True)
        mounts = place / f"mounts-{container['name']}"
        lines = [
            f"{self._source(place, spec, mount, values)} {mount['mountPath']}" for mount in container["volumeMounts"]
        ]
        mounts.write_text("\n".join([*lines, ""]))
        command = [_expanded(part, values) for part in container["command"]]
        if server is not None and command[-1].startswith("{"):
            command[-1] = json.dumps({**json.loads(command[-1]), "listen_fd": server.fileno()})
        process = await asyncio.create_subprocess_exec(
            *("unshare", "--net", "--mount", "--mount-proc", "--pid", "--fork", "--kill-child"),
            *("bash", "-c", _SCRIPT, "pod", *command),
            env={"PATH": os.environ["PATH"], "mounts": str(mounts), "capabilities": _capabilities(container), **values},
            pass_fds=[server.fileno()] if server is not None else [],
            stdin=subprocess.DEVNULL,
            stdout=(place / "log").open("ab"),
            stderr=subprocess.STDOUT,
            cwd="/",
        )
        self._started = [known for known in self._started if known.returncode is None] + [process]
        return process

    def _source(self, place: Path, spec: Object, mount: Object, values: dict[str, str]) -> str:
        volume = next(one for one in spec["volumes"] if one["name"] == mount["name"])
        if "emptyDir" in volume:
            return "tmpfs"
        if "configMap" in volume:
            folder = place / "programs"
            folder.mkdir(exist_ok=True)
            data = self._store.objects["configmaps"][volume["configMap"]["name"]]["binaryData"]
            for file, content in data.items():
                (folder / file).write_bytes(_soon_started(base64.b64decode(content)))
            return str(folder)
        inside = mount.get("subPath") or _expanded(mount.get("subPathExpr", ""), values)
        return str(self._folder / "volume" / inside)


def _soon_started(program: bytes) -> bytes:
    """The guest of today as compiled code: from its sources, as a pod has it, it takes four times as long to start."""
    return bundle.build(["/usr/bin/python3"]) if program == bundle.build() else program


def _listening() -> socket.socket:
    """At an address of the loopback that nobody uses, other small clusters included."""
    while True:
        numbers = [secrets.randbelow(250) + 1 for _ in range(3)]
        with suppress(OSError):
            return socket.create_server((f"127.{numbers[0]}.{numbers[1]}.{numbers[2]}", 8000))


def _capabilities(container: Object) -> str:
    added = container["securityContext"]["capabilities"]["add"]
    return ",".join(["-all", *(f"+{name.lower()}" for name in added)])


def _expanded(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"$({name})", value)
    return text


class SmallCluster:
    """The API server."""

    def __init__(self, folder: Path) -> None:
        self.store = Store()
        self.node = Node(self.store, folder)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=16 * 1024**2)
        for group in ("/api/v1", "/apis/apps/v1", "/apis/coordination.k8s.io/v1"):
            app.router.add_route("*", group + "/namespaces/{namespace}/{kind}", self._handled(self._many))
            app.router.add_route("*", group + "/namespaces/{namespace}/{kind}/{name}", self._handled(self._one))
        return app

    def _handled(self, work: Callable[[web.Request], Any]) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                found: web.StreamResponse = await work(request)
            except Refusal as error:
                return web.json_response({"message": str(error)}, status=error.status)
            return found

        return handle

    async def _many(self, request: web.Request) -> web.StreamResponse:
        kind = request.match_info["kind"]
        if request.method == "POST":
            return web.json_response(self._created(kind, self.store.create(kind, await request.json())), status=201)
        if request.query.get("watch"):
            return await self._watch(request, kind)
        chosen = [one for one in self.store.objects[kind].values() if self._chosen(request, one)]
        return web.json_response({"items": chosen, "metadata": {"resourceVersion": str(self.store.version)}})

    def _chosen(self, request: web.Request, body: Object) -> bool:
        field = request.query.get("fieldSelector", "")
        if field and field != f"metadata.name={body['metadata']['name']}":
            return False
        return matches(body["metadata"].get("labels") or {}, request.query.get("labelSelector", ""))

    async def _watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        response = web.StreamResponse()
        queue: asyncio.Queue[tuple[str, Object]] = asyncio.Queue()
        watcher = (kind, queue)
        self.store.watchers.append(watcher)
        since = int(request.query.get("resourceVersion") or 0)
        for body in self.store.objects[kind].values():
            if int(body["metadata"]["resourceVersion"]) > since:
                queue.put_nowait(("ADDED", body))
        for gone, body in self.store.removed:
            if gone == kind and 0 < since < int(body["metadata"]["resourceVersion"]):
                queue.put_nowait(("DELETED", body))
        try:
            await response.prepare(request)
            async with asyncio.timeout(float(request.query.get("timeoutSeconds", "60"))):
                while True:
                    event, body = await queue.get()
                    if self._chosen(request, body):
                        await response.write(json.dumps({"type": event, "object": body}).encode() + b"\n")
        except (TimeoutError, ConnectionError):
            pass
        finally:
            self.store.watchers.remove(watcher)
        return response

    async def _one(self, request: web.Request) -> web.StreamResponse:
        kind, name = request.match_info["kind"], request.match_info["name"]
        if request.method == "PATCH":
            change = await request.json()
            if "apply" in request.headers["Content-Type"] and name not in self.store.objects[kind]:
                return web.json_response(self._created(kind, self.store.create(kind, change)))
            changed = self.store.patch(kind, name, change)
            if kind in ("deployments", "pods"):
                self._refill()
            return web.json_response(changed)
        found = self.store.get(kind, name)
        if request.method == "DELETE":
            wanted = (await request.json()).get("preconditions", {}) if request.can_read_body else {}
            if any(found["metadata"][field] != value for field, value in wanted.items()):
                raise Refusal(409, "precondition failed")
            if kind == "pods":
                self._end(found)
            else:
                self.store.remove(kind, name)
                self._collect(found["metadata"]["uid"])
        return web.json_response(found)

    def _collect(self, owner: str) -> None:
        """What the garbage collector does: without its owner, a pod goes."""
        for pod in list(self.store.objects["pods"].values()):
            owners = [one["uid"] for one in pod["metadata"].get("ownerReferences") or ()]
            if owners == [owner] and not pod["metadata"].get("deletionTimestamp"):
                self._end(pod)

    def _end(self, pod: Object) -> None:
        self.store.put("pods", merged(pod, {"metadata": {"deletionTimestamp": "now"}}))
        self.node.end(pod["metadata"]["name"])
        self._refill()

    def _created(self, kind: str, body: Object) -> Object:
        if kind == "pods":
            self.store.put(kind, merged(body, {"spec": {"nodeName": "node"}, "status": {"phase": "Pending"}}))
            self.node.begin(body)
        if kind == "deployments":
            self._refill()
        return body

    def _refill(self) -> None:
        """What a Deployment and its ReplicaSet do."""
        for body in list(self.store.objects["deployments"].values()):
            spec = body["spec"]
            labels = spec["selector"]["matchLabels"]
            pods = [pod for pod in self.store.objects["pods"].values() if not pod["metadata"].get("deletionTimestamp")]
            there = [
                pod
                for pod in pods
                if matches(pod["metadata"].get("labels") or {}, ",".join(f"{k}={v}" for k, v in labels.items()))
            ]
            for _ in range(spec.get("replicas", 1) - len(there)):
                pod = copy.deepcopy(spec["template"])
                pod["metadata"]["name"] = f"{body['metadata']['name']}-{secrets.token_hex(3)}"
                self._created("pods", self.store.create("pods", pod))


async def serve(folder: Path) -> None:
    cluster = SmallCluster(folder)
    runner = web.AppRunner(cluster.application(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr, attr-defined]
    sys.stdout.write(f"http://127.0.0.1:{port}\n")
    sys.stdout.flush()
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    await over.wait()
    await cluster.node.close()
    await runner.cleanup()


class Running:
    """The process of a small cluster, for those who start it."""

    _all: list[Running] = []  # noqa: RUF012
    _process: Forked

    def __init__(self, folder: Path) -> None:
        reading, writing = os.pipe()
        try:
            self._process = the_server().start(
                [str(folder)], dict(os.environ), Path(__file__).parents[2], writing, errors=2, module=__name__
            )
        finally:
            os.close(writing)
        with open(reading) as said:
            self.server = said.readline().strip()
        self._all.append(self)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_END_SECONDS)

    @classmethod
    def stop_all(cls) -> None:
        while cls._all:
            cls._all.pop().stop()


def main() -> None:
    gc.enable()
    asyncio.run(serve(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
