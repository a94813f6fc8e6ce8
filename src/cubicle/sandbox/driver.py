"""The driver contract: where a sandbox lives."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol, runtime_checkable

from cubicle.machine.upload_folder import UploadFolder
from cubicle.sandbox.lost_found import Lost
from cubicle.sandbox.trash import Discarded, TrashNote


class State(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"


Condition = Literal["starting", "running", "stopped", "failed", "none"]
"""The state of a chat's sandbox in a word; none: the chat has no sandbox."""
CONDITIONS: dict[State, Condition] = {
    State.STARTING: "starting",
    State.RUNNING: "running",
    State.STOPPED: "stopped",
    State.FAILED: "failed",
}


@dataclass(frozen=True, slots=True)
class SandboxSeen:
    """What a driver finds of one sandbox among its own objects."""

    name: str
    owner: str | None
    """The digest of the chat that it belongs to; None for a blank one of the pool."""
    state: State
    reason: str = ""
    """Why it failed, in words."""
    image: str = ""
    current: bool = True
    """Of a blank one: a new one would be the same today, by its image, guest, limits and isolation."""
    frozen: bool = False
    """Of one that is up: it is halted, and whoever connects to it lets it run on."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What one sandbox may use."""

    memory_bytes: int = 2 * 1024**3
    cpus: float = 2.0
    pids: int = 512
    disk_bytes: int = 10 * 1024**3

    def words(self) -> str:
        """For a model that wonders how much it may use."""
        memory, disk = self.memory_bytes / 1024**3, self.disk_bytes / 1024**3
        cpus = f"{self.cpus:g} CPU{'s' if self.cpus != 1 else ''}"
        return f"{cpus}, {memory:.3g} GB of memory, {self.pids} processes and {disk:.3g} GB of disk"


@dataclass(frozen=True, slots=True)
class DriverHost:
    """The machine that sandboxes run on."""

    kernel: str
    """The release of its kernel; empty if that cannot be known."""
    here: bool = True
    """Whether this process sees the same files, network and processes as its root does."""
    network_targets: tuple[tuple[str, str, int], ...] = ()
    """What its network leads to and no sandbox may reach: what it is, address and port."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a driver can do here. Whoever needs to know asks this, and not which driver it is.

    What depends on the host or the engine is known once the driver is open, and False before.
    """

    isolates: bool = True
    """Its sandboxes are isolated from the host and from each other, and limited in what they use."""
    remote: bool = False
    """Sandboxes may run on another machine than this process."""
    fd_passing: bool = False
    """A guest can pass open files to this process (SCM_RIGHTS)."""
    upload_folder: bool = False
    """`uploads` gives the folder of a sandbox that is up: uploads need not go by the guest."""
    network_namespace: bool = False
    """`network` gives the network of a sandbox that is up: its ports can be dialled without the guest."""
    transparent_proxy: bool = False
    """New sandboxes have a network that leads to the egress proxy, also for programs that know no proxy."""
    resumes: bool = False
    """`resume` lets a sandbox run on that was stopped or frozen."""
    freezes: bool = False
    """`freeze` halts a sandbox, and `resume` lets it run on within milliseconds."""
    rescues: bool = False
    """`rescue` gives a sandbox that was set aside back to an owner."""
    limits_processes: bool = True
    """The number of a sandbox's processes is limited by the driver, not by whoever set the host up."""
    hides_kernel_files: bool = True
    """What of /proc and /sys tells of the host is hidden from its sandboxes."""
    pools: bool = False
    """It keeps blank sandboxes up itself: `take_blank` gives one to an owner."""
    image_store: bool = False
    """Its sandboxes stand on images of IMAGE_DIR, which have to stay for as long as one does."""


