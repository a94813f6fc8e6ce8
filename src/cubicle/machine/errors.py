"""What can go wrong with a sandbox, as every layer above it knows it.

SandboxError
├── StartFailed      the sandbox could not be started; the message says why, in words
│   ├── OwnerHasSandbox    the owner has another sandbox, which it names
│   ├── OwnedByAnother     the sandbox belongs to another owner
│   ├── StartRefused a limit on running sandboxes is reached
│   └── NoSpace      the host is too short of disk space to start anything
├── NotRunning       there is no such sandbox, or it is not up
├── Gone             the connection to its guest was lost
├── CannotRescue     what was set aside cannot be given back
├── MachineError     its guest could not do what was asked; `code` says why
└── Unusable         this driver cannot work on this host; the message says what is missing and what fixes it
"""

from __future__ import annotations

from cubicle.guest.operations import Failure, FailureDetails
from cubicle.guest.wire import ErrorCode


class SandboxError(Exception):
    """A sandbox could not do what was asked; the message is for people."""


class StartFailed(SandboxError):
    """The sandbox could not be started."""


class StartRefused(StartFailed):
    """A limit on running sandboxes is reached; the message says which one."""


class NoSpace(StartFailed):
    """The host has too little free disk space to start a sandbox."""


class NotRunning(SandboxError):
    """There is no such sandbox, or it is not up."""


class OwnerHasSandbox(StartFailed):
    """The owner has another sandbox: `name`."""

    def __init__(self, name: str) -> None:
        super().__init__("This chat already has another sandbox.")
        self.name = name


class OwnedByAnother(StartFailed):
    """The sandbox belongs to another owner."""

    def __init__(self) -> None:
        super().__init__("This sandbox belongs to another chat.")


class CannotRescue(SandboxError):
    """What was set aside cannot be given back; the message says why."""


class Unusable(SandboxError):
    """This driver cannot work on this host."""


class Gone(SandboxError):
    """The connection to the guest was lost: the sandbox, or its guest, is no longer there."""


class MachineError(SandboxError):
    """The guest said no; `code` says why."""

    def __init__(self, code: ErrorCode, message: str, details: FailureDetails = Failure.details) -> None:
        super().__init__(message)
        self.code = code
        self.details = details


def refusal(failure: Failure) -> MachineError:
    """What the guest says when it could not do a request."""
    text = failure.message[:2000].encode("utf-8", "replace").decode()
    return MachineError(failure.error, text, failure.details)
