"""Pods: made, awaited, reached and ended. Nothing here knows whose a sandbox is."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections import deque
from contextlib import aclosing, suppress
from dataclasses import replace

from cubicle.drivers.common import guest_tcp
from cubicle.drivers.common.guest_tcp import GuestAddress, GuestKeys
from cubicle.drivers.kubernetes.client import ApiError, KubernetesClient
from cubicle.drivers.kubernetes.objects import Object, PodSeen, has_ended, named, pod_seen, reduced_pod
from cubicle.drivers.kubernetes.template import GUEST_PORT
from cubicle.guest import operations
from cubicle.machine.connection import GuestLink
from cubicle.machine.errors import SandboxError, StartFailed

log = logging.getLogger(__name__)

_CONNECT_SECONDS = 5.0
_HALT_SECONDS = 15.0
_END_SECONDS = 120.0
_GRACE = 1
_PAUSE = 0.02
_WATCH_SECONDS = 60.0
_WATCH_PAUSE = 0.5
_QUIET_SECONDS = 1.0
_MAX_HALTED = 1000


class PodLeft(StartFailed):
    """The pod was deleted while it was waited for: its node is drained, say."""

    def __init__(self) -> None:
        super().__init__("The sandbox's pod was deleted while it started.")


class Pods:
    """The pods of one namespace, and the key by which their guests know the service."""

    def __init__(self, client: KubernetesClient, keys: GuestKeys) -> None:
        self._client = client
        self._keys = keys
        self._halted: deque[str] = deque(maxlen=_MAX_HALTED)

    async def get(self, name: str) -> PodSeen | None:
        found = await self._client.get("pods", name) if name else None
        return None if found is None else _seen(found)

    async def list(self, selector: str) -> list[PodSeen]:
        found, _ = await self._client.list("pods", selector, _of_many)
        return found

    async def create(self, body: Object) -> PodSeen:
        """Raises StartFailed."""
        try:
            made = await self._client.create("pods", body)
        except ApiError as error:
            raise StartFailed(f"The sandbox could not be started. {error}") from error
        if made is None:
            raise StartFailed("A pod of this name is there already.")
        return _seen(made)

    async def come_up(self, pod: PodSeen, epoch: int, seconds: float) -> PodSeen:
        """Wait until its guest answers. Raises StartFailed, which says what was in the way."""
        deadline = time.monotonic() + seconds
        last = pod
        try:
            async with asyncio.timeout(seconds):
                last = await self._running(pod)
                await self.answering(last, epoch)
        except TimeoutError:
            with suppress(SandboxError):
                last = await self.get(pod.name) or last
            raise StartFailed(f"The sandbox did not come up: {_waits_for(last)}.") from None
        log.debug("pod %s is up, %.1f s before its time", pod.name, deadline - time.monotonic())
        return last

    async def _running(self, pod: PodSeen) -> PodSeen:
        while True:
            try:
                now = await self._client.get("pods", pod.name)
                if now is None:
                    raise PodLeft  # a watch tells nothing of what was gone before it began
                if (seen := _judged(pod, "", now)) is not None:
                    return seen
                params = {
                    "fieldSelector": f"metadata.name={pod.name}",
                    "resourceVersion": now["metadata"]["resourceVersion"],
                }
                async with aclosing(self._client.watch("pods", params, _WATCH_SECONDS)) as events:
                    async for event, found in events:
                        if event not in ("BOOKMARK", "ERROR") and (seen := _judged(pod, event, found)) is not None:
                            return seen
            except ApiError as error:
                log.warning("a pod that starts cannot be watched: %s", error)
            await asyncio.sleep(_WATCH_PAUSE)

    async def answering(self, pod: PodSeen, epoch: int) -> None:
        """Returns when the guest of a pod that runs answers: a container runs before its guest is loaded."""
        while True:
            with suppress(OSError):
                (await self.connect(pod, epoch)).close()
                return
            now = await self.get(pod.name)
            if now is None or now.leaving or now.uid != pod.uid:
                raise PodLeft
            if now.lost:
                await self._client.delete("pods", now.found)  # another is made elsewhere
                raise PodLeft
            if now.ended:
                raise StartFailed(f"The sandbox did not come up: {now.ended}.")
            await asyncio.sleep(_PAUSE)

    async def connect(self, pod: PodSeen, epoch: int) -> socket.socket:
        """Raises OSError."""
        return await guest_tcp.connect(
            GuestAddress(pod.address, GUEST_PORT, pod.uid), epoch, self._keys, _CONNECT_SECONDS
        )

    async def halt(self, pod: PodSeen, epoch: int) -> bool:
        """Have its guest end every process; whether it says that it did."""
        if not pod.address:
            return False
        try:
            async with asyncio.timeout(_HALT_SECONDS):
                link = await GuestLink.over(await self.connect(pod, epoch))
                try:
                    await link.ask(operations.Halt(), limit=_HALT_SECONDS)
                finally:
                    link.close()
        except (OSError, SandboxError):
            return False
        return True

    async def quiet(self, pod: PodSeen, epoch: int) -> None:
        """Of a pod that the cluster deletes: have its processes end now, if its guest can be reached."""
        if pod.uid not in self._halted and not pod.ended:
            with suppress(TimeoutError):
                async with asyncio.timeout(_QUIET_SECONDS):
                    await self.halt(pod, epoch)

    async def end(self, pod: PodSeen, epoch: int) -> None:
        """End its processes, and have the pod deleted. Returns when nothing of it runs; the kubelet needs not be done.

        Of a node that is lost nobody knows: the pod ends when the node comes back, and nobody waits for that. Raises
        SandboxError if it cannot be known otherwise.
        """
        halted = bool(pod.ended) or await self.halt(pod, epoch)
        await self._client.delete("pods", pod.found, grace=_GRACE)
        if halted:
            self._halted.append(pod.uid)
            return
        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline:
            found = await self._client.get("pods", pod.name)
            if found is None or (seen := _seen(found)).uid != pod.uid or has_ended(found) or not _was_used(found):
                return
            if seen.lost:
                log.warning("the node of the pod %s does not answer: it is given up", pod.name)
                return
            await asyncio.sleep(0.2)
        raise SandboxError("The sandbox's processes could not be ended: its node does not say that they did.")


def _seen(found: Object) -> PodSeen:
    """Raises ApiError for what is no pod."""
    try:
        return pod_seen(reduced_pod(found))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ApiError(0, "The API server tells of a pod that makes no sense.") from None


def _of_many(found: Object) -> PodSeen:
    """The same without what nobody asks of a pod that runs. Raises ApiError."""
    seen = _seen(found)
    return replace(seen, found={**named(found), "spec": seen.found["spec"]}) if seen.running else seen


def _judged(pod: PodSeen, event: str, found: Object) -> PodSeen | None:
    """The pod if it runs, None if it has to be waited for. Raises StartFailed."""
    seen = _seen(found)
    if event == "DELETED" or seen.leaving or seen.uid != pod.uid:
        raise PodLeft
    if seen.ended or seen.trouble:
        raise StartFailed(f"The sandbox did not come up: {seen.ended or seen.trouble}.")
    return seen if seen.running else None


def _was_used(pod: Object) -> bool:
    """Whether it ever ran, as far as the cluster was told: nobody has connected to one that did not."""
    return bool((pod.get("status") or {}).get("phase", "Pending") != "Pending")


def new_pod_name(sandbox: str) -> str:
    """For a wake: the pod before may not be gone yet."""
    return f"{sandbox[:50].rstrip('-')}-{secrets.token_hex(4)}"


def _waits_for(pod: PodSeen) -> str:
    """What a pod that does not start waits for, as the cluster says it."""
    if pod.running:
        return "its guest does not answer"
    for condition in (pod.found.get("status") or {}).get("conditions") or []:
        if condition.get("status") == "False" and condition.get("message"):
            return str(condition["message"])[:300]
    return f"its pod is {pod.phase.lower()}"
