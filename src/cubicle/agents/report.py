"""How a run ended, and what the model that asked for it is told."""

from __future__ import annotations

from dataclasses import dataclass

from cubicle.agents.adapters.base import AgentOutcome
from cubicle.guest.operations import Exit
from cubicle.tools.base import Answer, TextContent, fail
from cubicle.tools.output import Cap

_NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run that is over: what its agent said, how its process ended, and why if we ended it."""

    program: str
    outcome: AgentOutcome
    exit: Exit
    timeout: float
    max_turns: int
    complaint: str = ""
    stopped: bool = False
    """Ended by us because it took more turns than it may."""


def compose(ending: RunReport, missed: str = "", left_out: str = "") -> Answer:
    """The answer: what the agent said, why it stopped if it did not finish, which servers it was to have and did not,
    and the figures of the run."""
    outcome, problem = ending.outcome, _problem(ending)
    words = Cap()
    words.feed(outcome.text or ("" if problem else "The agent finished without a word."))
    parts = [missed, words.text() if outcome.text or not problem else "", problem, left_out, _figures(ending)]
    return Answer((TextContent("\n\n".join(part for part in parts if part)),), error=bool(problem), exit=ending.exit)


def earlier(outcome: AgentOutcome) -> str:
    """What an earlier run said that nobody heard."""
    if not outcome.text:
        return ""
    words = Cap()
    words.feed(outcome.text)
    return f"The run before this one ended while nobody listened. It said:\n{words.text()}\n---"


def interrupted(outcome: AgentOutcome) -> Answer:
    """The sandbox stopped while the agent worked."""
    again = f" Its work so far is kept: go on with `resume_session_id` {outcome.session}." if outcome.session else ""
    return fail(
        f"The sandbox stopped while the agent worked, so the task is done in part. It was not begun again.{again}"
    )


def _problem(ending: RunReport) -> str:
    outcome, exit = ending.outcome, ending.exit
    again = " Its work so far is kept: go on with `resume_session_id`." if outcome.session else ""
    if exit.timed_out:
        return f"[timed out after {ending.timeout:g} s]{again}"
    if outcome.out_of_turns or ending.stopped:
        return f"[stopped after {ending.max_turns} turns, the most it may take]{again}"
    if exit.out_of_memory:
        return f"[the agent ran out of memory]{again}"
    if exit.code == _NOT_FOUND and outcome.error is None:
        return (
            f"The coding agent {ending.program.rpartition('/')[2]!r} is not installed in this sandbox. Do the task "
            f"yourself, and tell the user that the operator must run `make agents`."
        )
    if exit.code is None:
        return f"[the agent was ended by signal {exit.signal}]{again}"
    if outcome.error or exit.code != 0:
        said = f" It said: {ending.complaint}" if ending.complaint and not outcome.text else ""
        return f"[the agent failed, exit code {exit.code}]{said}{again}"
    return ""


def _figures(ending: RunReport) -> str:
    outcome = ending.outcome
    parts = [f"{outcome.turns} turn{'' if outcome.turns == 1 else 's'}", f"{ending.exit.seconds:.0f} s"]
    if outcome.dollars is not None:
        parts.insert(1, f"${outcome.dollars:.4f}")
    session = f"session {outcome.session}" if outcome.session else "no session"
    return f"[agent {session} · {' · '.join(parts)}]"
