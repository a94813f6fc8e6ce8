"""Programs that a chat wants to run again after its sandbox was stopped: /home/assistant/.cubicle/services.json."""

from __future__ import annotations

import asyncio
import logging
import re
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cubicle.core.chat import Chat
from cubicle.core.untrusted_json import BadJson, parse_object
from cubicle.guest.wire import ErrorCode
from cubicle.log import chat_fields
from cubicle.machine.errors import MachineError, SandboxError
from cubicle.machine.machine import HOME, Machine
from cubicle.ports.known_ports import KnownPorts

log = logging.getLogger(__name__)

FOLDER = f"{HOME}/.cubicle"
FILE = f"{FOLDER}/services.json"
MAX_SERVICES = 16
_MAX_SIZE = 64 * 1024
_MAX_COMMAND = 8 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


class BadServices(ValueError):
    """The file does not say what to start; the message says why."""


@dataclass(frozen=True, slots=True)
class ServiceCommand:
    name: str
    command: str
    cwd: str = HOME

    @property
    def script(self) -> str:
        """What is run: the command, with its output at the end of a log file."""
        return f"mkdir -p {FOLDER} && exec >>{FOLDER}/{self.name}.log 2>&1 && exec bash -c {shlex.quote(self.command)}"


def parse(content: bytes) -> list[ServiceCommand]:
    """`{"services": {"web": {"command": "npm run dev", "cwd": "/home/assistant/app"}}}`. Raises BadServices."""
    try:
        listed = parse_object(content, max_size=_MAX_SIZE, max_values=1000).get("services")
    except BadJson as error:
        raise BadServices(str(error)) from None
    if not isinstance(listed, dict) or len(listed) > MAX_SERVICES:
        raise BadServices(f"`services` has to be an object of at most {MAX_SERVICES} entries")
    return [_service(name, fields) for name, fields in listed.items()]


def _service(name: str, fields: object) -> ServiceCommand:
    if not _NAME.fullmatch(name):
        raise BadServices("a name is 1 to 40 letters, digits, _ or -")
    if not isinstance(fields, dict):
        raise BadServices(f"{name} has to be an object")
    command, cwd = fields.get("command"), fields.get("cwd", HOME)
    if not isinstance(command, str) or not command or len(command) > _MAX_COMMAND or not _is_sound(command):
        raise BadServices(f"`command` of {name} has to be a text of at most {_MAX_COMMAND} characters")
    if not isinstance(cwd, str) or not cwd.startswith("/") or len(cwd) > 4096 or not _is_sound(cwd):
        raise BadServices(f"`cwd` of {name} has to be an absolute path")
    return ServiceCommand(name, command, cwd)


def _is_sound(text: str) -> bool:
    """Whether it can be an argument of a program: JSON can hold halves of letters, which no encoding has."""
    return "\0" not in text and not any(0xD800 <= ord(letter) <= 0xDFFF for letter in text)


class StartCommands:
    """A sandbox service: runs the chat's commands when its sandbox was started, beside whoever uses it."""

    def __init__(self, known: KnownPorts | None = None) -> None:
        self._known = known or KnownPorts()

    @asynccontextmanager
    async def attached(self, chat: Chat, machine: Machine) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            starting = group.create_task(self._start(chat, machine), name=f"services of {machine.name}")
            try:
                yield
            finally:
                starting.cancel()

    async def _start(self, chat: Chat, machine: Machine) -> None:
        try:
            if not machine.just_started:
                return
            faults = []
            for service in parse(await machine.read_bytes(FILE, limit=_MAX_SIZE, roots=[HOME])):
                if fault := await self._run(chat, machine, service):
                    faults.append(fault)
            self._known.started(chat, faults)
        except BadServices as error:
            self._known.started(chat, [f"It cannot be used: {error}."])
            log.info("services.json cannot be used: %s", error, extra=chat_fields(chat))
        except MachineError as error:
            missing = error.code is ErrorCode.NOT_FOUND
            self._known.started(chat, [] if missing else [f"It cannot be used: {error}"])
            if not missing:
                log.info("services.json cannot be used: %s", error, extra=chat_fields(chat))
        except SandboxError:
            pass  # it is gone again
        except Exception:  # whatever is wrong with the file, the sandbox stays up
            log.exception("the services of a chat were not started", extra=chat_fields(chat))

    async def _run(self, chat: Chat, machine: Machine, service: ServiceCommand) -> str:
        """Start one, and leave it running; why it could not be. That does not keep the others from it."""
        fields = chat_fields(chat) | {"service": service.name}
        try:
            async with machine.run(service.script, cwd=service.cwd, id=f"service-{service.name}") as process:
                process.detach()
        except MachineError as error:
            log.info("a service of the chat was not started: %s", error, extra=fields)
            return f"{service.name} was not started: {error}"
        log.info("a service of the chat was started again", extra=fields)
        return ""
