"""Name look-ups for the sandboxes: cached for seconds, a few at once for each chat, in turns between tenants.

The host's own resolver answers, so that a name means the same as on the host (hosts file, search domains). It blocks,
so it runs in threads of its own, and a name server that does not answer holds a thread for seconds. That is why a chat
has four look-ups at once, and a tenant a quarter of the threads.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address

from cubicle.core.chat import Chat
from cubicle.egress.blocked_networks import Address
from cubicle.egress.upstream import Resolve

Addresses = tuple[Address, ...]

MAX_CONCURRENT_PER_CHAT = 4
MAX_QUEUED_PER_CHAT = 512
_THREADS = 64
_FOUND_SECONDS = 10.0
_NOT_FOUND_SECONDS = 3.0
_MAX_CACHED = 8192
_MAX_CACHED_PER_TENANT = 1024


class TooManyLookups(OSError):
    """The chat has more names waiting than anybody needs."""


def look_up(host: str) -> Addresses:
    """What the host's resolver says; blocks. Raises OSError, UnicodeError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(ip_address(str(item[4][0])) for item in found))


@dataclass(eq=False)
class _Job:
    chat: Chat
    host: str
    answer: asyncio.Future[Addresses]
    waiters: int = 0
    is_running: bool = False


@dataclass(eq=False)
class _Tenant:
    running: int = 0
    queues: OrderedDict[str, deque[_Job]] = field(default_factory=OrderedDict)
    """What waits, by the digest of its chat; whose turn is next comes first."""


class Lookups:
    """All look-ups of one process."""

    def __init__(
        self,
        resolver: Callable[[str], Addresses] = look_up,
        *,
        threads: int = _THREADS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resolver = resolver
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="egress-lookup")
        self._most = threads
        self._most_per_tenant = max(MAX_CONCURRENT_PER_CHAT, threads // 4)
        self._clock = clock
        self._running = 0
        self._running_by_chat: Counter[str] = Counter()
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()
        self._jobs: dict[tuple[str, str], _Job] = {}
        # By tenant: how quickly a name is found would show one tenant what another looked up.
        self._cache: OrderedDict[tuple[str, str], tuple[float, Addresses | None]] = OrderedDict()
        self._cached: Counter[str] = Counter()

    def of(self, chat: Chat) -> Resolve:
        """The look-ups of this chat."""
        return partial(self._resolve, chat)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _resolve(self, chat: Chat, host: str) -> Sequence[Address]:
        kept = self._cache.get((chat.tenant, host))
        if kept is not None and kept[0] > self._clock():
            if kept[1] is None:
                raise OSError("The name was not found.")
            return kept[1]
        job = self._jobs.get((chat.tenant, host)) or self._enqueue(chat, host)
        job.waiters += 1
        try:
            return await asyncio.shield(job.answer)
        finally:
            job.waiters -= 1
            if not job.waiters and not job.is_running and not job.answer.done():
                self._drop(job)

    def _enqueue(self, chat: Chat, host: str) -> _Job:
        tenant = self._tenants.setdefault(chat.tenant, _Tenant())
        queue = tenant.queues.setdefault(chat.digest, deque())
        if len(queue) >= MAX_QUEUED_PER_CHAT:
            raise TooManyLookups("The chat looks up too many names at once.")
        job = _Job(chat, host, asyncio.get_running_loop().create_future())
        queue.append(job)
        self._jobs[chat.tenant, host] = job
        self._start_next()
        return job

    def _drop(self, job: _Job) -> None:
        """Nobody waits for it any more, and it has not begun."""
        self._jobs.pop((job.chat.tenant, job.host), None)
        job.answer.cancel()
        tenant = self._tenants[job.chat.tenant]
        tenant.queues[job.chat.digest].remove(job)
        self._tidy(job.chat)

    def _start_next(self) -> None:
        while self._running < self._most and (job := self._next()) is not None:
            self._running += 1
            self._tenants[job.chat.tenant].running += 1
            self._running_by_chat[job.chat.digest] += 1
            job.is_running = True
            work = asyncio.get_running_loop().run_in_executor(self._threads, self._resolver, job.host)
            work.add_done_callback(partial(self._done, job))

    def _next(self) -> _Job | None:
        """The next that may begin: the tenants in turn, and the chats of each in turn."""
        for name in list(self._tenants):
            tenant = self._tenants[name]
            if tenant.running >= self._most_per_tenant:
                continue
            for digest in list(tenant.queues):
                queue = tenant.queues[digest]
                if queue and self._running_by_chat[digest] < MAX_CONCURRENT_PER_CHAT:
                    tenant.queues.move_to_end(digest)
                    self._tenants.move_to_end(name)
                    return queue.popleft()
        return None

    def _done(self, job: _Job, work: asyncio.Future[Addresses]) -> None:
        self._running -= 1
        self._tenants[job.chat.tenant].running -= 1
        self._running_by_chat[job.chat.digest] -= 1
        self._jobs.pop((job.chat.tenant, job.host), None)
        self._tidy(job.chat)
        if work.cancelled():
            job.answer.cancel()
            return
        error = work.exception()
        self._keep((job.chat.tenant, job.host), None if error is not None else work.result())
        if error is None:
            job.answer.set_result(work.result())
        else:
            job.answer.set_exception(error)
            job.answer.exception()  # it may be that nobody waits any more
        self._start_next()

    def _tidy(self, chat: Chat) -> None:
        """Keep nothing of a chat or a tenant that looks nothing up."""
        tenant = self._tenants[chat.tenant]
        if not tenant.queues.get(chat.digest) and not self._running_by_chat[chat.digest]:
            tenant.queues.pop(chat.digest, None)
            del self._running_by_chat[chat.digest]
        if not tenant.queues and not tenant.running:
            del self._tenants[chat.tenant]

    def _keep(self, key: tuple[str, str], found: Addresses | None) -> None:
        self._forget(key)
        seconds = _NOT_FOUND_SECONDS if found is None else _FOUND_SECONDS
        self._cache[key] = self._clock() + seconds, found
        self._cached[key[0]] += 1
        if self._cached[key[0]] > _MAX_CACHED_PER_TENANT:
            self._forget(next(other for other in self._cache if other[0] == key[0]))
        while len(self._cache) > _MAX_CACHED:
            self._forget(next(iter(self._cache)))

    def _forget(self, key: tuple[str, str]) -> None:
        if self._cache.pop(key, None) is not None:
            self._cached[key[0]] -= 1
            if not self._cached[key[0]]:
                del self._cached[key[0]]
