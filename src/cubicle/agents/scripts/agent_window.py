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

BOLD, DIM, TOOL, PLAIN = "\033[1m", "\033[2m", "\033[36m", "\033[0m"
TELLING = ("command", "file_path", "filePath", "path", "pattern", "query", "url", "prompt", "description")
MAX_LINES = 12


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

    def follow(self) -> bool:
        """Show events until the run is over, or the person wants it, which is told."""
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
                return False
            if not chunk and select.select([sys.stdin], [], [], 0.5)[0]:
                if not sys.stdin.readline():
                    sys.exit()
                if ask("Stop the agent and go on with it yourself? [y/N]") in ("y", "yes"):
                    self.stop()
                    return True

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
    except (ValueError, RecursionError):
        return
    if isinstance(event, dict):
        for text, style in parts(event):
            show(text, style)


def parts(event: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What an event has to show, whichever agent wrote it."""
    kind, item, part = event.get("type"), inner(event, "item"), inner(event, "part")
    content = inner(event, "message").get("content")
    for block in content if isinstance(content, list) else ():  # Claude Code
        if isinstance(block, dict):
            yield from spoken(block.get("text"))
            if block.get("type") == "tool_use":
                yield used(block.get("name"), block.get("input"))
            elif block.get("type") == "tool_result":
                yield from gave(block.get("content"))
    if kind == "item.started" and item.get("command"):  # Codex
        yield used(item.get("type"), item)
    elif kind == "item.completed" and item.get("type") == "agent_message":
        yield from spoken(item.get("text"))
    elif kind == "item.completed":
        yield from gave(item.get("aggregated_output"))
    elif kind == "text":  # OpenCode
        yield from spoken(part.get("text"))
    elif kind == "tool_use" and part:
        yield used(part.get("tool"), inner(part, "state").get("input"))
        yield from gave(inner(part, "state").get("output"))
    elif kind == "message" and event.get("role") == "assistant":  # Gemini CLI
        yield from spoken(event.get("content"))
    elif kind == "tool_use":
        yield used(event.get("tool_name"), event.get("parameters"))
    elif kind == "tool_result":
        yield from gave(event.get("output"))


def inner(value: dict[str, Any], name: str) -> dict[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def spoken(text: Any) -> Iterator[tuple[str, str]]:
    if isinstance(text, str) and text.strip():
        yield "\n" + text.strip("\n"), ""


def used(tool: Any, given: Any) -> tuple[str, str]:
    """A tool and the argument that says most."""
    arguments = given if isinstance(given, dict) else {}
    said = next((arguments[name] for name in TELLING if isinstance(arguments.get(name), str)), "")
    return ("\n→ " + str(tool) + "  " + said)[:500], TOOL


def gave(result: Any) -> Iterator[tuple[str, str]]:
    """The first lines of what a tool answered."""
    if isinstance(result, list):
        result = "\n".join(str(block["text"]) for block in result if isinstance(block, dict) and "text" in block)
    lines = result.rstrip().splitlines() if isinstance(result, str) else []
    for line in lines[:MAX_LINES]:
        yield "  " + line[:300], DIM
    if len(lines) > MAX_LINES:
        yield f"  … {len(lines) - MAX_LINES} more lines", DIM


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    window = Window(sys.argv[1])
    show("A coding agent works here. Press Enter to stop it and take over.", BOLD)
    show(window.read("prompt")[:2000], DIM)
    if not window.follow():
        code = window.read("exit")
        if code not in ("", "0"):
            show(window.read("errors")[-2000:])
        show("\nThe agent is done." if code == "0" else "\nThe agent has stopped.", BOLD)
        ask("Press Enter to go on with it yourself.")
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    window.take_over()


if __name__ == "__main__":
    main()
