"""Reads and writes the records: each write names the version that it saw, so that of two writers one loses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from cubicle.drivers.kubernetes.client import KubernetesClient
from cubicle.drivers.kubernetes.objects import (
    BOUND,
    DELETING,
    POD,
    SANDBOX,
    STEP,
    Object,
    Record,
    age,
    named,
    record_name,
    records_selector,
    rightful,
)
from cubicle.machine.errors import SandboxError, StartFailed

log = logging.getLogger(__name__)

_RACES = 8
_CLAIM_SECONDS = 10.0
"""How long a service may take to name another pod in its record, when one was lost to another chat."""
_PAUSE = 0.2


@dataclass(frozen=True, slots=True)
class SandboxRecords:
    """What is written down of one sandbox."""

    chat: Record | None = None
    trash: Record | None = None
    removed: Record | None = None

    def __bool__(self) -> bool:
        return not (self.chat is self.trash is self.removed is None)


class Records:
    """The Leases of one instance. `owner_of` tells the label of a pod, which decides; None of a pod that is gone."""

    def __init__(
        self, client: KubernetesClient, instance: str, holder: str, owner_of: Callable[[str], Awaitable[str | None]]
    ) -> None:
        self._client = client
        self._instance = instance
        self._owner_of = owner_of
        self.claim_seconds = _CLAIM_SECONDS
        self._exclusive = False
        """Whether other replicas have chats: then only its holder connects to a sandbox."""
        self.holder = holder
        """Who writes: the name of this replica."""
        self._owners: dict[str, str] = {}
        """Of sandboxes that were seen: a hint, by which a record is had by its name."""
        self.owns: Callable[[str], Awaitable[bool]] = nobody
        """Whether this replica is to be the holder of an owner's record that names another."""

    async def of_owner(self, owner: str) -> Record | None:
        """The owner's record, if the sandbox that it names is the owner's.

        One that is not bound, and whose pod another has or nobody any more, is of a claim that is under way or of a
        service that crashed. It is waited for; then it is dropped, as it was seen: whoever goes on with it then fails.
        """
        deadline = time.monotonic() + self.claim_seconds
        while True:
            record = await self._named(owner)
            if record is None or record.step:
                return record
            other = (await self.of_sandbox(record.sandbox)).chat
            if other is not None and other.owner == record.owner:
                return record
            if age(record.found) > self.claim_seconds or time.monotonic() > deadline:
                if await self.remove(record):
                    return None
            else:
                await asyncio.sleep(_PAUSE)

    async def chat_of(self, sandbox: str) -> Record | None:
        """The record of the chat that has it: by its name if that is known. A list by label makes the API server read
        all records."""
        if owner := self._owners.get(sandbox):
            record = await self._named(owner)
            if record is not None and record.sandbox == sandbox and record.step:
                return record
        return (await self.of_sandbox(sandbox)).chat

    async def of_sandbox(self, sandbox: str) -> SandboxRecords:
        found, _ = await self._client.list("leases", records_selector(self._instance, sandbox))
        records = [record for record in map(self._parsed, found) if record is not None]
        by_kind = {record.kind: record for record in records}
        chats = [record for record in records if record.kind == "chat"]
        open_question = bool(chats) and not any(record.step for record in chats)
        label = await self._owner_of(sandbox) if open_question else None
        return SandboxRecords(rightful(chats, label), by_kind.get("trash"), by_kind.get("removed"))

    async def all(self) -> list[Record]:
        found, _ = await self._client.list("leases", records_selector(self._instance), self._of_many)
        records = [record for record in found if record is not None]
        self._owners = {record.sandbox: record.owner for record in records if record.kind == "chat"}
        return records

    async def any_of(self, kind: str) -> bool:
        """Whether there is a record of this kind: mostly there is no trash, and always there are chats."""
        found, _ = await self._client.list("leases", records_selector(self._instance, kind=kind), named)
        return bool(found)

    async def create(self, record: Record) -> Record | None:
        """None if there is one."""
        made = await self._client.create("leases", replace(record, holder=self.holder).body(self._instance))
        return None if made is None else self._parsed(made)

    async def point_to(self, record: Record, pod: str, sandbox: str = "") -> Record | None:
        """Name another pod, and with it another sandbox; None if the record has changed meanwhile."""
        change: Object = {"annotations": {POD: pod}}
        if sandbox:
            change["labels"] = {SANDBOX: sandbox}
        return await self._changed(record, change)

    async def bind(self, record: Record) -> Record | None:
        """It has its sandbox for good."""
        return record if record.step else await self._changed(record, {"annotations": {STEP: BOUND}})

    async def begin_delete(self, record: Record) -> Record | None:
        """From now on the chat has no sandbox, whatever else is still there."""
        return await self._changed(record, {"annotations": {STEP: DELETING}})

    async def take_over(self, record: Record) -> Record | None:
        """Be its holder, with a new epoch; None if another was quicker."""
        return await self._changed(record, {}, {"holderIdentity": self.holder, "leaseTransitions": record.epoch + 1})

    async def own(self, owner: str) -> Record | None:
        """Be the holder of the owner's record, if there is one: no other replica connects to its sandbox any more."""
        self._exclusive = True
        for _ in range(_RACES):
            record = await self.of_owner(owner)
            if record is None or record.holder == self.holder:
                return record
            if (taken := await self.take_over(record)) is not None:
                return taken
        raise SandboxError("The record of the chat is being changed by another service.")

    def is_ours(self, record: Record) -> bool:
        return not self._exclusive or record.holder == self.holder

    async def ours(self, record: Record) -> Record:
        """The record, before something is done with its sandbox. Raises StartFailed if another replica has the chat by
        now. The command line may have made it: then this replica is its holder from now on."""
        if self.is_ours(record):
            return record
        if await self.owns(record.owner) and (taken := await self.take_over(record)) is not None:
            return taken
        raise StartFailed("Another replica of the service has this chat.")

    async def release(self, record: Record) -> Record | None:
        """Let another replica be its holder."""
        return await self._changed(record, {}, {"holderIdentity": ""})

    async def remove(self, record: Record) -> bool:
        """Whether it is gone, unchanged as it was seen."""
        assert record.found is not None
        return await self._client.delete("leases", record.found, version=True)

    async def _changed(self, record: Record, metadata: Object, spec: Object | None = None) -> Record | None:
        assert record.found is not None
        meta = record.found["metadata"]
        body: Object = {"metadata": {"resourceVersion": meta["resourceVersion"], "uid": meta["uid"], **metadata}}
        changed = await self._client.patch("leases", meta["name"], body | ({"spec": spec} if spec else {}))
        return None if changed is None else self._parsed(changed)

    async def _named(self, owner: str) -> Record | None:
        lease = await self._client.get("leases", record_name(self._instance, "chat", owner))
        return None if lease is None else self._parsed(lease)

    def _of_many(self, lease: Object) -> Record | None:
        record = self._parsed(lease)
        return None if record is None else replace(record, found=named(lease))

    def _parsed(self, lease: Object) -> Record | None:
        try:
            record = Record.parse(lease)
        except (KeyError, TypeError, ValueError, AttributeError, SandboxError):
            meta = lease.get("metadata")
            name = str(meta.get("name"))[:300] if isinstance(meta, dict) else "without a name"
            log.warning("the Lease %r is no record that can be read: it is left as it is", name)
            return None
        if record.kind == "chat":
            self._owners[record.sandbox] = record.owner
        return record


async def nobody(owner: str) -> bool:
    return False
