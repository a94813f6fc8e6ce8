"""Exit codes that are answers: grep that finds nothing has not failed."""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass

from cubicle.tools.bash_syntax import last_command

_NO_MATCH = "no match"
_DIFFERENT = "the inputs differ"
_FALSE = "the condition is false"

_SILENT = (
    "The command failed and printed nothing. Run its steps one by one, or put `set -x` in front, to see which one."
)
_KILLED = "The shell did not end by itself. If the command did not ask for it, run it again, or in smaller steps."
_TIMED_OUT = (
    "The command and all that it started were ended. Give a larger `timeout`, or run it in the background with its "
    "output in a file: `command > /tmp/out.log 2>&1 &`."
)

ANSWERS = {
    **dict.fromkeys(("grep", "egrep", "fgrep", "rg", "ag"), _NO_MATCH),
    **dict.fromkeys(("diff", "cmp"), _DIFFERENT),
    **dict.fromkeys(("test", "[", "[["), _FALSE),
}


@dataclass(frozen=True, slots=True)
class ExitVerdict:
    """Whether a command failed, and the line that says so."""

    error: bool
    note: str = ""


def judge(command: str, code: int, printed: bool) -> ExitVerdict:
    """The verdict on a command that ended by itself; `printed`: it wrote something."""
    if code == 0:
        return ExitVerdict(error=False)
    if code == 1:
        name = last_command(command)
        if name in ANSWERS:
            return ExitVerdict(error=False, note=f"[exit code 1: {name} says {ANSWERS[name]}; this is not an error]")
        if name == "find" and printed:
            return ExitVerdict(
                error=False, note="[exit code 1: find could not look everywhere; the results above are what it found]"
            )
    return ExitVerdict(error=True, note=f"[exit code {code}]" if printed else f"{_SILENT}\n[exit code {code}]")


def signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def killed(number: int) -> ExitVerdict:
    """The verdict on a command that a signal ended."""
    return ExitVerdict(error=True, note=f"[killed by {signal_name(number)}] {_KILLED}")


def timed_out(seconds: float) -> ExitVerdict:
    return ExitVerdict(error=True, note=f"[timed out after {seconds:g} s] {_TIMED_OUT}")


def out_of_memory(limit_mb: int) -> ExitVerdict:
    return ExitVerdict(
        error=True,
        note=f"[killed: out of memory (limit {limit_mb:,} MB); use less of it, for example work in smaller pieces]",
    )
