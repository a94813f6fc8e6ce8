"""Signed texts: what links, cookies and the tokens of coding agents are made of, by itsdangerous.

A token is fields divided by dots, and the signature of all of them behind the last one. The context is signed too and
stands nowhere in it: what a token is for, and whose it is. A token of one context is none of another.
"""

from __future__ import annotations

import hashlib
import hmac

from itsdangerous import Signer
from itsdangerous.signer import SigningAlgorithm

from cubicle.core.paths import encoded

SEPARATOR = "."
_BYTES = 16  # 128 bits cannot be guessed, and links stand in every prompt


class _ShortHmac(SigningAlgorithm):
    def get_signature(self, key: bytes, value: bytes) -> bytes:
        return hmac.digest(key, value, "sha256")[:_BYTES]


_ALGORITHM = _ShortHmac()


def signed(secret: bytes, context: tuple[str, ...], *fields: str) -> str:
    return _signer(secret, context).sign(encoded(SEPARATOR.join(fields))).decode()


def is_signed(secret: bytes, context: tuple[str, ...], text: str) -> bool:
    """Whether `signed` made exactly this text for this context. In constant time."""
    if not text.isascii():
        return False
    value = text.rpartition(SEPARATOR)[0]
    return hmac.compare_digest(_signer(secret, context).sign(value.encode()), text.encode())


def _signer(secret: bytes, context: tuple[str, ...]) -> Signer:
    return Signer(
        secret,
        salt=encoded("\0".join(("cubicle", *context))),
        sep=SEPARATOR,
        key_derivation="hmac",
        digest_method=hashlib.sha256,
        algorithm=_ALGORITHM,
    )
