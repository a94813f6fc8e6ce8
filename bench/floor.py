"""What the machine itself can do, without Cubicle: bash on the host, and a plain `runc run` of the same image."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
import uuid
from pathlib import Path

from bench.core import host_spawn
from cubicle.images.store import ImageStore
from cubicle.settings import load


def spawns(rounds: int) -> list[float]:
    """Milliseconds of the host's own `bash -c true`."""
    return [_timed_spawn() for _ in range(rounds)]


def _timed_spawn() -> float:
    began = time.perf_counter()
    host_spawn()
    return (time.perf_counter() - began) * 1000


class Runc:
    """Runs programs in containers that have the sandbox image and nothing of ours."""

    def __init__(self, folder: Path, image: str) -> None:
        self._folder = folder
        self._rootfs = ImageStore(load().image_dir).resolve(image).rootfs

    def bundle(self, *argv: str) -> Path:
        folder = self._folder / argv[0]
        folder.mkdir()
        subprocess.run(["runc", "spec"], cwd=folder, check=True, timeout=30)
        path = folder / "config.json"
        config = json.loads(path.read_text())
        config["root"] = {"path": str(self._rootfs), "readonly": True}
        config["process"] |= {"args": list(argv), "terminal": False}
        path.write_text(json.dumps(config))
        return folder

    async def run(self, bundle: Path) -> float:
        """Milliseconds until the program has ended and its container is gone."""
        command = ["runc", "run", "--bundle", str(bundle), f"bench-{uuid.uuid4().hex[:12]}"]
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        _, errors = await process.communicate()
        if process.returncode:
            raise SystemExit(f"runc run: {errors.decode()[-300:]}")
        return (time.perf_counter() - began) * 1000


def has_runc() -> bool:
    return os.geteuid() == 0 and shutil.which("runc") is not None


async def measure(folder: Path, image: str, rounds: int, starts: int, burst: int) -> dict[str, list[float]]:
    found = {"floor_spawn": spawns(rounds)}
    if not image or not has_runc():
        return found
    runc = Runc(folder, image)
    true, node = runc.bundle("true"), runc.bundle("node", "-v")
    found["floor_run"] = [await runc.run(true) for _ in range(starts)]
    found["floor_node"] = [await runc.run(node) for _ in range(starts)]
    began = time.perf_counter()
    found["floor_burst"] = list(await asyncio.gather(*(runc.run(node) for _ in range(burst))))
    found["floor_burst_wall"] = [(time.perf_counter() - began) * 1000]
    return found
