"""Who used each chat last: whose limits its sandbox counts for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from cubicle.core.chat import Chat
from cubicle.quotas.limits import Scope, Subject

_MAX_CHATS = 20_000


def subjects_of(chat: Chat, user: str | None, key_id: str = "") -> tuple[Subject, ...]:
    """Whose limits hold for a call: the tenant's, those of its user if one is named, and those of the key."""
    found = [Subject(Scope.TENANT, chat.tenant)]
    if user:
        found.append(Subject(Scope.USER, chat.tenant, user))
    if key_id:
        found.append(Subject(Scope.KEY, chat.tenant, key_id))
    return tuple(found)


class ChatOwners:
    """The user and the key of each chat, by its digest. Of the chats that were used longest ago nothing is known."""

    def __init__(self, matters: Callable[[Subject], bool] = lambda subject: True) -> None:
        """`matters`: whether anything is limited for this user or key; the others are not kept."""
        self._kept: OrderedDict[str, dict[Scope, Subject]] = OrderedDict()
        self._matters = matters

    def note(self, chat: Chat, subjects: Sequence[Subject]) -> None:
        """These use the chat now, in place of who did before. Who comes by a link names nobody, and changes nothing."""
        named = {subject.scope: subject for subject in subjects if subject.scope is not Scope.TENANT}
        if not named:
            return
        users = self._kept.pop(chat.digest, {}) | named
        kept = {scope: subject for scope, subject in users.items() if self._matters(subject)}
        if kept:
            self._kept[chat.digest] = kept
            while len(self._kept) > _MAX_CHATS:
                self._kept.popitem(last=False)

    def of(self, digest: str) -> tuple[Subject, ...]:
        return tuple(self._kept.get(digest, {}).values())

    def user(self, digest: str) -> str:
        found = self._kept.get(digest, {}).get(Scope.USER)
        return found.name if found is not None else ""

    def forget(self, chat: Chat) -> None:
        self._kept.pop(chat.digest, None)
