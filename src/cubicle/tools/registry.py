"""The five tools, in the specification's order, and the one place that runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cubicle.audit.audit import Audit, no_audit
from cubicle.browser.hand_back import HandBacks
from cubicle.chat.activity import Activity, CallEnd
from cubicle.chat.activity_events import Ending
from cubicle.core.caller import CHAT_HEADERS
from cubicle.journal.journal import Journal, no_journal
from cubicle.machine.errors import Gone, SandboxError
from cubicle.ports.notes import PortNotes
from cubicle.prompt.workspace import Workspace
from cubicle.settings import Settings
from cubicle.tools import exit_codes
from cubicle.tools.arguments import Arguments, BadArgument
from cubicle.tools.base import Answer, Call, NotBegun, TextContent, Tool, fail
from cubicle.tools.bash import BashTool
from cubicle.tools.call_record import CallRecord
from cubicle.tools.files import CreateFile, StrReplace
from cubicle.tools.kept_answer import kept_pictures
from cubicle.tools.sub_agent import SubAgent, SubAgentTool
from cubicle.tools.view import ViewTool

SHARED_WARNING = TextContent(
    f"Warning: this request carried no chat id, so it ran in the sandbox `default`, which everybody without a chat id "
    f"shares. Set the header {CHAT_HEADERS[0]} in the client to give each chat its own sandbox."
)


class UnknownTool(LookupError):
    """There is no tool of that name."""


@dataclass(frozen=True)
class Registry:
    """All tools of the service."""

    tools: Sequence[Tool]
    activity: Activity = field(default_factory=Activity)
    journal: Journal = field(default_factory=no_journal)
    audit: Audit = field(default_factory=no_audit)
    hand_backs: HandBacks = field(default_factory=HandBacks)
    """What people did in the browser: the next answer says so."""

    @classmethod
    def build(
        cls,
        workplace: Workspace,
        settings: Settings,
        sub_agent: SubAgent | None = None,
        activity: Activity | None = None,
        ports: PortNotes | None = None,
        journal: Journal | None = None,
        hand_backs: HandBacks | None = None,
    ) -> Registry:
        bash = BashTool(
            workplace,
            timeout=settings.command_timeout,
            memory_mb=settings.sandbox_memory_mb,
            ports=ports,
            resume_seconds=settings.resume_seconds,
        )
        return cls(
            (
                bash,
                ViewTool(workplace, settings.view_images),
                CreateFile(workplace),
                StrReplace(workplace),
                SubAgentTool(sub_agent),
            ),
            activity or Activity(),
            journal or no_journal(),
            hand_backs=hand_backs or HandBacks(),
        )

    def find(self, name: str) -> Tool:
        for tool in self.tools:
            if tool.name == name:
                return tool
        raise UnknownTool(name)

    async def run(self, tool: Tool, call: Call, arguments: Mapping[str, Any]) -> Answer:
        """The tool's answer; failures of the caller and of the sandbox are answers too. People can watch the call.

        When it returns, the journal has the call and its answer on disk.
        """
        user = call.caller.email or call.caller.name or ""
        happening = self.activity.begin(call.caller.chat, tool.name, arguments, user, id=call.id)
        record = CallRecord(self.journal, call)
        record.begin(tool.name, arguments, user)

        def report(text: str) -> None:
            happening.output(text)
            record.output(text)
            call.report(text)

        answer: Answer | None = None
        left, final, begun = False, True, True
        end = CallEnd("failed", "The service failed here: its log says why.")
        try:
            if call.chosen:
                await self.journal.settle(call.caller.chat)
            elif call.identity:
                self.journal.hurry(call.caller.chat)
            answer = await tool(replace(call, report=report, watch_agent=happening.watch_agent), Arguments(arguments))
            end = _end(answer, kept_pictures(self.journal, answer))
        except BadArgument as error:
            answer = fail(str(error))
            end = _end(answer)
        except NotBegun as error:
            answer = fail(str(error))
            end, final, begun = _end(answer), False, call.begun is not None
        except SandboxError as error:
            answer = fail(f"The sandbox could not do this: {error} Try again; if it goes on, tell the user.")
            end, final = CallEnd("sandbox_gone" if isinstance(error, Gone) else "failed", answer.text), False
        except asyncio.CancelledError:
            end, left = _cancelled(call), call.leaving()
            raise
        finally:
            if answer is not None and call.caller.shared:
                answer = replace(answer, blocks=(*answer.blocks, SHARED_WARNING))
            if answer is not None and call.heard() and (used := self.hand_backs.take(call.caller.chat)):
                answer = replace(answer, blocks=(*answer.blocks, TextContent(used)))
            event = happening.end(end)
            if not left:  # what runs goes on, and the next service tells its end
                record.end(event, answer, final=final, begun=begun)
        await self.journal.settle(call.caller.chat)
        return answer


def _cancelled(call: Call) -> CallEnd:
    if call.cancelled():
        return CallEnd("cancelled", "The client cancelled the call. What it had started was ended.")
    return CallEnd("disconnected", "The client disconnected before the answer. What the call had started was ended.")


def _end(answer: Answer, pictures: Sequence[str] = ()) -> CallEnd:
    """How a call ended that was answered."""
    exit, signal = answer.exit, ""
    ending: Ending = "failed" if answer.error else "done"
    if exit is not None and exit.timed_out:
        ending = "timed_out"
    elif exit is not None and exit.out_of_memory:
        ending = "out_of_memory"
    elif exit is not None and exit.code is None:
        ending, signal = "killed", exit_codes.signal_name(exit.signal or 9)
    code = exit.code if exit is not None and ending in ("done", "failed", "out_of_memory") else None
    if answer.notes is not None:
        return CallEnd(ending, notes=answer.notes, exit_code=code, signal=signal, pictures=pictures)
    return CallEnd(ending, answer.text, exit_code=code, signal=signal, files=answer.files, pictures=pictures)
