"""What a model is told when a machine refuses: one sentence per code, with the next step in it."""

from __future__ import annotations

from collections.abc import Sequence

from cubicle.guest.wire import ErrorCode
from cubicle.machine.errors import MachineError

_SENTENCES = {
    ErrorCode.NOT_FOUND: "{path} does not exist. Look at its folder with view or ls, and check the name.",
    ErrorCode.IS_DIRECTORY: "{path} is a directory. Name a file in it.",
    ErrorCode.NOT_DIRECTORY: "A part of {path} is a file, not a directory. Choose another path.",
    ErrorCode.NOT_REGULAR: "{path} is a device, pipe or socket, not a file. Use bash_tool on it, or name another path.",
    ErrorCode.PERMISSION: "You have no permission for {path}. See who has with `ls -ld`, use chmod if it is yours, "
    "or choose another path.",
    ErrorCode.READ_ONLY: "{path} cannot be written: its folder is read-only. Use a path under /home/assistant or "
    "/mnt/user-data/outputs.",
    ErrorCode.OUTSIDE: "{path}{leads} is outside the allowed folders. Use a path under {roots}; "
    "for others use bash_tool.",
    ErrorCode.TOO_BIG: "{path} is too big for this tool. Use bash_tool on it (head, tail, sed, split).",
    ErrorCode.BAD_NAME: "{path} is not a name that a file can have: at most 255 bytes, without NUL. "
    "Choose another name.",
    ErrorCode.EXISTS: "{path} exists already. Choose another name, or remove it first.",
    ErrorCode.NO_SPACE: "The sandbox's disk is full. Remove files that are no longer needed, then try again.",
    ErrorCode.INTERRUPTED: "The service stopped while {path} was changed, so that may be done. It was not done again. "
    "Look at the file before you call again.",
    ErrorCode.BAD_CWD: "The working directory {path} cannot be entered. Give an absolute path that exists, "
    "or leave out `cwd`.",
}


def sentence(error: MachineError, path: str, roots: Sequence[str] = ()) -> str:
    """The failure in words."""
    known = _SENTENCES.get(error.code)
    if known:
        resolved = error.details.resolved
        leads = f" (which leads to {resolved[:200]})" if resolved is not None and resolved != path else ""
        return known.format(path=path, leads=leads, roots=", ".join(roots))
    reason = str(error).rstrip(".")
    return f"This did not work on {path}: {reason}. Check the path, or look at it with bash_tool."