class Driver(Protocol):
    """Makes sandboxes. A sandbox is known by a name that the fleet chose (letters and digits, fixed length).

    Verbs may be called at any time and for any name; calls for one name come one after the other (the fleet sees to
    it), calls for different names at once. Sandboxes outlive the driver object and the service: a new driver object
    over the same state finds them by `list()`.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    async def open(self) -> None:
        """Check the host (raise Unusable), and clean up what a crash left half-made. Called once, before all else.

        Half-made is what provably never had an owner. What cannot be read and may be somebody's is repaired where it
        is, or set aside in DATA_DIR/lost+found.
        """

    async def close(self) -> None:
        """Let go of what the driver object holds; sandboxes stay up."""

    async def host(self) -> DriverHost:
        """The machine that its sandboxes run on. Raises SandboxError."""

    async def start(self, name: str, owner: str | None) -> None:
        """Bring it up: make it if it is new, start it if it is stopped, do nothing if it runs.

        With an owner, bind it to that owner for good; a blank one that runs becomes the owner's without a restart.
        When this returns, `connect` works at once, and all that makes the sandbox the owner's is on disk.
        Raises StartFailed, and then leaves nothing running.
        """

    async def take_blank(self, owner: str) -> str | None:
        """Give the owner a blank sandbox that is up, of those that the driver keeps itself; its name, or None if there
        is none. When this returns, all that `start` promises of it holds. Raises OwnerHasSandbox.
        """

    async def take_over(self, owner: str) -> None:
        """Of several processes over the same sandboxes, this one uses the owner's from now on: connections of others to
        it end, where they are not known to have ended with their process.
        """

    async def stop(self, name: str) -> None:
        """End all its processes; keep its files and its owner. Nothing happens if it is not up."""

    async def delete(self, name: str) -> None:
        """Stop it and remove everything of it, also from the trash. Nothing happens if there is none."""

    async def delete_blank(self, name: str) -> bool:
        """The same for one that belongs to nobody; False, and nothing happens, if it is somebody's: it may have been
        given to a chat since somebody looked, or by a start that then failed.
        """

    async def purge(self, name: str) -> bool:
        """Delete it from the trash. False, and nothing happens, if it is not there: it may have been restored since
        somebody looked.
        """

    async def discard(self, name: str, note: TrashNote) -> None:
        """Stop it and move it to the trash with all its files; its owner can have a new one at once.

        Nothing happens if there is none. A crash leaves it with its owner or in the trash, never in both or in neither.
        A name in the trash cannot be started.
        """

    async def discarded(self) -> Sequence[Discarded]:
        """Every sandbox in the trash."""

    async def restore(self, name: str, owner: str) -> None:
        """Move it from the trash to this owner, stopped. A crash leaves it in the trash or with the owner.

        Raises NotRunning if it is not in the trash, OwnerHasSandbox if the owner has another sandbox.
        """

    async def find(self, owner: str, hint: str = "") -> str | None:
        """The name of the owner's sandbox, up or not. `hint` is the name that it had when it was last seen."""

    async def resume(self, name: str) -> bool:
        """Let it run on if its first process was stopped by a signal or frozen; whether that was so.

        False for one that is merely slow, and for one that is not up. Raises nothing but SandboxError.
        """

    async def freeze(self, name: str) -> bool:
        """Halt it until `resume`, `connect` or `stop`, if nothing in it is at work; whether it is halted now.

        What it has in memory and on disk stays, and it is still up. False, and it runs on, where a program runs in it
        or where it cannot be halted within a fraction of a second. Raises nothing but SandboxError.
        """

    async def give_memory_back(self, name: str) -> None:
        """Give memory of one that is frozen back to the host, as far as that can be had again. Raises SandboxError."""

    async def list(self) -> Sequence[SandboxSeen]:
        """Every sandbox that there is, up or not, but for those in the trash."""

    async def names(self) -> Collection[str]:
        """At least the names of those that belong to a chat: asked for often, of thousands."""

    async def rescue(self, lost: Lost, owner: str) -> str:
        """Give a sandbox that was set aside to an owner; its name. Raises CannotRescue."""

    def uploads(self, name: str) -> UploadFolder | None:
        """The uploads folder of one that is up, if this host can write it; None where everything goes by the guest.

        `stop` and `delete` end the folder before they let go of the sandbox's disk.
        """

    async def network(self, name: str) -> int | None:
        """An open descriptor of its network namespace, the caller's to close; None where this host cannot enter it."""

    async def address(self, name: str) -> tuple[str, int] | None:
        """Where on a network its guest listens, if it is up; None where no network leads to it."""

    async def why_ended(self, name: str) -> str:
        """Why a sandbox that was up, and that nobody here has stopped, is not any more; empty if that is not known."""

    async def flush(self, name: str) -> None:
        """Have on the host's disk what was written in it, if that can be lost when the host's disk gets full.

        Raises SandboxError if it is lost.
        """

    async def connect(self, name: str) -> socket.socket:
        """A new byte stream to its guest, as a connected non-blocking socket. One that was frozen runs on.

        Raises NotRunning.
        """


@runtime_checkable
class ReplicatedDriver(Protocol):
    """One whose sandboxes programs on several hosts use: their records say which of them does."""

    owns: Callable[[str], Awaitable[bool]]
    """Whether an owner is this process's though the record names another: that may be the command line."""
