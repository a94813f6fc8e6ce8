"""Users' personal tokens, set on requests as they leave the sandbox: git over HTTPS and named APIs work, and no command
ever holds a token."""

from __future__ import annotations

import logging
from collections import OrderedDict

from cubicle.core.caller import Caller
from cubicle.core.chat import Chat
from cubicle.egress.policy import BadRule, Rule, Scheme
from cubicle.log import chat_fields
from cubicle.prompt.settings_service import SettingsService

log = logging.getLogger(__name__)

_MAX_CHATS = 10_000


class UserTokens:
    """Knows for whom each chat works, and what the settings service has for them."""

    def __init__(self, users: SettingsService) -> None:
        self._users = users
        self._emails: OrderedDict[Chat, str] = OrderedDict()

    def note(self, caller: Caller) -> None:
        """The caller's tokens hold for this chat from now on. A sandbox that many share gets nobody's."""
        if caller.email is None or caller.shared:
            self._emails.pop(caller.chat, None)
            return
        self._emails[caller.chat] = caller.email
        self._emails.move_to_end(caller.chat)
        while len(self._emails) > _MAX_CHATS:
            self._emails.popitem(last=False)

    def forget(self, chat: Chat) -> None:
        """The chat is removed."""
        self._emails.pop(chat, None)

    async def rules(self, chat: Chat) -> tuple[Rule, ...]:
        """One rule for each token (see `Policy.additions`)."""
        email = self._emails.get(chat)
        if email is None:
            return ()
        found = []
        for token in (await self._users.of(email, chat.tenant)).tokens:
            try:
                header = ((token.header, token.value),)
                found.append(Rule(f"token {token.name}", hosts=(token.host,), scheme=Scheme.HTTPS, inject=header))
            except BadRule:
                log.warning("token left out: its host or header cannot be used", extra=chat_fields(chat))
        return tuple(found)
