"""Changes of files that are made once: a repeated request gets the answer of the first."""

from __future__ import annotations

import os
from collections.abc import Callable

from .atomic_write import AtomicWrite
from .call_records import CallRecords
from .connection import OperationRefused
from .file_changes import FileChange, without_texts
from .messages import Message
from .operations import Edit, Write
from .path_policy import FileChannel


class OnceChannel(FileChannel):
    """A channel that changes a file, under an id of the host's if it has one."""

    records: CallRecords

    def told_again(self, request: Write | Edit, kind: type[Message], path: str) -> bool:
        """Tell what was told before, if the change of this id was made; whether it was. What was kept of it is found
        under the id of this request from now on.

        The guest may have ended between the change and the note of it: then the file at its place is the one that was
        about to be put there.
        """
        record = self.records.find(request.id) if request.id is not None else None
        if record is None or request.id is None:
            return False
        told = record.answer
        if told is None and record.intent is not None and _is_there(path, record.intent):
            told = record.intent.get("answer")
        if not isinstance(told, dict):
            return False
        answer = kind.decode(told)
        if isinstance(record.keep, str) and record.keep and request.keep not in ("", record.keep):
            self.publisher.kept.rename(record.keep, request.keep)
            self.records.answered(request.id, answer, request.keep)
        self.end(answer)
        return True

    def publish_once(
        self,
        request: Write | Edit,
        path: str,
        draft: AtomicWrite,
        mode: int,
        answer: Message,
        done: Callable[[bool, bytes], None],
    ) -> None:
        """Put the draft on disk under its name, with a note before that; then call back as the publisher does."""
        who, keeping = self.policy.who(request), self.keeping(request.keep, path)
        failed = None if request.id is None else self._note_intent(request.id, request.keep, path, draft, answer)
        try:
            self.publisher.publish(self, path, draft, mode, who, done, keeping, failed)
        except (OSError, OperationRefused):
            if failed is not None:
                failed()
            raise

    def _note_intent(
        self, call_id: str, keep: str, path: str, draft: AtomicWrite, answer: Message
    ) -> Callable[[], None]:
        """Before the draft takes its name; what to call if that fails."""
        found = os.fstat(draft.descriptors[0])
        intent: dict[str, object] = {"size": found.st_size, "mtime": found.st_mtime_ns, "answer": answer.__dict__}
        self.records.begin(call_id, intent)

        def failed() -> None:
            if _is_there(path, intent):  # only what came after that failed
                self.records.answered(call_id, answer, keep)
            else:
                self.records.drop(call_id)

        return failed

    def tell_done(self, request: Write | Edit, answer: Message, told: bytes) -> None:
        """It is made; `told` is what is known of the change. The texts of it are not told a second time."""
        change = FileChange.decode_line(told) if told else None
        if request.id is not None:
            short = answer if change is None else answer.replace(change=without_texts(change))
            self.records.answered(request.id, short, request.keep)
        self.end(answer if change is None else answer.replace(change=change))


def _is_there(path: str, intent: dict[str, object]) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return found.st_size == intent.get("size") and found.st_mtime_ns == intent.get("mtime")
