"""Keys, links and sign-ins of one service, built together: who may come in, and until when."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from cubicle.chat.access_watch import AccessWatch
from cubicle.chat.authentication import Authentication
from cubicle.chat.key_attempts import KeyAttempts
from cubicle.chat.key_file import KeyFileWatch, KeySource
from cubicle.chat.link_store import LinkStore
from cubicle.chat.links import Links, kept_secret
from cubicle.chat.token_access import TokenAccess, make_sign_in, make_token_access
from cubicle.core.api_keys import BadKeys
from cubicle.core.keys import KeyRing
from cubicle.oauth.sign_in import IssuerSignIn
from cubicle.settings import BadSettings, Settings, base_url


def key_source(settings: Settings, secret: bytes) -> KeySource:
    return KeySource(settings.api_keys_file, settings.mcp_api_key, secret)


def key_ring(source: KeySource) -> KeyRing:
    """The keys. Raises BadSettings. Blocks."""
    try:
        return source.read()
    except BadKeys as error:
        raise BadSettings(str(error)) from None


@dataclass(frozen=True, slots=True)
class Access:
    """Made once, by the service."""

    secret: bytes
    ring: KeyRing
    keys: KeyAttempts
    links: Links
    authentication: Authentication
    watch: AccessWatch
    key_watch: KeyFileWatch
    tokens: TokenAccess | None = None
    sign_in: IssuerSignIn | None = None

    @classmethod
    async def open(cls, settings: Settings, links_folder: Path, web: httpx.AsyncClient | None = None) -> Access:
        """Read the keys and the records of links. Raises BadSettings."""
        return await asyncio.to_thread(cls._open, settings, links_folder, web)

    @classmethod
    def _open(cls, settings: Settings, links_folder: Path, web: httpx.AsyncClient | None = None) -> Access:
        secret = kept_secret(settings.data_dir)
        source = key_source(settings, secret)
        key_watch = KeyFileWatch(source.seen(), source)
        ring = key_watch.ring = key_ring(source)
        keys = KeyAttempts(ring, settings.wrong_keys_per_minute)
        store = LinkStore(links_folder)
        store.open()
        links = Links(
            secret,
            base_url(settings),
            ring,
            days=settings.data_max_age_days,
            store=store,
            prompt_access=settings.prompt_links,
        )
        tokens = make_token_access(settings, web) if web is not None else None
        if tokens is not None:
            ring.external = tokens.has_tenant
        authentication = Authentication(
            keys, links, settings.known_hosts, settings.metrics_token, tokens=tokens, origins=settings.cors_origins
        )
        return cls(
            secret,
            ring,
            keys,
            links,
            authentication,
            AccessWatch(authentication),
            key_watch,
            tokens,
            make_sign_in(settings, tokens, web),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Notice what changes of keys and links, and end what has no right to go on."""
        keys_of_issuers = self.tokens.tokens if self.tokens is not None else contextlib.nullcontext()
        async with self.key_watch.running(), self.links.store.watching(), self.watch.running(), keys_of_issuers:
            yield
