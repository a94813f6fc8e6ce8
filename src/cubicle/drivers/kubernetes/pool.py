"""Blank pods: a Deployment keeps them up, and a chat takes one by its label; the cluster makes another by itself."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from contextlib import suppress

from cubicle.drivers.kubernetes import template
from cubicle.drivers.kubernetes.client import ApiError, Follower, KubernetesClient
from cubicle.drivers.kubernetes.objects import (
    BLANK,
    CHAT,
    SANDBOX,
    STATE,
    TAKEN,
    Object,
    PodSeen,
    Record,
    owner_references,
    pod_seen,
    pods_selector,
    reduced_pod,
)
from cubicle.drivers.kubernetes.template import PodTerms
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

_MANAGER = "cubicle"


class BlankPods:
    """The blank pods of one instance, as far as this replica knows."""

    def __init__(self, client: KubernetesClient, terms: PodTerms, size: int) -> None:
        self._client = client
        self._terms = terms
        self._size = size
        self._digest = terms.digest()
        selector = pods_selector(terms.instance, **{STATE: BLANK})
        self._follower = Follower(client, "pods", selector, _reduced)
        self._chosen: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Have the Deployment be of today's terms. Without a pool there is none, and one from before is left alone."""
        if not self._size:
            return
        name = f"{self._terms.instance}-blank"
        there = await self._client.get("deployments", name)
        await self._client.apply("deployments", name, template.deployment(self._terms), _MANAGER)
        if there is None:  # from then on it is scaled by whoever wants to
            await self._client.patch("deployments", name, {"spec": {"replicas": self._size}})
        self._task = start_task(self._follower.run(), name="blank pods")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def pools(self) -> bool:
        return self._size > 0

    def choose(self) -> PodSeen | None:
        """One that runs and is of today's terms; any of them, so that two replicas seldom want the same. Until it is
        released, others here choose another, as long as there is one."""
        seen = [pod_seen(pod) for pod in self._follower.objects.values()]
        usable = [pod for pod in seen if pod.running and pod.terms == self._digest]
        free = [pod for pod in usable if pod.name not in self._chosen] or usable
        if not free:
            return None
        pod = random.choice(free)  # noqa: S311 - no secret
        self._chosen[pod.name] += 1
        return pod

    def release(self, pod: PodSeen) -> None:
        """Whoever chose it is done with it, in one way or the other."""
        self._chosen[pod.name] -= 1
        self._chosen += Counter()

    def count(self) -> int:
        return len([1 for pod in self._follower.objects.values() if pod_seen(pod).running])

    def forget(self, pod: PodSeen) -> None:
        self._follower.objects.pop(pod.name, None)

    async def take(self, pod: PodSeen, record: Record) -> bool:
        """Put the label of the record's chat on a blank pod, as it was seen; False if it has changed or is gone."""
        self.forget(pod)
        meta = {
            "resourceVersion": pod.found["metadata"]["resourceVersion"],
            "uid": pod.uid,
            "labels": {STATE: TAKEN, CHAT: record.owner, SANDBOX: pod.sandbox},
            "ownerReferences": owner_references(record),
        }
        return await self._client.patch("pods", pod.name, {"metadata": meta}) is not None

    async def look_again(self, pod: PodSeen) -> PodSeen | None:
        """The same pod as it is now, if it is still blank."""
        with suppress(ApiError):
            found = await self._client.get("pods", pod.name)
            seen = None if found is None else pod_seen(reduced_pod(found))
            return seen if seen is not None and seen.running and not seen.owner and seen.uid == pod.uid else None
        return None


def _reduced(pod: Object) -> Object:
    """What a choice needs of a pod: thousands are kept by each replica."""
    meta, status = pod["metadata"], pod.get("status") or {}
    kept = ("name", "uid", "resourceVersion", "labels", "annotations", "deletionTimestamp")
    return {
        "metadata": {name: meta[name] for name in kept if name in meta},
        "spec": {"restartPolicy": (pod.get("spec") or {}).get("restartPolicy")},
        "status": {name: status[name] for name in ("phase", "podIP") if name in status},
    }
