"""Cleans up what crashes left in the cluster. One replica does it at a time, and nothing goes without a fresh look.

| left behind                                         | what becomes of it                                           |
|-----------------------------------------------------|--------------------------------------------------------------|
| a record that is being deleted                      | the deletion is finished                                     |
| a record that is not bound, its pod has not its chat| it goes: the chat never had a sandbox                        |
| a pod of a chat that the chat's record does not name| it is ended; its files are the record's                      |
| a pod that is apart, whose maker is gone            | it is ended; its files are removed                           |
| files to be removed, of a replica that is gone      | they are removed                                             |
| a pod that has removed files                        | it goes                                                      |
| programs of a version that no pod and no replica has| they go                                                      |
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from cubicle.drivers.kubernetes import template
from cubicle.drivers.kubernetes.client import KubernetesClient
from cubicle.drivers.kubernetes.objects import (
    APART,
    APP,
    DELETING,
    DOMAIN,
    FIRST_EPOCH,
    INSTANCE,
    STATE,
    Object,
    PodSeen,
    Record,
    age,
    pod_seen,
    pods_selector,
    selector,
)
from cubicle.drivers.kubernetes.pods import Pods
from cubicle.drivers.kubernetes.records import Records
from cubicle.drivers.kubernetes.removal import Removal
from cubicle.drivers.kubernetes.template import PodTerms
from cubicle.machine.errors import SandboxError
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

_RENEW_SECONDS = 60.0
_ROUNDS = 5
"""A sweep each so many renewals."""
_GRACE_SECONDS = 600.0
"""What is younger may be in the making."""
_APART_SECONDS = 3600.0
"""No check of the isolation takes so long."""
_DEAD_SECONDS = 3 * _RENEW_SECONDS
_RELEASE_SECONDS = 3.0
_USED = f"{DOMAIN}/used"


class Sweeper:
    """One of each replica; the holder of the Lease `<instance>-sweeper` does the work."""

    def __init__(
        self,
        client: KubernetesClient,
        records: Records,
        pods: Pods,
        terms: PodTerms,
        removal: Removal,
        finish_delete: Callable[[Record], Awaitable[None]],
    ) -> None:
        self._client = client
        self._records = records
        self._pods = pods
        self._terms = terms
        self._removal = removal
        self._finish_delete = finish_delete
        self._name = f"{terms.instance}-sweeper"
        self._task: asyncio.Task[None] | None = None
        self._seen: dict[str, tuple[str, float]] = {}
        """Of Leases and programs of others: the last version, and since when it is that. Their clocks do not matter."""

    def start(self) -> None:
        self._task = start_task(self._run(), name="sweeper")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            try:
                async with asyncio.timeout(_RELEASE_SECONDS):
                    await self._release()
            except (SandboxError, TimeoutError):
                pass  # another has it soon

    async def _run(self) -> None:
        turn = 0
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            turn += 1
            try:
                held = await self.hold()
                if turn % _ROUNDS:
                    continue
                await self.keep_programs()
                if held and (done := await self.sweep(_GRACE_SECONDS)):
                    log.info("swept: %s", ", ".join(f"{count} {what}" for what, count in sorted(done.items())))
            except SandboxError as error:
                log.warning("the cluster could not be swept: %s", error)
            except Exception:
                log.exception("the cluster could not be swept")

    # ---- who sweeps

    async def hold(self) -> bool:
        """Whether this replica is the one that sweeps: it was before, or nobody has been for some time."""
        spec = {"holderIdentity": self._records.holder, "renewTime": _now()}
        found = await self._client.get("leases", self._name)
        if found is None:
            labels = {APP: "cubicle-sweeper", INSTANCE: self._terms.instance}
            kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            body: Object = {**kind, "metadata": {"name": self._name, "labels": labels}, "spec": spec}
            return await self._client.create("leases", body) is not None
        holder = (found.get("spec") or {}).get("holderIdentity") or ""
        if holder not in ("", self._records.holder) and self._unchanged(found) < _DEAD_SECONDS:
            return False
        change = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "spec": spec}
        return await self._client.patch("leases", self._name, change) is not None

    async def _release(self) -> None:
        found = await self._client.get("leases", self._name)
        if found is not None and (found.get("spec") or {}).get("holderIdentity") == self._records.holder:
            version = found["metadata"]["resourceVersion"]
            change = {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": ""}}
            await self._client.patch("leases", self._name, change)

    def _unchanged(self, found: Object) -> float:
        """For how many seconds this replica has seen an object as it is."""
        name, version = found["metadata"]["name"], found["metadata"]["resourceVersion"]
        if self._seen.get(name, ("", 0.0))[0] != version:
            self._seen[name] = (version, time.monotonic())
        return time.monotonic() - self._seen[name][1]

    # ---- what is swept

    async def sweep(self, grace: float) -> Counter[str]:
        """Clean up what is older than so many seconds; how much of what that was. What fails is left for later."""
        done: Counter[str] = Counter()
        records = await self._records.all()
        pods = await self._pods.list(pods_selector(self._terms.instance))
        await self._sweep_records(records, pods, grace, done)
        await self._sweep_pods(records, pods, grace, done)
        await self._try(done, "pods of checks that were cut off", self._sweep_apart(grace))
        await self._try(done, "programs that nobody uses", self._sweep_programs(pods, grace))
        await self._try(done, "sandboxes whose files were removed", self._removal.remove_now(others_after=grace))
        await self._try(done, "pods that had removed files", self._sweep_removal_pods(grace))
        return +done

    async def _try(self, done: Counter[str], what: str, work: Awaitable[int]) -> None:
        """One that cannot be cleaned up now keeps nobody from the others."""
        try:
            done[what] += await work
        except SandboxError as error:
            log.warning("the sweeper goes on without some %s: %s", what, error)

    async def _sweep_records(
        self, records: list[Record], pods: list[PodSeen], grace: float, done: Counter[str]
    ) -> None:
        labels = {pod.name: pod.owner for pod in pods}
        for record in records:
            if record.kind != "chat":
                continue
            if record.step == DELETING:
                await self._try(done, "deletions finished", self._finished(record))
            elif not record.step and labels.get(record.sandbox) != record.owner and age(record.found) > grace:
                await self._try(done, "records without a sandbox", self._records.remove(record))

    async def _finished(self, record: Record) -> int:
        await self._finish_delete(record)
        return 1

    async def _sweep_pods(self, records: list[Record], pods: list[PodSeen], grace: float, done: Counter[str]) -> None:
        named = {record.owner: record.pod for record in records if record.kind == "chat"}
        for pod in pods:
            odd = pod.owner and named.get(pod.owner) != pod.name
            if odd and not pod.leaving and age(pod.found) > grace:
                await self._try(done, "pods that no record names", self._end_unnamed(pod))

    async def _end_unnamed(self, pod: PodSeen) -> int:
        fresh = await self._records.of_owner(pod.owner)  # not as the list said some time ago
        if fresh is not None and fresh.pod == pod.name:
            return 0
        await self._pods.end(pod, fresh.epoch if fresh is not None else FIRST_EPOCH)
        return 1

    async def _sweep_apart(self, grace: float) -> int:
        count = 0
        for pod in await self._pods.list(pods_selector(self._terms.instance, **{STATE: APART})):
            if not pod.leaving and age(pod.found) > grace + _APART_SECONDS:
                if await self._records.of_sandbox(pod.sandbox):
                    continue
                await self._pods.end(pod, FIRST_EPOCH)
                await self._removal.request(pod.sandbox)
                count += 1
        return count

    async def _sweep_removal_pods(self, grace: float) -> int:
        """Of replicas that did not see the end of theirs."""
        found, _ = await self._client.list("pods", selector(self._terms.instance, template.REMOVAL_APP))
        over = [pod for pod in found if pod_seen(pod).ended and age(pod) > grace]
        return sum([await self._client.delete("pods", pod) for pod in over])

    # ---- programs

    async def keep_programs(self) -> None:
        """Show that this replica's version is in use, whether it has pods or not."""
        name = template.programs_name(self._terms.instance)
        if await self._client.patch("configmaps", name, {"metadata": {"annotations": {_USED: _now()}}}) is None:
            await self._client.create("configmaps", template.programs_map(self._terms.instance))

    async def _sweep_programs(self, pods: list[PodSeen], grace: float) -> int:
        instance = self._terms.instance
        used = {_programs_of(pod.found) for pod in pods} | {template.programs_name(instance)}
        deployment = await self._client.get("deployments", f"{instance}-blank")
        if deployment is not None:
            used.add(_programs_of(deployment["spec"]["template"]))
        found, _ = await self._client.list("configmaps", selector(instance, template.PROGRAMS_APP))
        count = 0
        for one in found:
            old = age(one) > grace and self._unchanged(one) > grace
            if old and one["metadata"]["name"] not in used:
                count += await self._client.delete("configmaps", one, version=True)
        return count


def _programs_of(pod: Object) -> str:
    for volume in (pod.get("spec") or {}).get("volumes") or []:
        if volume.get("name") == "programs":
            return str((volume.get("configMap") or {}).get("name", ""))
    return ""


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
