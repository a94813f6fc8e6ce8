"""The trash: sandboxes whose chat has no record of them any more, and whose files stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cubicle.drivers.kubernetes.objects import BOUND, Record, word
from cubicle.drivers.kubernetes.records import Records
from cubicle.machine.errors import NotRunning, OwnerHasSandbox, SandboxError
from cubicle.sandbox.trash import Discarded, TrashNote


class Trash:
    """Each verb has one write that decides; a crash before or after it leaves the sandbox with its owner or here."""

    def __init__(self, records: Records, image: str) -> None:
        self._records = records
        self._image = image

    async def discard(self, record: Record, note: TrashNote, size: int | None) -> None:
        """Put a stopped sandbox here."""
        before = await self._records.of_sandbox(record.sandbox)
        if before.chat is None:
            raise changed()
        await self._records.ours(before.chat)  # to end its pods took its time: another replica may have taken it since
        for left in (before.trash, before.removed):  # of a discard that was interrupted, of a deletion that lost
            if left is not None and not await self._records.remove(left):
                raise changed()
        text = replace(note, size=size).to_json().decode()
        kept = await self._records.create(Record("trash", record.sandbox, record.owner, note=text))
        now = (await self._records.of_sandbox(record.sandbox)).chat
        if kept is None or now is None or not self._records.is_ours(now) or not await self._records.remove(now):
            raise changed()  # that last write decides

    async def discarded(self) -> Sequence[Discarded]:
        if not await self._records.any_of("trash"):
            return []
        records = await self._records.all()
        kept = {record.sandbox for record in records if record.kind in ("chat", "removed")}
        return [
            Discarded(record.sandbox, record.owner or None, TrashNote.parse(record.note.encode()), self._image)
            for record in records
            if record.kind == "trash" and record.sandbox not in kept
        ]

    async def restore(self, name: str, owner: str) -> None:
        records = await self._records.of_sandbox(word(name))
        if records.trash is None or records.chat is not None or records.removed is not None:
            raise NotRunning("There is no such sandbox in the trash.")
        made = await self._records.create(Record("chat", name, word(owner), pod=name, step=BOUND))  # this decides
        if made is None:
            other = await self._records.of_owner(owner)
            raise OwnerHasSandbox(other.sandbox if other is not None else "")
        now = await self._records.of_sandbox(name)  # who deletes it meanwhile looks for the chat in turn
        if now.removed is not None or not await self._records.remove(records.trash):
            await self._records.remove(made)
            raise NotRunning("There is no such sandbox in the trash.")


def changed() -> SandboxError:
    return SandboxError("The sandbox is being changed by another service.")
