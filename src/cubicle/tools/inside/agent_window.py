"""What a person sees of a coding agent's run in the terminal, and the way to take it over."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

BOLD, DIM, PLAIN = "\033[1m", "\033[2m", "\033[0m"
INNER = ("content", "message", "item", "part", "state")


class Window:
    """Follows the files in a run's folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def read(self, name: str) -> str:
        try:
            with open(self.path(name), encoding="utf-8", errors="replace") as file:
                return file.read(100_000).strip()
        except OSError:
            return ""

    def running(self) -> bool:
        """The run's shell lives, or has not begun."""
        if os.path.exists(self.path("exit")):
            return False
        pid = self.read("pid")
        return not pid or os.path.exists("/proc/" + pid)

    def follow(self) -> None:
        """Show events until the run is over, or the person wants it."""
        position, rest = 0, b""
        while True:
            alive = self.running()
            try:
                with open(self.path("events"), "rb") as file:
                    file.seek(position)
                    chunk = file.read(1 << 20)
            except OSError:
                chunk = b""
            position += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-(8 << 20) :]
            for line in lines:
                render(line.decode("utf-8", "replace"))
            if not alive and not chunk:
                return
            if not chunk and select.select([sys.stdin], [], [], 0.5)[0]:
                if not sys.stdin.readline():
                    sys.exit()
                if ask("Stop the agent and go on with it yourself? [y/N]") in ("y", "yes"):
                    self.stop()
                    return

    def stop(self) -> None:
        pid = self.read("pid")
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(int(pid), number)
            except (OSError, ValueError):
                return
            for _ in range(40):
                if not self.running():
                    return
                time.sleep(0.1)

    def take_over(self) -> None:
        if os.path.exists(self.path("take-over")):
            subprocess.call([self.path("take-over")])
        else:
            show("This agent left no session that could be resumed.")
        os.execvp("bash", ["bash", "-l"])  # noqa: S606


def show(text: str, style: str = "") -> None:
    plain = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text[:20000])
    sys.stdout.write(style + plain + PLAIN + "\n")
    sys.stdout.flush()


def ask(question: str) -> str:
    show(question, BOLD)
    return sys.stdin.readline().strip().lower()


def render(line: str) -> None:
    try:
        event = json.loads(line)
    except ValueError:
        return
    if isinstance(event, dict) and event.get("type") not in ("system", "user", "result"):
        for text, style in parts(event):
            show(text, style)


def parts(event: Any) -> Iterator[tuple[str, str]]:
    """Texts and tools anywhere in an event, whichever agent wrote it."""
    stack = [event]
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack.extend(reversed(value))
        if not isinstance(value, dict):
            continue
        name = value.get("name") or value.get("tool") or value.get("tool_name") or value.get("type")
        given = value.get("input") or value.get("parameters") or value.get("command")
        if isinstance(given, (dict, str)):
            shown = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            yield ("→ " + str(name) + " " + shown)[:500], DIM
        elif isinstance(value.get("text"), str):
            yield value["text"], ""
        else:
            stack.extend(value[key] for key in INNER if isinstance(value.get(key), (dict, list)))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    window = Window(sys.argv[1])
    show("A coding agent works here. Press Enter to stop it and take over.", BOLD)
    show(window.read("prompt")[:2000], DIM)
    window.follow()
    if window.read("exit") not in ("", "0"):
        show(window.read("errors")[-2000:])
    ask("The agent has stopped. Press Enter to go on with it yourself.")
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    window.take_over()


main()
