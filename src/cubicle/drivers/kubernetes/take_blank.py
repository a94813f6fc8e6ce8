"""How a chat gets a blank pod: a record, one label, a record that lasts. Each write names the version that it saw."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from cubicle.drivers.kubernetes.claims import Claims
from cubicle.drivers.kubernetes.objects import PodSeen, Record
from cubicle.drivers.kubernetes.pods import PodLeft, Pods
from cubicle.drivers.kubernetes.pool import BlankPods
from cubicle.drivers.kubernetes.records import Records
from cubicle.drivers.kubernetes.trash import changed
from cubicle.machine.errors import OwnerHasSandbox, StartFailed

_MAX_CHOICES = 100
"""Blank pods that one chat tries: others may be quicker with each."""
_MAX_IN_THE_WAY = 3
_ANSWER_SECONDS = 55.0


@dataclass(frozen=True, slots=True)
class Taken:
    """A pod that is a chat's."""

    pod: PodSeen
    epoch: int


class BlankTaker:
    """Takes from the pods of the cluster's own Deployment."""

    def __init__(self, records: Records, pods: Pods, blank: BlankPods, claims: Claims) -> None:
        self._records = records
        self._pods = pods
        self._blank = blank
        self._claims = claims

    async def take(self, owner: str) -> Taken | None:
        """None if there is none. Raises OwnerHasSandbox, StartFailed."""
        record: Record | None = None
        in_the_way = 0
        for _ in range(_MAX_CHOICES):
            pod = self._blank.choose()
            if pod is None:
                break
            try:
                record = await self._named(record, owner, pod)
                taken = await self._labelled(record, pod) if record is not None else None
            finally:
                self._blank.release(pod)
            if record is not None and taken is not None:
                return await self._settled(record, taken)
            in_the_way += record is None
            if in_the_way > _MAX_IN_THE_WAY:  # one that nobody can read, say
                raise OwnerHasSandbox("")
        if record is not None and not await self._records.remove(record):
            raise OwnerHasSandbox(await self._other(owner))
        return None

    async def _named(self, record: Record | None, owner: str, pod: PodSeen) -> Record | None:
        """The owner's record, which names this pod; None if the one that was in the way is gone, as if given up."""
        if record is None:
            named = await self._records.create(Record("chat", pod.name, owner, pod=pod.name))
        else:
            named = await self._records.point_to(record, pod.name, pod.name)
        if named is None and (other := await self._other(owner)):
            raise OwnerHasSandbox(other)
        return named

    async def _other(self, owner: str) -> str:
        other = await self._records.of_owner(owner)
        return other.sandbox if other is not None else ""

    async def _labelled(self, record: Record, pod: PodSeen) -> PodSeen | None:
        """The pod with the owner's label; None if another has it."""
        seen: PodSeen | None = pod
        while seen is not None:
            if await self._blank.take(seen, record):
                return seen
            seen = await self._blank.look_again(seen)  # its status may have changed, nothing else
        return None

    async def _settled(self, record: Record, pod: PodSeen) -> Taken:
        """When this returns, the pod is the chat's for good, and its guest answers."""
        await self._claims.keep(pod.name)  # first: what is bound outlives its pod
        bound, answered = await asyncio.gather(
            self._records.bind(record), self._answering(pod, record), return_exceptions=True
        )
        if isinstance(bound, BaseException):
            raise bound
        if bound is None:
            now = await self._records.of_owner(record.owner)
            if now is None or now.pod != pod.name:
                await self._pods.end(pod, record.epoch)
                raise changed()
        if isinstance(answered, PodLeft):  # its node is drained, say: the chat's sandbox is started elsewhere
            raise OwnerHasSandbox(pod.name)
        if answered is not None:
            raise answered
        return Taken(pod, record.epoch)

    async def _answering(self, pod: PodSeen, record: Record) -> None:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._pods.answering(pod, record.epoch)
        except TimeoutError:
            raise StartFailed("The sandbox's guest does not answer.") from None
