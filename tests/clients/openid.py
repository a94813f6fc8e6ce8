"""The provider of provider.mjs, and the person who signs in at it."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urljoin

import httpx

from tests.clients.conftest import HERE


@asynccontextmanager
async def provider(node_program: str, callback: str = "") -> AsyncIterator[str]:
    """The issuer's URL."""
    process = await asyncio.create_subprocess_exec(
        *(node_program, "provider.mjs"),
        cwd=HERE,
        env={**os.environ, "NODE_NO_WARNINGS": "1", **({"CALLBACK": callback} if callback else {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            while not (line := (await process.stdout.readline()).decode().strip()).startswith("http"):
                assert line or process.returncode is None, "the provider did not start"
        yield line
    finally:
        process.kill()
        await process.wait()


async def sign_in(authorization_url: str, callback: str, name: str) -> str:
    """What a person does in a browser: gives a name, and consents. The URL that the provider leads back to."""
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=30) as browser:
        answer = await browser.get(authorization_url)
        for _ in range(12):
            if answer.is_redirect:
                url = urljoin(str(answer.url), answer.headers["location"])
                if url.startswith(callback):
                    return url
                answer = await browser.get(url)
                continue
            form = re.search(r'<form[^>]*action="([^"]+)"', answer.text)
            prompt = re.search(r'name="prompt" value="(\w+)"', answer.text)
            assert form is not None, answer.text[:2000]
            assert prompt is not None, answer.text[:2000]
            data = {"prompt": prompt[1], "login": name, "password": "any"}
            answer = await browser.post(urljoin(str(answer.url), form[1]), data=data)
    raise AssertionError("the provider led nowhere")
