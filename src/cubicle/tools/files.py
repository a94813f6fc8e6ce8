"""create_file and str_replace: the tools that write."""

from __future__ import annotations

from collections.abc import Sequence

from cubicle.chat.activity_events import ChangedFile
from cubicle.guest.file_changes import MAX_TEXT, FileChange
from cubicle.guest.wire import ErrorCode
from cubicle.machine.errors import MachineError
from cubicle.machine.machine import WRITABLE_ROOTS
from cubicle.prompt.workspace import Workspace
from cubicle.tools.arguments import Arguments
from cubicle.tools.base import Answer, Call, fail, say, schema
from cubicle.tools.command_once import require_memory
from cubicle.tools.errors import sentence
from cubicle.tools.line_numbers import count

_MAX_REASON = 300


class CreateFile:
    """Writes a whole file, atomically; what was there before is replaced."""

    name = "create_file"
    description = (
        "Write a whole file in the sandbox; folders that are missing are made, and a file that exists is "
        "overwritten. Use it for new files and complete rewrites: the content arrives exactly as given, with no "
        "quoting to get wrong. For a small change to a file that exists use str_replace. Drafts belong under "
        "/home/assistant, results for the user under /mnt/user-data/outputs."
    )
    outlives_caller = False
    schema = schema(
        {
            "path": {"type": "string", "description": "Absolute path to create"},
            "content": {"type": "string", "description": "File contents"},
        },
        required=("path", "content"),
    )

    def __init__(self, workplace: Workspace) -> None:
        self._workplace = workplace

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        path = arguments.path("path")
        content = arguments.text("content", "file_text")
        try:
            async with self._workplace.lease(call.caller) as machine:
                await require_memory(machine, call)
                written = await machine.write(
                    path, content, roots=WRITABLE_ROOTS, sync=True, id=call.once, keep=call.id
                )
        except MachineError as error:
            return fail(sentence(error, path, WRITABLE_ROOTS))
        said = f"{'Created' if written.created else 'Overwrote'} {path} ({count(written.size, 'byte')})."
        return say(said, *changed_file(path, written.change))


class StrReplace:
    """Replaces the one place where a text stands."""

    name = "str_replace"
    description = (
        "Change one place of a text file in the sandbox: `old_str` is replaced by `new_str`. `old_str` must match "
        "the file exactly, blanks and line ends included, and must occur once; take a line or two around the change "
        "to make it unique. View the file first, and leave out the line numbers that view puts in front. An empty "
        "`new_str` deletes the text. For changes in many places use bash_tool with sed or a script."
    )
    outlives_caller = False
    schema = schema(
        {
            "path": {"type": "string", "description": "File to edit"},
            "old_str": {"type": "string", "description": "Exact text to find; must be unique"},
            "new_str": {"type": "string", "description": "Replacement text"},
        },
        required=("path", "old_str", "new_str"),
    )

    def __init__(self, workplace: Workspace) -> None:
        self._workplace = workplace

    async def __call__(self, call: Call, arguments: Arguments) -> Answer:
        path = arguments.path("path")
        old, new = arguments.text("old_str"), arguments.text("new_str")
        if not old:
            return fail(
                "`old_str` is empty, so there is nothing to find. Give the text to replace, or use create_file."
            )
        if old == new:
            return fail("`old_str` and `new_str` are the same, so nothing would change. Give the new text.")
        try:
            async with self._workplace.lease(call.caller) as machine:
                await require_memory(machine, call)
                edited = await machine.edit(path, old, new, roots=WRITABLE_ROOTS, id=call.once, keep=call.id)
        except MachineError as error:
            return fail(_unmatched(error, path) or sentence(error, path, WRITABLE_ROOTS))
        said = f"Replaced the text at line {edited.line:,} of {path} (now {count(edited.size, 'byte')})."
        return say(said, *changed_file(path, edited.change))


def changed_file(path: str, change: FileChange | None) -> Sequence[ChangedFile]:
    """What people are shown of a change. A guest says it: texts are cut to the length that it promised."""
    if change is None:  # an older guest, of a sandbox that outlived an upgrade
        return ()
    return (
        {
            "path": path,
            "before": change.before,
            "after": change.after,
            "size_before": change.size_before,
            "size_after": change.size_after,
            "kept": change.kept,
            "reason": change.reason[:_MAX_REASON],
            "line": change.line,
            "text_before": None if change.text_before is None else change.text_before[:MAX_TEXT],
            "text_after": None if change.text_after is None else change.text_after[:MAX_TEXT],
            "cut_before": change.cut_before,
            "cut_after": change.cut_after,
        },
    )


def _unmatched(error: MachineError, path: str) -> str | None:
    match error.code:
        case ErrorCode.NO_MATCH:
            windows = " The file has Windows line ends: write \\r\\n for them, or change one line at a time."
            ends = windows if error.details.carriage_returns else ""
            return (
                f"`old_str` does not occur in {path}; nothing was changed.{ends} View the file and copy the text "
                "exactly, with its blanks and without the line numbers."
            )
        case ErrorCode.MANY_MATCHES:
            places = error.details.lines
            return (
                f"`old_str` occurs {len(places) or 'several'} times in {path} (at lines "
                f"{', '.join(str(line) for line in places)}); nothing was changed. Add lines around the one you mean, "
                "so that it is unique."
            )
        case _:
            return None
