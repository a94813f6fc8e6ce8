"""Cleans up what crashes left in the cluster. One replica does it at a time, and nothing goes without a fresh look.

| left behind                                         | what becomes of it                                           |
|-----------------------------------------------------|--------------------------------------------------------------|
| a record that is being deleted                      | the deletion is finished                                     |
| a record that is not bound, and its pod is not its  | it goes: the chat never had a sandbox                        |
| a pod of a chat that the chat's record does not name| it is ended; its files are the record's                      |
| the programs of a version that no pod uses          | they go                                                      |
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
from cubicle.drivers.kubernetes.objects import APP, DELETING, INSTANCE, Object, Record, age, pods_selector, rightful
from cubicle.drivers.kubernetes.pods import Pods
from cubicle.drivers.kubernetes.records import Records
from cubicle.drivers.kubernetes.template import PodTerms
from cubicle.machine.errors import SandboxError
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

_EVERY_SECONDS = 300.0
_GRACE_SECONDS = 600.0
"""What is younger may be in the making."""
_DEAD_SECONDS = 3 * _EVERY_SECONDS


class Sweeper:
    """One of each replica; the holder of the Lease `<instance>-sweeper` does the work."""

    def __init__(
        self,
        client: KubernetesClient,
        records: Records,
        pods: Pods,
        terms: PodTerms,
        finish_delete: Callable[[Record], Awaitable[None]],
    ) -> None:
        self._client = client
        self._records = records
        self._pods = pods
        self._terms = terms
        self._finish_delete = finish_delete
        self._task: asyncio.Task[None] | None = None
        self._seen_version, self._seen_at = "", 0.0

    def start(self) -> None:
        self._task = start_task(self._run(), name="sweeper")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            try:
                if await self.hold():
                    done = await self.sweep(_GRACE_SECONDS)
                    if done:
                        log.info("swept: %s", ", ".join(f"{count} {what}" for what, count in sorted(done.items())))
            except SandboxError as error:
                log.warning("the cluster could not be swept: %s", error)

    async def hold(self) -> bool:
        """Whether this replica is the one that sweeps: it was before, or nobody has been for some rounds."""
        name = f"{self._terms.instance}-sweeper"
        labels = {APP: "cubicle-sweeper", INSTANCE: self._terms.instance}
        spec = {"holderIdentity": self._records.holder}
        body: Object = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "labels": labels},
            "spec": {**spec, "renewTime": _now()},
        }
        found = await self._client.get("leases", name)
        if found is None:
            return await self._client.create("leases", body) is not None
        version = found["metadata"]["resourceVersion"]
        if found["spec"].get("holderIdentity") != self._records.holder:
            if version != self._seen_version:
                self._seen_version, self._seen_at = version, time.monotonic()
            if time.monotonic() - self._seen_at < _DEAD_SECONDS:
                return False
        change = {"metadata": {"resourceVersion": version}, "spec": {**spec, "renewTime": _now()}}
        return await self._client.patch("leases", name, change) is not None

    async def sweep(self, grace: float) -> Counter[str]:
        """Clean up what is older than so many seconds; how much of what that was."""
        done: Counter[str] = Counter()
        records = await self._records.all()
        pods = await self._pods.list(pods_selector(self._terms.instance))
        chats: dict[str, list[Record]] = {}
        for record in records:
            if record.kind == "chat":
                chats.setdefault(record.sandbox, []).append(record)
        labels = {pod.name: pod.owner for pod in pods}
        for sandbox, wanting in chats.items():
            right = rightful(wanting, labels.get(sandbox, ""))
            for record in wanting:
                if record.step == DELETING:
                    await self._finish_delete(record)
                    done["deletions finished"] += 1
                elif record is not right and not record.step and age(record.found) > grace:
                    done["records without a sandbox"] += await self._records.remove(record)
        named = {record.owner: record.pod for record in records if record.kind == "chat"}
        for pod in pods:
            odd = pod.owner and named.get(pod.owner) != pod.name
            if odd and not pod.leaving and age(pod.found) > grace:
                fresh = await self._records.of_owner(pod.owner)  # not as the list said some time ago
                if fresh is None or fresh.pod != pod.name:
                    await self._pods.end(pod, fresh.epoch if fresh is not None else 1)
                    done["pods that no record names"] += 1
        done["unused programs"] += await self._sweep_programs({_programs_of(pod.found) for pod in pods}, grace)
        return +done

    async def _sweep_programs(self, used: set[str], grace: float) -> int:
        found, _ = await self._client.list("configmaps", f"{APP}=cubicle-guest,{INSTANCE}={self._terms.instance}")
        count = 0
        for one in found:
            name = one["metadata"]["name"]
            if name != template.programs_name(self._terms.instance) and name not in used and age(one) > grace:
                count += await self._client.delete("configmaps", one, version=True)
        return count


def _programs_of(pod: Object) -> str:
    for volume in (pod.get("spec") or {}).get("volumes") or []:
        if volume.get("name") == "programs":
            return str((volume.get("configMap") or {}).get("name", ""))
    return ""


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
