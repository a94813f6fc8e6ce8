"""Kills itself at a chosen point of a deed on a sandbox, and says in another run what is left. A program of its own.

    kill_points.py IMAGE_DIR IMAGE

It reads one JSON line `{"data": DATA_DIR, "deed": …, "point": N}` after the other. For each it forks a process that does the deed and
gets SIGKILL before its Nth system call that changes a name, a file or a process (-1: never); another one then starts
over the same folder, as a service does after a crash, and looks at the chats. It answers with a JSON line.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from cubicle.core.chat import Chat
from cubicle.drivers.factory import make_chat_index, make_driver
from cubicle.sandbox.fleet import Fleet
from cubicle.settings import Settings, load

COUNTED = ("os.rename", "os.symlink", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod")
COUNTED += ("os.chown", "open", "subprocess.Popen", "fcntl.ioctl", "shutil.rmtree", "socket.connect", "socket.bind")  # type: ignore[assignment]
SUBJECT, NEIGHBOUR = Chat("subject"), Chat("neighbour")


class Points:
    """Counts what happens from `arm` on, in every thread, and ends the process at the chosen point."""

    def __init__(self, point: int) -> None:
        self.count = 0
        self._left = point
        self._lock = threading.Lock()
        self._armed = False
        sys.addaudithook(self._see)

    def arm(self) -> None:
        self._armed = True

    def _see(self, event: str, _arguments: tuple[Any, ...]) -> None:
        if not self._armed or event not in COUNTED:
            return
        with self._lock:
            self.count += 1
            if self.count == self._left:
                os.kill(os.getpid(), signal.SIGKILL)


def fleet_of(settings: Settings, pool_size: int = 0) -> Fleet:
    return Fleet(make_driver(settings), make_chat_index(settings), pool_size=pool_size)


async def bash(fleet: Fleet, chat: Chat, command: str) -> str:
    async with fleet.lease(chat) as machine:
        ended, output = await machine.output(command)
        assert ended.status == 0, output
        return output.decode()


async def prepare(settings: Settings, deed: str) -> None:
    """What is there before the deed: a neighbour, and the subject where the deed wants one; all down or up as it needs."""
    async with fleet_of(settings) as fleet:
        await fleet.remove(SUBJECT, now=True)
        await bash(fleet, NEIGHBOUR, "echo kept > ~/kept; sync ~/kept")
        if deed in ("wake", "delete", "discard", "stop"):
            await bash(fleet, SUBJECT, "echo mine > ~/mine; sync ~/mine")
        if deed == "wake":
            await fleet.stop(SUBJECT)
    if deed == "bind":
        async with fleet_of(settings, pool_size=1) as fleet:
            await fleet.pool.filled()


async def do(settings: Settings, deed: str, points: Points) -> None:
    async with fleet_of(settings, pool_size=1 if deed == "bind" else 0) as fleet:
        if deed == "bind":
            await fleet.pool.filled()
        await asyncio.sleep(0)
        points.arm()
        match deed:
            case "delete":
                await fleet.remove(SUBJECT, now=True)
            case "discard":
                await fleet.remove(SUBJECT)
            case "stop":
                await fleet.stop(SUBJECT)
            case _:
                await bash(fleet, SUBJECT, "echo mine > ~/mine; sync ~/mine")


async def look(settings: Settings, deed: str) -> dict[str, Any]:
    """What the next service finds: files of both chats, and whether the subject can be used."""
    driver = make_driver(settings)
    async with Fleet(driver, make_chat_index(settings), pool_size=0) as fleet:
        had, trashed = fleet.has(SUBJECT), len(await driver.discarded())
        owners = [seen.owner for seen in await driver.list() if seen.owner is not None]
        found = {
            "neighbour": await bash(fleet, NEIGHBOUR, "cat ~/kept"),
            "had": had,
            "trashed": trashed,
            "mine": await bash(fleet, SUBJECT, "cat ~/mine 2>/dev/null; true"),
            "twice": len(owners) != len(set(owners)),
        }
        for each in await driver.discarded():
            await driver.delete(each.name)
        return found


def forked(work: Any) -> tuple[int, dict[str, Any]]:
    """Run it in a process of its own; how that ended, and what it gave."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            os.write(writer, json.dumps(work()).encode())
            os._exit(0)
        except BaseException:  # noqa: BLE001 — told to who waits
            os.write(writer, json.dumps({"error": traceback.format_exc()[-3000:]}).encode())
            os._exit(1)
    os.close(writer)
    with open(reader, "rb") as file:
        given = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, json.loads(given) if given else {}


def one(settings: Settings, deed: str, point: int) -> dict[str, Any]:
    def deed_at() -> dict[str, Any]:
        points = Points(point)
        asyncio.run(do(settings, deed, points))
        return {"count": points.count}

    status, answer = forked(lambda: asyncio.run(prepare(settings, deed)) or {})
    if status != 0:
        return {"failed": "prepare", **answer}
    status, done = forked(deed_at)
    if status not in (0, -signal.SIGKILL):
        return {"failed": deed, **done}
    looked, found = forked(lambda: asyncio.run(look(settings, deed)))
    return {"killed": status != 0, **done, **found, **({"failed": "look"} if looked else {})}


def main() -> None:
    images, image = sys.argv[1:3]
    for line in sys.stdin:
        wanted = json.loads(line)
        data = Path(wanted["data"])
        settings = load(data_dir=data, image_dir=Path(images), sandbox_image=image, egress_captive=False)
        print(json.dumps(one(settings, wanted["deed"], wanted["point"])), flush=True)


if __name__ == "__main__":
    main()
