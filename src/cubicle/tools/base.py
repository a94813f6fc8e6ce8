"""What a tool is given and what it gives back. Knows no MCP."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from cubicle.chat.activity_events import ChangedFile
from cubicle.chat.agent_steps import AgentStep, AgentUsage
from cubicle.core.caller import Caller
from cubicle.guest.operations import Exit
from cubicle.tools.arguments import Arguments
from cubicle.tools.line_numbers import count
from cubicle.tools.questions import Ask, cannot_ask


@dataclass(frozen=True, slots=True)
class TextContent:
    text: str


@dataclass(frozen=True, slots=True)
class ImageContent:
    data: bytes
    media_type: str
    as_text: bool = False
    """The client is given a data: URI in a text block: many show no other pictures to their model."""


Block = TextContent | ImageContent


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call; `error` means that the model should look at it and do something else."""

    blocks: tuple[Block, ...]
    error: bool = False
    exit: Exit | None = None
    """How the command ended, if the tool ran one."""
    notes: tuple[str, ...] | None = None
    """What the answer says beside the output that was reported; None when it does not repeat that output."""
    files: tuple[ChangedFile, ...] = ()
    """What the tool itself wrote."""

    @property
    def text(self) -> str:
        """The answer in words, for people."""
        return "\n".join(
            block.text if isinstance(block, TextContent) else f"[{block.media_type}, {count(len(block.data), 'byte')}]"
            for block in self.blocks
        )


def say(text: str, *files: ChangedFile) -> Answer:
    return Answer((TextContent(text),), files=files)


def fail(sentence: str) -> Answer:
    """A failure, as a sentence that tells the model what to do next."""
    return Answer((TextContent(sentence),), error=True)


class NotBegun(Exception):
    """The call was refused before anything of it was done: the same one may come again. The message is its answer."""


def _nowhere(_text: str) -> None:
    """Output that nobody follows."""


def _unwatched(_told: AgentStep | AgentUsage) -> None:
    """An agent that nobody watches."""


def _always() -> bool:
    """A caller that waits for its answer."""
    return True


def _never() -> bool:
    """A caller that does not take its call back."""
    return False


Step = Literal["waits", "starts", "runs"]
"""How far a call is: nothing of it was done; its command is being started; its command runs."""


def _untold(_step: Step) -> None:
    """Nobody wants to know how far the call is."""


def _new_id() -> str:
    return secrets.token_hex(8)


@dataclass(slots=True)
class Call:
    """One call: who makes it, and where its output goes while it runs. `report` never waits.

    Not frozen: to make one anew for each who adds to it costs more than all that they add.
    """

    caller: Caller
    report: Callable[[str], None] = _nowhere
    watch_agent: Callable[[AgentStep | AgentUsage], None] = _unwatched
    """Told what the coding agent does that the call runs. It never waits."""
    heard: Callable[[], bool] = _always
    """Whether the caller is still there to hear the answer."""
    cancelled: Callable[[], bool] = _never
    """Whether the caller asked for the call to be cancelled."""
    id: str = field(default_factory=_new_id)
    """Its name in the journal; what it replaces is kept under it."""
    identity: str = ""
    """What a repetition of the call has in common with it; empty if it cannot be repeated."""
    chosen: bool = False
    """The client chose the identity: the call is on disk before it begins."""
    command: str = ""
    """The id of its command in the guest, and `@` with the host's boot in which the call began."""
    ttl: int | None = None
    """Seconds after its start at which it expires, if it runs as an MCP task."""
    arguments_hash: str = ""
    """That of its tool and arguments, where it was made already."""
    begun: float | None = None
    """When a service before this one began it, as far as it is known; the sandbox may know more of it."""
    same_boot: bool = True
    """The host was not restarted since then."""
    only_known: bool = False
    """Its arguments are not all known: what the sandbox does not know of it is not done."""
    reached: Callable[[Step], None] = _untold
    """Told how far the call is. `leaving` is asked after that."""
    leaving: Callable[[], bool] = _never
    """Whether the service stops and the caller may come back to the next one: what runs in the sandbox goes on."""
    ask: Ask = cannot_ask
    """Asks the user of the client, while the call runs as a task."""

    @property
    def command_id(self) -> str:
        """Under which the sandbox does it, once."""
        return self.command.partition("@")[0] or self.id

    @property
    def once(self) -> str | None:
        """The same for what is not to be repeated; None for a call that nobody can repeat."""
        return self.command_id if self.identity else None


def run_name(command: str) -> str:
    """What the run of a coding agent is called that a call with this command id started."""
    return f"agent-{command[:12]}"


class Tool(Protocol):
    """One tool, as a model sees it and as it runs."""

    name: str
    description: str
    schema: Mapping[str, Any]
    outlives_caller: bool
    """A run goes on when the caller's connection drops; it ends only when it is cancelled."""

    async def __call__(self, call: Call, arguments: Arguments) -> Answer: ...


TaskSupport = Literal["forbidden", "optional", "required"]


def task_support(tool: Tool) -> TaskSupport:
    """Whether a call of the tool may, or must, run as a task that its caller asks about later."""
    support: TaskSupport = getattr(tool, "task_support", "forbidden")
    return support


def schema(properties: Mapping[str, Mapping[str, Any]], required: tuple[str, ...]) -> Mapping[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(required)}
