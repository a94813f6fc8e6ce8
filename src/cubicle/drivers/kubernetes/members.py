"""The records of members on a cluster: a Lease for each member, and one for each chat that says who owns it.

A member renews its Lease every few seconds. Whoever watches takes it for dead when the Lease has not changed for a
while by the watcher's own clock: no date of one host is compared with that of another, and time in which the watcher
could not look does not count. A member that was taken for dead and lives finds its chats in the hands of others, and
the guests serve the highest epoch only (docs/kubernetes.md).
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from cubicle.drivers.kubernetes.client import KubernetesClient
from cubicle.drivers.kubernetes.cluster import Cluster
from cubicle.drivers.kubernetes.objects import INSTANCE, KIND, Object, record_name, selector
from cubicle.machine.errors import SandboxError
from cubicle.members.records import NoRecords, Ownership
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

_Found = TypeVar("_Found")

RENEW_SECONDS = 5.0
DEAD_SECONDS = 15.0
_BLIND_SECONDS = 3.0
"""Members look at each other every second. What is longer between two looks was an outage, and kills nobody."""
_APP = "cubicle-member"
_NAME = "app.kubernetes.io/name"
_ADDRESS = "cubicle.dev/address"
_ENDED = "cubicle.dev/ended"
"""Of a member that ended in order, and left chats: nobody waits for it to be silent long enough."""
_MEMBER, _OWNER = "member", "owner"
_BACKLOG = 4096
_MEMBER_NAME = re.compile(r"[1-9][0-9]{0,3}-[0-9a-f]{8}")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_MAX_EPOCH = 2**31 - 1
"""Of `leaseTransitions`."""
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class LeaseRecords:
    """One member's view of them. `address` and `port` are where others reach it."""

    def __init__(
        self,
        find_cluster: Callable[[], Cluster],
        instance: str,
        *,
        slot: int,
        address: str,
        port: int,
        dead_seconds: float = DEAD_SECONDS,
        renew_seconds: float = RENEW_SECONDS,
    ) -> None:
        self.name = f"{slot}-{secrets.token_hex(4)}"
        self._find_cluster = find_cluster
        self._instance = instance
        self._address, self._port = address, port
        self._dead_seconds, self._renew_seconds = dead_seconds, renew_seconds
        self._client: KubernetesClient
        self._seen: dict[str, tuple[str, float]] = {}
        """The version of each member's Lease when it was last seen to change, and when that was."""
        self._looked = time.monotonic()
        self._addresses: dict[str, tuple[str, int]] = {}
        self._ended: frozenset[str] = frozenset()
        self._keeping: asyncio.Task[None] | None = None
        self.lapsed = False
        self._version = ""
        """Of this member's Lease, as it wrote it last."""
        self._renewed = time.monotonic()
        """When the last renewal was sent: others count from the moment in which it was written, not answered."""

    async def open(self) -> socket.socket:
        self._client = KubernetesClient(await asyncio.to_thread(self._find_cluster))
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((self._address, self._port))
        listening.listen(_BACKLOG)
        listening.setblocking(False)
        self._port = listening.getsockname()[1]
        try:
            await self._renew()
            await self._look()
        except BaseException:
            listening.close()
            await self._client.close()
            raise
        self._keeping = start_task(self._keep(), name="member Lease")
        return listening

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        try:
            await self._leave()
        except NoRecords as error:
            log.warning("this member is taken for dead after a while only: %s", error)
        await self._client.close()

    async def _leave(self) -> None:
        """One that leaves chats is buried by the others, when they have taken them over."""
        if not await self.owned_by(self.name):
            await self.bury(self.name)
            return
        name = record_name(self._instance, _MEMBER, self.name)
        await self._do(self._client.patch("leases", name, {"metadata": {"annotations": {_ENDED: "true"}}}))

    # ---- who owns a chat

    async def owner(self, digest: str) -> Ownership | None:
        return _ownership(await self._get(_OWNER, digest))

    async def take(self, digest: str, seen: Ownership | None) -> Ownership:
        lease = await self._get(_OWNER, digest)
        if lease is None and seen is None:
            made = await self._do(self._client.create("leases", self._body(_OWNER, digest, epoch=1)))
            if made is not None:
                return Ownership(self.name, 1)
            lease = await self._get(_OWNER, digest)
        found = _ownership(lease)
        if lease is None or found is None:
            raise NoRecords("The chat changes hands at this moment.")
        if found != seen:
            return found
        epoch = found.epoch + 1 if found.epoch < _MAX_EPOCH else 1
        change = {"spec": {"holderIdentity": self.name, "leaseTransitions": epoch}}
        changed = await self._do(self._client.patch("leases", lease["metadata"]["name"], _versioned(lease) | change))
        if changed is not None:
            return Ownership(self.name, epoch)
        now = await self.owner(digest)
        if now is None:
            raise NoRecords("The chat changes hands at this moment.")
        return now

    async def release(self, epochs: Mapping[str, int]) -> None:
        for digest, epoch in epochs.items():
            lease = await self._get(_OWNER, digest)
            if lease is not None and _ownership(lease) == Ownership(self.name, epoch):
                await self._do(self._client.delete("leases", lease, version=True))

    async def owned_by(self, holder: str) -> Sequence[str]:
        leases = await self._list(_OWNER)
        held = [str(lease["metadata"]["name"]) for lease in leases if _holder(lease) == holder]
        digests = [name.rpartition("-")[2] for name in held if name.startswith(f"{self._instance}-{_OWNER}-")]
        return [digest for digest in digests if _DIGEST.fullmatch(digest)]

    # ---- who is there

    async def is_alive(self, holder: str) -> bool:
        if holder == self.name:
            return True
        if holder not in self._seen:
            await self._look()
        known = holder in self._seen and holder not in self._ended
        return known and self._looked - self._seen[holder][1] < self._dead_seconds

    async def living(self) -> Sequence[str]:
        await self._look()
        return sorted([name for name in self._seen if name != self.name and await self.is_alive(name)] + [self.name])

    async def dead(self) -> Sequence[str]:
        await self._look()
        return [name for name in self._seen if not await self.is_alive(name)]

    async def bury(self, holder: str) -> None:
        """One that was heard of since it was taken for dead lives."""
        lease = await self._get(_MEMBER, holder)
        if lease is not None and holder != self.name:
            version = self._seen.get(holder, ("", 0.0))[0]
            if await self.is_alive(holder) or lease["metadata"]["resourceVersion"] != version:
                return
        if lease is not None:
            await self._do(self._client.delete("leases", lease, version=holder != self.name))
        self._seen.pop(holder, None)

    async def dial(self, holder: str) -> socket.socket:
        if holder not in self._addresses:
            await self._look()
        address = self._addresses.get(holder)
        if address is None:
            raise ConnectionRefusedError("This member is not there.")
        sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(self._renew_seconds):
                await asyncio.get_running_loop().sock_connect(sock, address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a node that is lost hangs up on nobody
            for option, value in _KEEP_ALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        except BaseException:
            sock.close()
            raise
        return sock

    async def _keep(self) -> None:
        """One renewal does not wait for another: an API server that is lost hangs up on nobody."""
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._renew_seconds)
                group.create_task(self._try_to_renew(), name="renew member Lease")

    async def _try_to_renew(self) -> None:
        try:
            await self._renew()
        except NoRecords as error:
            log.warning("the member Lease could not be renewed: %s", error)
        except Exception:
            log.exception("the member Lease could not be renewed")

    async def _renew(self) -> None:
        """One that somebody else has changed or taken away is made again: others may have taken it for dead."""
        body = self._body(_MEMBER, self.name, epoch=1)
        name, meta = body["metadata"]["name"], body["metadata"]
        spec = {word: body["spec"][word] for word in ("holderIdentity", "renewTime")}
        began = time.monotonic()
        as_it_was = {"metadata": {**meta, "resourceVersion": self._version}, "spec": spec}
        changed = await self._do(self._client.patch("leases", name, as_it_was)) if self._version else None
        if changed is None:
            try:
                changed = await self._do(self._client.patch("leases", name, {"metadata": meta, "spec": spec}))
                changed = changed or await self._do(self._client.create("leases", body))
            finally:  # it may be there, whatever is heard of it
                self.lapsed = self._keeping is not None
        self._version = changed["metadata"]["resourceVersion"] if changed is not None else ""
        self.lapsed = self.lapsed or time.monotonic() - self._renewed > self._dead_seconds
        self._renewed = max(self._renewed, began)

    async def _look(self) -> None:
        """See which members' Leases have changed. What is in the place of one and is none counts for nothing."""
        leases = {name: lease for lease in await self._list(_MEMBER) if (name := self._member(lease))}
        now = time.monotonic()
        unseen = max(0.0, now - self._looked - _BLIND_SECONDS)
        self._looked = now
        self._seen = {name: (version, at + unseen) for name, (version, at) in self._seen.items() if name in leases}
        self._ended = frozenset(name for name, lease in leases.items() if _has_ended(lease))
        self._addresses = {}
        for name, lease in leases.items():
            version = str(lease["metadata"].get("resourceVersion"))
            if self._seen.get(name, ("", 0.0))[0] != version:
                self._seen[name] = (version, now)
            if (address := _address(lease)) is not None:
                self._addresses[name] = address

    def _member(self, lease: Object) -> str:
        """The name of the member whose Lease this is; nothing if it is nobody's."""
        name = _holder(lease)
        right = _MEMBER_NAME.fullmatch(name) and lease["metadata"]["name"] == record_name(self._instance, _MEMBER, name)
        return name if right else ""

    # ---- objects

    def _body(self, kind: str, key: str, *, epoch: int) -> Object:
        now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + f".{time.time_ns() // 1000 % 1_000_000:06}Z"
        host = f"[{self._address}]" if ":" in self._address else self._address
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": record_name(self._instance, kind, key),
                "labels": {_NAME: _APP, INSTANCE: self._instance, KIND: kind},
                "annotations": {_ADDRESS: f"{host}:{self._port}"} if kind == _MEMBER else {},
            },
            "spec": {"holderIdentity": self.name, "leaseTransitions": epoch, "renewTime": now},
        }

    async def _get(self, kind: str, key: str) -> Object | None:
        return await self._do(self._read(kind, key))

    async def _read(self, kind: str, key: str) -> Object | None:
        return await self._client.get("leases", record_name(self._instance, kind, key))

    async def _list(self, kind: str) -> list[Object]:
        found, _ = await self._do(self._client.list("leases", selector(self._instance, _APP, **{KIND: kind})))
        return found

    @staticmethod
    async def _do(request: Awaitable[_Found]) -> _Found:
        try:
            return await request
        except SandboxError as error:
            raise NoRecords("The records of members cannot be used at present.", str(error)) from error


