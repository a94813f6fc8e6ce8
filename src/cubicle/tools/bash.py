"""bash_tool: runs a shell command in the chat's sandbox."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from cubicle.guest.operations import Exit
from cubicle.guest.wire import ErrorCode
from cubicle.machine.errors import MachineError
from cubicle.machine.machine import HOME, Machine
from cubicle.machine.process import Process
from cubicle.ports.notes import PortNotes
from cubicle.prompt.workspace import Workspace
from cubicle.tools import exit_codes
from cubicle.tools.arguments import Arguments
from cubicle.tools.base import Answer, Call, TaskSupport, TextContent, fail, schema
from cubicle.tools.command_once import INTERRUPTED, command_of
from cubicle.tools.errors import sentence
from cubicle.tools.exit_codes import ExitVerdict
from cubicle.tools.output import Cap, Decoder

_DESCRIPTION = """\
Run a shell command (bash) in this chat's own Linux computer and get what it prints, standard output and errors in the \
order written. Use it for everything that a terminal does: run programs and tests, install packages, search (grep, rg, \
find), move files, git, downloads, data work with Python or Node. Files and installed packages stay between calls; the \
working directory and shell variables do not, so give `cwd` or start with `cd`.
- Each call ends when the shell ends; there is no terminal to answer questions on, so pass flags such as -y.
- Start a server in the background and send its output to a file: `node app.js > /tmp/app.log 2>&1 &`. When a port \
opened, the answer ends with a line `listening: PORT NAME → LINK`: the link is for the user.
- A command that takes long needs a larger `timeout`. What is printed past 30,000 characters is cut in the middle: \
narrow it with grep, head or tail, or write it to a file and view the part you need.
- To read, create or edit one file, view, create_file and str_replace are safer than cat, echo and sed.
- Put results for the user in /mnt/user-data/outputs; the user's uploads are in /mnt/user-data/uploads (read-only)."""


_LARGE = 32 * 1024
_TAIL = 1000
_STARTS_SERVER = re.compile(r"> ?[^\s;&|>]+ (2>&1 )?&(\s+echo [^\n;&|>]*)?[\s)]*\Z")
"""A command as the description has it: in the background, with its output in a file. Its port opens in a moment."""
_ROOM = (
    "Note: the sandbox had as many processes as it may have, so {} that earlier commands had left in the background "
    "were ended to run this one. Start fewer at a time."
)


class BashTool:
    """See the description: it is what the model reads."""

    name = "bash_tool"
    description = _DESCRIPTION
    outlives_caller = False
    task_support: TaskSupport = "optional"
    schema = schema(
        {
            "command": {"type": "string", "description": "Shell command"},
            "description": {"type": "string", "description": "One line that says what the command is for"},
            "cwd": {"type": "string", "description": "Working directory inside the sandbox (default /home/assistant)"},
            "timeout": {"type": "number", "description": "Seconds after which the command is ended"},
        },
        required=("command", "description"),
    )

    def __init__(
        self,
        workplace: Workspace,
        *,
        timeout: float,
        memory_mb: int,
        ports: PortNotes | None = None,
        resume_seconds: float = 60.0,
    ) -> None:
        self._workplace = workplace
        self._ports = ports
        self._timeout = timeout
        self._memory_mb = memory_mb
        self._resume_seconds = resume_seconds

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        command = arguments.text("command")
        arguments.text("description")
        cwd = arguments.optional_text("cwd", "working_directory")
        timeout = arguments.optional_number("timeout", 1, 86_400) or self._timeout
        if "\0" in command:
            return fail("The argument `command` must not hold NUL characters. Write the bytes with printf instead.")
        output = Cap()
        try:
            async with self._workplace.lease(call.caller) as machine:
                with machine.refusals.heard() as refused:
                    options = {"cwd": cwd, "timeout": timeout}
                    async with command_of(machine, call, command, self._resume_seconds, **options) as process:
                        exit = await _follow(process, output, call)
                opened = await self._opened(machine, call, command, exit)
        except MachineError as error:
            return fail(_refused(error, cwd or HOME))
        verdict = self._judge(command, exit, timeout, printed=output.characters > 0)
        notes = [_ROOM.format(exit.made_room)] if exit.made_room else []
        notes += [f"Note: {sentence}" for sentence in refused]
        notes += opened
        blocks = (TextContent(_compose(output.text(), verdict)), *map(TextContent, notes))
        beside = (verdict.note, *notes) if verdict.note else tuple(notes)
        return Answer(blocks, error=verdict.error, exit=exit, notes=beside)

    async def _opened(self, machine: Machine, call: Call, command: str, exit: Exit) -> Sequence[str]:
        if self._ports is None:
            return ()
        awaited = _STARTS_SERVER.search(command[-_TAIL:]) is not None
        return await self._ports.opened(machine, call.caller.chat, awaited=awaited, mark=exit.listening)

    def _judge(self, command: str, exit: Exit, timeout: float, *, printed: bool) -> ExitVerdict:
        if exit.timed_out:
            return exit_codes.timed_out(timeout)
        if exit.out_of_memory:
            return exit_codes.out_of_memory(self._memory_mb)
        if exit.code is None:
            return exit_codes.killed(exit.signal or 9)
        return exit_codes.judge(command, exit.code, printed)


async def _follow(process: Process, output: Cap, call: Call) -> Exit:
    """Take the output as it comes: into the capped answer, and to whoever watches."""
    decoder = Decoder()
    heard = 0
    async for _, chunk in process.output:
        if process.gap and heard <= process.head < heard + len(chunk):  # of one that is followed late
            first = process.head - heard
            start = decoder.feed(chunk[:first])
            output.feed(start)
            call.report(start)
            output.skip(process.gap)
            heard, chunk = heard + first, chunk[first:]
        heard += len(chunk)
        text = decoder.feed(chunk)
        output.feed(text)
        call.report(text)
        if len(chunk) > _LARGE:
            await asyncio.sleep(0)  # what is no UTF-8 takes a millisecond, and a flood of it always has more at hand
    rest = decoder.finish()
    output.feed(rest)
    call.report(rest)
    return await process.wait()


def _refused(error: MachineError, cwd: str) -> str:
    """Why a command could not be run, and what to do."""
    match error.code:
        case ErrorCode.BAD_CWD:
            return sentence(error, cwd)
        case ErrorCode.INTERRUPTED:
            return INTERRUPTED
        case ErrorCode.TOO_BIG:
            return f"The command was not run. {error}"
        case ErrorCode.NO_PROCESSES:
            return (
                "The command was not run: the sandbox has as many processes as it may have. Wait until what runs has "
                "ended, and start fewer at a time."
            )
        case _:
            reason = str(error).rstrip(".")
            return f"The command may not have run: {reason}. Look at what it left behind, then try again."


def _compose(printed: str, verdict: ExitVerdict) -> str:
    """The output, and after it the line that says how the command ended."""
    if not verdict.note:
        return printed or "(no output)"
    gap = "" if not printed or printed.endswith("\n") else "\n"
    return printed + gap + verdict.note
