"""What the engine answers, in words for people."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import aiohttp
from aiodocker.containers import DockerContainer
from aiodocker.exceptions import DockerError

ENGINE_ERRORS = (DockerError, aiohttp.ClientError, OSError, TimeoutError)
_HOST_PATH = re.compile(r"(?:/[^\s\"':/]+){2,}")
_LOST = 255
"""The exit code of a container that the engine found dead when it came back."""


def plain(error: BaseException) -> str:
    """An error as words, without a path of the host."""
    said = error.message if isinstance(error, DockerError) else getattr(error, "strerror", None) or str(error)
    return _HOST_PATH.sub("…", " ".join(str(said).split()))[:300] or type(error).__name__


@contextlib.contextmanager
def unless(*statuses: int) -> Iterator[None]:
    """Pass over an engine's answer that says it is so already."""
    try:
        yield
    except DockerError as error:
        # Podman has no status of its own for it.
        if error.status not in statuses and "container state improper" not in str(error.message):
            raise


async def why(container: DockerContainer) -> str:
    """Why a container that the driver did not end is down; empty if the engine or the machine went down with it."""
    try:
        state = (await container.show())["State"]
        if state.get("OOMKilled"):
            return "its first process was killed after it ran out of memory"
        return "" if state.get("ExitCode") == _LOST else await last_words(container)
    except DockerError:
        return "it is gone"


async def last_words(container: DockerContainer) -> str:
    """What the guest said before it ended."""
    with contextlib.suppress(*ENGINE_ERRORS):
        lines = [line for line in await container.log(stdout=True, stderr=True, tail=5) if line.strip()]
        if lines:
            said = "".join(c for c in lines[-1] if c.isprintable())[-300:]
            return f"its first process ended; it said: {said}"
    return "its first process was killed"
