"""Removes the files of deleted sandboxes from the shared volume, by pods: many sandboxes by one."""

from __future__ import annotations

import asyncio
import logging
import secrets

from cubicle.drivers.kubernetes import template
from cubicle.drivers.kubernetes.client import KubernetesClient
from cubicle.drivers.kubernetes.objects import DELETING, SANDBOX, Record, age, pods_selector
from cubicle.drivers.kubernetes.records import Records
from cubicle.drivers.kubernetes.template import PodTerms
from cubicle.machine.errors import SandboxError
from cubicle.settings_kubernetes import PodFiles
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

_MANY = 50
_REST_SECONDS = 2.0
_SOON_SECONDS = 5.0
_AGAIN_SECONDS = 60.0
_POD_SECONDS = 600.0


class Removal:
    """Does what the `removed` records of this replica ask for; those of others the sweeper has done, when they are old.
    A record goes when it is done."""

    def __init__(self, client: KubernetesClient, records: Records, terms: PodTerms) -> None:
        self._client = client
        self._records = records
        self._terms = terms
        self._wanted = asyncio.Event()
        self._left = False
        """Whether something is to be removed whose pods are not gone yet."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._wanted.set()
        self._task = start_task(self._run(), name="removal of files")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def request(self, sandbox: str) -> None:
        """Have its files removed: this is on record when it returns."""
        await self._records.create(Record("removed", sandbox))
        self._wanted.set()

    async def request_unowned(self, sandbox: str, trash: Record | None) -> bool:
        """The same of one that no chat has. False if one has it by now, and its files stay: this is written down first,
        and then looked at, for whoever gives it to a chat meanwhile looks in turn."""
        await self.request(sandbox)
        now = await self._records.of_sandbox(sandbox)
        if now.chat is None or now.chat.step == DELETING:
            if trash is not None and not await self._records.remove(trash):
                raise SandboxError("The sandbox is being changed by another service.")
            return True
        if now.removed is not None:
            await self._records.remove(now.removed)
        return False

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_SOON_SECONDS if self._left else _AGAIN_SECONDS):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            await asyncio.sleep(_REST_SECONDS)  # more may come, and one pod does for all
            try:
                await self.remove_now()
            except SandboxError as error:
                log.warning("files of deleted sandboxes could not be removed yet: %s", error)
            except Exception:
                log.exception("files of deleted sandboxes could not be removed yet")

    async def remove_now(self, others_after: float | None = None) -> int:
        """Remove what can be removed at present; how many sandboxes that were. Of other replicas only what is older
        than so many seconds, if that is said."""
        records = await self._records.all()
        owned = {record.sandbox for record in records if record.kind == "chat"}
        done = 0
        asked = [
            record
            for record in records
            if record.kind == "removed" and record.sandbox not in owned and self._concerns(record, others_after)
        ]
        self._left, failed = False, None
        while asked:
            some, asked = asked[:_MANY], asked[_MANY:]
            ready = [record for record in some if not await self._has_pods(record.sandbox)]
            self._left = self._left or len(ready) < len(some)
            if not ready:
                continue
            try:
                await self._remove_files([record.sandbox for record in ready])
            except SandboxError as error:
                failed = error  # those that come after these are not held up
                continue
            in_trash = {record.sandbox: record for record in records if record.kind == "trash"}
            for record in ready:
                if record.sandbox in in_trash:
                    await self._records.remove(in_trash[record.sandbox])
                await self._records.remove(record)
            done += len(ready)
        if failed is not None:
            raise failed
        return done

    def _concerns(self, record: Record, others_after: float | None) -> bool:
        if others_after is None:
            return record.holder == self._records.holder
        return record.holder != self._records.holder and age(record.found) > others_after

    async def _has_pods(self, sandbox: str) -> bool:
        """Whether one may still write: the cluster takes its time to end them."""
        selector = pods_selector(self._terms.instance, **{SANDBOX: sandbox})
        found, _ = await self._client.list("pods", selector)
        return bool(found) or await self._client.get("pods", sandbox) is not None

    async def _remove_files(self, sandboxes: list[str]) -> None:
        if self._terms.files is PodFiles.CLAIM:
            for sandbox in sandboxes:
                claim = await self._client.get("persistentvolumeclaims", template.claim_name(sandbox))
                if claim is not None:
                    await self._client.delete("persistentvolumeclaims", claim)
            return
        name = f"{self._terms.instance}-removal-{secrets.token_hex(4)}"
        pod = await self._client.create("pods", template.removal_pod(self._terms, name, sandboxes))
        if pod is None:
            raise SandboxError("A pod of this name is there already.")
        try:
            async with asyncio.timeout(_POD_SECONDS):
                while (phase := (pod.get("status") or {}).get("phase")) not in ("Succeeded", "Failed"):
                    await asyncio.sleep(0.5)
                    pod = await self._client.get("pods", name)
                    if pod is None:
                        raise SandboxError("The pod that removes files was deleted.")
        except TimeoutError:
            raise SandboxError("The pod that removes files did not end in time.") from None
        finally:
            if pod is not None:
                await self._client.delete("pods", pod, grace=1)
        if phase == "Failed":
            raise SandboxError("The pod that removes files failed; its log has the reason.")
