"""Who may speak to a guest over TCP: only the service, which signs the guest's challenge with its private key.

    guest -> service   "cubicle1", 32 bytes of nonce, length (2 bytes) and text of the sandbox's identity
    service -> guest   epoch (8 bytes), length (2 bytes) and RSA signature (PKCS#1 v1.5, SHA-256) over
                       "cubicle-guest/1", nonce, identity and epoch
    guest -> service   "+", and frames from then on; or it hangs up

A sandbox holds no secret: the keys that it has are public. The highest epoch that was seen owns the sandbox: whoever
comes with a lower one is refused, and connections of a lower one are cut.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Sequence

from .loop import READ, Loop

GREETING = b"cubicle1"
NONCE_BYTES = 32
ACCEPTED = b"+"
ANSWER = struct.Struct(">QH")
MAX_SIGNATURE = 512
_CONTEXT = b"cubicle-guest/1"
_EXPONENT = 65537
_SHA256_INFO = bytes.fromhex("3031300d060960864801650304020105000420")
_MAX_WAITING = 32
_SECONDS = 10.0
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
_USER_TIMEOUT = (socket.TCP_USER_TIMEOUT, 60_000)


def challenge(nonce: bytes, identity: bytes) -> bytes:
    """What the guest says first."""
    return GREETING + nonce + struct.pack(">H", len(identity)) + identity


def signed_text(nonce: bytes, identity: bytes, epoch: int) -> bytes:
    """What the service has to sign."""
    return _CONTEXT + nonce + identity + struct.pack(">Q", epoch)


def is_signed(text: bytes, signature: bytes, modulus: int) -> bool:
    """Whether the signature is that of the key over the text."""
    import hashlib  # only a guest on TCP needs it: it loads all of OpenSSL

    size = (modulus.bit_length() + 7) // 8
    number = int.from_bytes(signature, "big")
    if len(signature) != size or number >= modulus:
        return False
    body = _SHA256_INFO + hashlib.sha256(text).digest()
    expected = b"\0\1" + b"\xff" * (size - len(body) - 3) + b"\0" + body
    return pow(number, _EXPONENT, modulus).to_bytes(size, "big") == expected


def set_tcp_options(sock: socket.socket) -> None:
    """Notice a lost peer, which sends no FIN, within a minute; send small frames at once."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (*_KEEP_ALIVE, _USER_TIMEOUT):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Handshakes:
    """The callers that have not shown yet who they are, in bounded number and time."""

    def __init__(
        self, loop: Loop, identity: str, keys: Sequence[str], enter: Callable[[socket.socket, int], None]
    ) -> None:
        if not keys:
            raise ValueError("a guest on TCP needs the key of whom it serves")
        self._loop = loop
        self._identity = identity.encode()
        self._keys = [int(key, 16) for key in keys]
        self._enter = enter
        self._epoch = 0
        self._waiting: list[_Caller] = []

    def begin(self, sock: socket.socket) -> None:
        """Ask a new caller who it is; the one that waits longest makes room for it."""
        while len(self._waiting) >= _MAX_WAITING:
            self._drop(self._waiting[0])
        caller = _Caller(sock, os.urandom(NONCE_BYTES))
        try:
            sock.setblocking(False)
            set_tcp_options(sock)
            sock.send(challenge(caller.nonce, self._identity))
        except OSError:
            sock.close()
            return
        self._waiting.append(caller)
        self._loop.watch(sock.fileno(), READ, lambda events: self._hear(caller))
        caller.cancel = self._loop.later(_SECONDS, lambda: self._drop(caller)).cancel

    def _hear(self, caller: _Caller) -> None:
        try:
            got = caller.sock.recv(ANSWER.size + MAX_SIGNATURE - len(caller.heard))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            got = b""
        caller.heard += got
        if got and caller.incomplete:
            return
        epoch, signature = caller.answer()
        if not got or epoch < self._epoch or not self._accepts(caller, epoch, signature):
            self._drop(caller)
            return
        self._forget(caller)
        self._epoch = epoch
        try:
            caller.sock.send(ACCEPTED)
        except OSError:
            caller.sock.close()
            return
        self._enter(caller.sock, epoch)

    def _accepts(self, caller: _Caller, epoch: int, signature: bytes) -> bool:
        text = signed_text(caller.nonce, self._identity, epoch)
        return any(is_signed(text, signature, key) for key in self._keys)

    def _forget(self, caller: _Caller) -> None:
        self._waiting.remove(caller)
        self._loop.unwatch(caller.sock.fileno())
        caller.cancel()

    def _drop(self, caller: _Caller) -> None:
        if caller in self._waiting:
            self._forget(caller)
            caller.sock.close()


class _Caller:
    """Somebody who connected and has not shown who it is."""

    def __init__(self, sock: socket.socket, nonce: bytes) -> None:
        self.sock = sock
        self.nonce = nonce
        self.heard = b""
        self.cancel: Callable[[], None] = lambda: None

    @property
    def incomplete(self) -> bool:
        """Whether more of the answer may come."""
        if len(self.heard) < ANSWER.size:
            return True
        length: int = ANSWER.unpack_from(self.heard)[1]
        return length <= MAX_SIGNATURE and len(self.heard) < ANSWER.size + length

    def answer(self) -> tuple[int, bytes]:
        """The epoch and the signature; of half an answer, nothing that counts."""
        if len(self.heard) < ANSWER.size:
            return 0, b""
        return ANSWER.unpack_from(self.heard)[0], self.heard[ANSWER.size :]