def _holder(lease: Object) -> str:
    spec = lease.get("spec")
    return str(spec.get("holderIdentity") or "") if isinstance(spec, dict) else ""


def _has_ended(lease: Object) -> bool:
    notes = lease["metadata"].get("annotations")
    return isinstance(notes, dict) and notes.get(_ENDED) == "true"


def _address(lease: Object) -> tuple[str, int] | None:
    """Where a member says that it is."""
    notes = lease["metadata"].get("annotations")
    host, _, port = str(notes.get(_ADDRESS, "") if isinstance(notes, dict) else "").rpartition(":")
    try:
        return (str(ipaddress.ip_address(host.strip("[]"))), int(port)) if 0 < int(port) < 65536 else None
    except ValueError:
        return None


def _versioned(lease: Object) -> Object:
    meta = lease["metadata"]
    return {"metadata": {"resourceVersion": meta["resourceVersion"], "uid": meta["uid"]}}


def _ownership(lease: Object | None) -> Ownership | None:
    """An owner who is no member, or nobody, does not live: whoever is asked takes the chat."""
    if lease is None:
        return None
    spec = lease.get("spec")
    epoch = spec.get("leaseTransitions") if isinstance(spec, dict) else None
    return Ownership(_holder(lease), epoch if isinstance(epoch, int) and epoch > 0 else 1)
