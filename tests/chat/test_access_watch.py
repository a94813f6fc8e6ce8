"""What goes on ends with what let it in, whatever that was."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from cubicle.chat.access_watch import AccessOver, AccessWatch
from cubicle.chat.authentication import Authentication
from cubicle.chat.key_attempts import KeyAttempts
from cubicle.chat.links import Links
from cubicle.core.api_keys import ApiKey, KeyFile
from cubicle.core.chat import Chat
from cubicle.core.identity import Credential, Identity
from cubicle.core.keys import KeyRing

NOW = 1_800_000_000.0
CHAT = Chat("room", "acme")


@dataclass
class Ground:
    now: list[float] = field(default_factory=lambda: [NOW])

    def __post_init__(self) -> None:
        def clock() -> float:
            return self.now[0]

        self.file = KeyFile.empty().with_key("a-key-of-acme", ApiKey("acme1", "acme", expires=int(NOW) + 60))
        self.file = self.file.with_key("another-of-acme", ApiKey("acme2", "acme"))
        self.ring = KeyRing({}, self.file, clock=clock)
        self.links = Links(b"s" * 32, "http://x", self.ring, clock=clock)
        self.watch = AccessWatch(Authentication(KeyAttempts(self.ring, 0), self.links), clock)

    async def going(self, identity: Identity) -> asyncio.Task[None]:
        begun = asyncio.Event()

        async def work() -> None:
            begun.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(self.watch.run(work, identity))
        await begun.wait()
        return task

    async def ends(self, task: asyncio.Task[None]) -> bool:
        """Whether a look ends it."""
        self.watch.look()
        done, _ = await asyncio.wait([task], timeout=0.2)
        if not done:
            return False
        assert isinstance(task.exception(), AccessOver)
        return True


BY_KEY = Identity("acme", key_id="acme1", credential=Credential.BEARER)


async def test_a_key_that_expires_or_is_revoked_ends_what_goes_on() -> None:
    ground = Ground()
    one, two = await ground.going(BY_KEY), await ground.going(Identity("acme", key_id="acme2"))
    assert not await ground.ends(one)
    ground.now[0] += 60
    assert await ground.ends(one)
    assert not await ground.ends(two)
    ground.ring.replace(KeyRing({}, ground.file.with_changed("acme2", revoked=1)))
    assert await ground.ends(two)


async def test_a_link_that_is_revoked_ends_what_goes_on_and_nothing_else() -> None:
    ground = Ground()
    key = ground.links.key(CHAT)
    by_link = Identity("acme", chat=CHAT, link=key)
    other = Identity("acme", chat=Chat("other", "acme"), link=ground.links.key(Chat("other", "acme")))
    one, two = await ground.going(by_link), await ground.going(other)
    public = await ground.going(Identity("main", credential=Credential.PUBLIC))
    assert not await ground.ends(one)
    ground.links.store.revoke_all(CHAT)
    assert await ground.ends(one)
    assert not await ground.ends(two)
    ground.ring.replace(KeyRing({}, ground.file.with_changed("acme2", revoked=1)))
    assert await ground.ends(two)
    assert not await ground.ends(public)
    public.cancel()
    await asyncio.wait([public])


async def test_what_has_an_end_of_its_own_ends_then() -> None:
    ground = Ground()
    task = await ground.going(Identity("acme", key_id="acme2", expires=int(NOW) + 5))
    assert not await ground.ends(task)
    ground.now[0] += 5
    assert await ground.ends(task)


async def test_what_has_no_right_any_more_does_not_begin() -> None:
    ground = Ground()
    ground.now[0] += 60
    with pytest.raises(AccessOver):
        await ground.watch.run(lambda: asyncio.sleep(0), BY_KEY)


async def test_a_time_limit_of_the_work_itself_is_its_own() -> None:
    async def late() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await Ground().watch.run(late, Identity("acme", key_id="acme2"))
