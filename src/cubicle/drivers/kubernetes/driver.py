"""The Kubernetes driver: each sandbox is a pod with the guest in it, and files that outlive the pod."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from cubicle.drivers.common.completion import complete
from cubicle.drivers.common.guest_tcp import GuestKeys
from cubicle.drivers.common.one_host import NeverFrozen
from cubicle.drivers.kubernetes import template
from cubicle.drivers.kubernetes.claims import Claims
from cubicle.drivers.kubernetes.client import KubernetesClient
from cubicle.drivers.kubernetes.cluster import Cluster
from cubicle.drivers.kubernetes.objects import (
    BOUND,
    DELETING,
    FIRST_EPOCH,
    SANDBOX,
    PodSeen,
    Record,
    pods_selector,
    rightful,
    why_ended,
    word,
)
from cubicle.drivers.kubernetes.pods import PodLeft, Pods, new_pod_name
from cubicle.drivers.kubernetes.pool import BlankPods
from cubicle.drivers.kubernetes.records import Records, SandboxRecords, nobody
from cubicle.drivers.kubernetes.removal import Removal
from cubicle.drivers.kubernetes.size import measured
from cubicle.drivers.kubernetes.sweeper import Sweeper
from cubicle.drivers.kubernetes.take_blank import BlankTaker, Taken
from cubicle.drivers.kubernetes.template import PodTerms
from cubicle.drivers.kubernetes.trash import Trash, changed
from cubicle.machine.errors import (
    CannotRescue,
    NotRunning,
    OwnedByAnother,
    OwnerHasSandbox,
    SandboxError,
    StartFailed,
    Unusable,
)
from cubicle.machine.upload_folder import UploadFolder
from cubicle.sandbox.driver import Capabilities, DriverHost, SandboxSeen, State
from cubicle.sandbox.lost_found import Lost
from cubicle.sandbox.trash import Discarded, TrashNote

log = logging.getLogger(__name__)

_MAX_CONCURRENT_STARTS = 16
_START_SECONDS = 55.0
_RACES = 8


class KubernetesDriver(NeverFrozen):
    """The Driver protocol on a cluster, whose objects are the truth: nothing is kept on disk but the key."""

    def __init__(
        self, find_cluster: Callable[[], Cluster], key_file: Path, terms: PodTerms, *, pool_size: int = 0
    ) -> None:
        self._find_cluster = find_cluster
        self._key_file = key_file
        self._wanted = terms
        self._pool_size = pool_size
        self._starts = asyncio.Semaphore(_MAX_CONCURRENT_STARTS)
        self._starting: set[str] = set()
        self._reached: dict[str, Taken] = {}
        """Where sandboxes were last reached."""
        self._client: KubernetesClient
        self._terms: PodTerms
        self._pods: Pods
        self._records: Records
        self._claims: Claims
        self._trash: Trash
        self._removal: Removal
        self._blank: BlankPods
        self._taker: BlankTaker
        self.sweeper: Sweeper
        self.owns: Callable[[str], Awaitable[bool]] = nobody

    @property
    def capabilities(self) -> Capabilities:
        pools = self._pool_size > 0
        return Capabilities(remote=True, limits_processes=False, hides_kernel_files=False, pools=pools)

    async def open(self) -> None:
        keys = await asyncio.to_thread(GuestKeys.load, self._key_file)
        cluster = await asyncio.to_thread(self._find_cluster)
        await asyncio.to_thread(template.programs)
        self._terms = replace(self._wanted, keys=tuple(keys.moduli))
        instance = self._terms.instance
        self._client = KubernetesClient(cluster)
        self._pods = Pods(self._client, keys)
        holder = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._records = Records(self._client, instance, holder, self._owner_of_pod)
        self._records.owns = lambda owner: self.owns(owner)
        self._claims = Claims(self._client, self._terms)
        self._trash = Trash(self._records, self._terms.image)
        self._removal = Removal(self._client, self._records, self._terms)
        self._blank = BlankPods(self._client, self._terms, self._pool_size)
        self._taker = BlankTaker(self._records, self._pods, self._blank, self._claims)
        self.sweeper = Sweeper(
            self._client, self._records, self._pods, self._terms, self._removal, self._go_on_deleting
        )
        try:
            if await self._client.create("configmaps", template.programs_map(instance)) is None:
                with suppress(SandboxError):  # where the Role is an older one, it may not say that it uses them
                    await self.sweeper.keep_programs()
            await self._blank.open()
        except SandboxError as error:
            await self.close()
            raise Unusable(f"The cluster cannot be used. {error}") from error
        except BaseException:
            await self.close()
            raise
        self._removal.start()
        self.sweeper.start()

    async def close(self) -> None:
        await self.sweeper.close()
        await self._removal.close()
        await self._blank.close()
        await self._client.close()

    async def host(self) -> DriverHost:
        """Nobody may look at nodes: their kernel is not known."""
        server = urlsplit(self._client.cluster.server)
        port = server.port or (443 if server.scheme == "https" else 80)
        return DriverHost("", here=False, network_targets=(("the API server", server.hostname or "", port),))

    # ---- up

    async def start(self, name: str, owner: str | None) -> None:
        self._starting.add(word(name))
        try:
            async with self._starts:
                await complete(self._start(name, owner) if owner is not None else self._start_blank(name))
        finally:
            self._starting.discard(name)

    async def _start(self, name: str, owner: str) -> None:
        for _ in range(_RACES):
            record = await self._record_of(word(owner))
            fresh = record is None
            if record is None and (record := await self._create_record(name, owner)) is None:
                continue  # somebody else was quicker: look again
            if record.sandbox != name:
                raise OwnerHasSandbox(record.sandbox)
            if await self._bring_up(await self._records.ours(record), fresh):
                return
        raise StartFailed("The sandbox is being changed by another service.")

    async def _start_blank(self, name: str) -> None:
        pod = await self._pods.get(name)
        if pod is None or not pod.live:
            records = await self._records.of_sandbox(name)
            _refuse_trash(records)
            if records.chat is not None:
                await self._bring_up(records.chat, False)
                return
            await self._claims.ensure(name)
            body = template.sandbox_pod(self._terms, name, name, None, apart=self._blank.pools)
            pod = await self._pods.create(body)
        await self._up_or_away(pod, name, FIRST_EPOCH)

    async def _create_record(self, name: str, owner: str) -> Record | None:
        """Write down that the owner has this sandbox; None if the owner has one by now."""
        pod = await self._pods.get(name)
        if pod is not None and pod.owner not in ("", owner):
            raise OwnedByAnother
        blank = pod is not None and pod.live
        if not blank:
            records = await self._records.of_sandbox(name)
            if records.chat is not None and records.chat.owner != owner:
                raise OwnedByAnother
            _refuse_trash(records)
        return await self._records.create(Record("chat", name, owner, pod=name, step="" if blank else BOUND))

    async def _bring_up(self, record: Record, fresh: bool) -> bool:
        """Have the pod that the record names, or a new one; False if something has changed meanwhile."""
        pod = await self._pods.get(record.pod)
        if pod is not None and pod.live:
            return await self._keep_up(record, pod)
        if not record.step:  # it never had that pod, whose files may be somebody else's by now
            await self._records.remove(record)
            return False
        if not fresh or pod is not None:
            renamed = await self._records.point_to(record, new_pod_name(record.sandbox))
            if renamed is None:
                return False
            record = renamed
        if pod is not None:
            await (self._pods.quiet if pod.leaving else self._pods.end)(pod, record.epoch)
        try:
            await self._claims.ensure(record.sandbox)
            made = await self._pods.create(template.sandbox_pod(self._terms, record.pod, record.sandbox, record))
            now = await self._records.of_owner(record.owner)
            if now is None or now.pod != made.name:  # another service has begun a pod of its own meanwhile
                await self._pods.end(made, record.epoch)
                return False
            await self._up_or_away(made, record.sandbox, record.epoch)
        except PodLeft:
            return False
        except BaseException:
            if fresh and pod is None:
                await self._forget_failed(record)
            raise
        return True

    async def _keep_up(self, record: Record, pod: PodSeen) -> bool:
        """Have a pod that is there be the chat's."""
        if pod.owner != record.owner and not await self._blank.take(pod, record):
            now = await self._pods.get(record.pod)
            if now is not None and now.live and now.owner not in ("", record.owner):
                await self._records.remove(record)
                raise OwnedByAnother
            return False
        await self._claims.keep(record.sandbox)
        if await self._records.bind(record) is None:
            return False
        try:
            await self._up_or_away(pod, record.sandbox, record.epoch)
        except PodLeft:
            return False  # another is made
        return True

    async def _up_or_away(self, pod: PodSeen, sandbox: str, epoch: int) -> None:
        """Wait for its guest; what does not come up goes, files apart."""
        try:
            up = await self._pods.come_up(pod, epoch, _START_SECONDS)
        except PodLeft:
            raise
        except BaseException:
            try:
                await self._pods.end(pod, epoch)
            except SandboxError as error:
                log.warning("a sandbox that did not come up is not known to have ended: %s", error)
            raise
        self._reached[sandbox] = Taken(up, epoch)

    async def _forget_failed(self, record: Record) -> None:
        """It never was up: the owner has none. No chat may keep what is on record to be removed."""
        with suppress(SandboxError):
            if (deleting := await self._records.begin_delete(record)) is not None:
                await self._finish_delete(deleting)

    async def take_over(self, owner: str) -> None:
        record = await self._records.own(word(owner))
        if record is not None:
            self._reached.pop(record.sandbox, None)

    async def take_blank(self, owner: str) -> str | None:
        """Give the owner a blank pod that runs, by its record and one label; None if there is none."""
        taken = await complete(self._taker.take(word(owner)))
        if taken is None:
            return None
        self._reached[taken.pod.name] = taken
        return taken.pod.name

    # ---- down

    async def stop(self, name: str) -> None:
        record = (await self._records.of_sandbox(word(name))).chat
        await complete(self._stop(name, record and await self._records.ours(record)))

    async def _stop(self, name: str, record: Record | None) -> bool:
        """End the pods of a sandbox; whether there were any."""
        self._reached.pop(name, None)
        if record is not None:
            await self._claims.keep(name)
            await self._records.bind(record)  # with the pod, its label goes
        pods = await self._pods.list(pods_selector(self._terms.instance, **{SANDBOX: name}))
        blank = await self._pods.get(name)
        if blank is not None and blank.name not in {pod.name for pod in pods}:
            pods.append(blank)
        epoch = record.epoch if record is not None else FIRST_EPOCH
        await asyncio.gather(*(self._pods.end(pod, epoch) for pod in pods if not pod.leaving))
        return bool(pods)

    async def delete(self, name: str) -> None:
        if not await complete(self._delete(await self._records.of_sandbox(word(name)), name)):
            raise changed()

    async def _delete(self, records: SandboxRecords, name: str) -> bool:
        """False if nobody had it, and a chat has it by now: its files stay."""
        had_pods = await self._stop(name, records.chat and await self._records.ours(records.chat))
        if records.chat is None:
            return not (records.trash or had_pods) or await self._removal.request_unowned(name, records.trash)
        record = (await self._records.of_sandbox(name)).chat  # it may be bound since, or another replica's
        if record is None or (record := await self._records.begin_delete(await self._records.ours(record))) is None:
            raise changed()
        await self._finish_delete(record)
        return True

    async def delete_blank(self, name: str) -> bool:
        records = await self._records.of_sandbox(word(name))
        if records.chat is None and records.trash is None:
            return await complete(self._delete(records, name))
        return records.chat is None

    async def purge(self, name: str) -> bool:
        records = await self._records.of_sandbox(word(name))
        if records.trash is None or records.chat is not None:
            return False
        return await complete(self._delete(records, name))

    async def _finish_delete(self, record: Record) -> None:
        """From the step `deleting` on whoever meets the record goes on with this."""
        await self._removal.request(record.sandbox)
        await self._records.remove(record)

    async def _record_of(self, owner: str) -> Record | None:
        """What the owner has; a deletion that a crash interrupted is finished first."""
        record = await self._records.of_owner(owner)
        if record is not None and record.step == DELETING:
            await self._go_on_deleting(record)
            return None
        return record

    async def _go_on_deleting(self, record: Record) -> None:
        await self._stop(record.sandbox, record)
        await self._finish_delete(record)

    # ---- the trash

    async def discard(self, name: str, note: TrashNote) -> None:
        records = await self._records.of_sandbox(word(name))
        if records.chat is not None and records.chat.step != DELETING:
            await complete(self._discard(await self._records.ours(records.chat), note))

    async def _discard(self, record: Record, note: TrashNote) -> None:
        reached = await self._look(record.sandbox)
        size = await measured(self._pods, reached.pod, record.epoch) if reached is not None else None
        await self._stop(record.sandbox, record)
        await self._trash.discard(record, note, size)

    async def discarded(self) -> Sequence[Discarded]:
        return await self._trash.discarded()

    async def restore(self, name: str, owner: str) -> None:
        await self._record_of(word(owner))  # a deletion that was interrupted does not count
        await self._trash.restore(name, owner)

    # ---- looking

    async def find(self, owner: str, hint: str = "") -> str | None:
        record = await self._record_of(word(owner))
        return None if record is None else record.sandbox

    async def list(self) -> Sequence[SandboxSeen]:
        pods, records = await asyncio.gather(self._pods.list(pods_selector(self._terms.instance)), self._records.all())
        by_name = {pod.name: pod for pod in pods}
        digest = self._terms.digest()
        by_sandbox: dict[str, list[Record]] = {}
        for record in records:
            by_sandbox.setdefault(record.sandbox, []).append(record)
        found = []
        for sandbox, kept in by_sandbox.items():
            label = by_name[sandbox].owner if sandbox in by_name else None
            chat = rightful([record for record in kept if record.kind == "chat"], label)
            if chat is not None and chat.step != DELETING:
                found.append(self._seen(sandbox, chat.owner, by_name.get(chat.pod), digest))
        for pod in pods:
            if pod.sandbox not in by_sandbox and not pod.leaving and not pod.owner:
                found.append(self._seen(pod.sandbox, None, pod, digest))
        return found

    async def names(self) -> Collection[str]:
        return {record.sandbox for record in await self._records.all() if record.kind == "chat"}

    def _seen(self, name: str, owner: str | None, pod: PodSeen | None, digest: str) -> SandboxSeen:
        state, reason = State.STOPPED, ""
        if name in self._starting:
            state = State.STARTING
        elif pod is not None and not pod.leaving:
            reason = pod.ended
            state = State.FAILED if reason else State.RUNNING if pod.running else State.STARTING
        current = pod is not None and pod.terms == digest
        return SandboxSeen(name, owner, state, reason, pod.image if pod is not None else self._terms.image, current)

    async def why_ended(self, name: str) -> str:
        record = await self._records.chat_of(word(name))
        return "" if record is None else why_ended(await self._pods.get(record.pod))

    async def rescue(self, lost: Lost, owner: str) -> str:
        raise CannotRescue("The Kubernetes driver sets no sandbox aside.")

    def uploads(self, name: str) -> UploadFolder | None:
        return None

    async def network(self, name: str) -> int | None:
        return None

    async def flush(self, name: str) -> None:
        """Where the volume has no space, the write itself is refused."""

    # ---- reaching

    async def connect(self, name: str) -> socket.socket:
        if (reached := self._reached.get(word(name))) is not None:
            with suppress(OSError):
                return await self._pods.connect(reached.pod, reached.epoch)
            self._reached.pop(name, None)
        now = await self._look(name)
        if now is None:
            raise NotRunning("The sandbox is not up.")
        try:
            sock = await self._pods.connect(now.pod, now.epoch)
        except OSError as error:
            raise NotRunning(f"The sandbox's guest does not answer: {error or type(error).__name__}.") from None
        self._reached[name] = now
        return sock

    async def address(self, name: str) -> tuple[str, int] | None:
        """Where its guest listens, if it runs."""
        found = await self._look(word(name))
        return None if found is None else (found.pod.address, template.GUEST_PORT)

    async def _look(self, name: str) -> Taken | None:
        """Its pod as the cluster knows it now, if it runs. What is used from now on has to outlive the pod."""
        record = await self._records.chat_of(name)
        if record is not None and not self._records.is_ours(record):
            return None
        pod = await self._pods.get(record.pod if record is not None else name)
        if pod is None or not pod.running or pod.owner != (record.owner if record is not None else ""):
            return None
        if record is not None and not record.step:  # a crash came between the label and the end of a claim
            await self._claims.keep(name)
            if await self._records.bind(record) is None:
                raise changed()
        return Taken(pod, record.epoch if record is not None else FIRST_EPOCH)

    async def _owner_of_pod(self, name: str) -> str | None:
        return None if (pod := await self._pods.get(name)) is None else pod.owner


def _refuse_trash(records: SandboxRecords) -> None:
    if records.removed is not None:
        raise StartFailed("This sandbox was deleted.")
    if records.trash is not None and records.chat is None:
        raise StartFailed("This sandbox is in the trash.")
