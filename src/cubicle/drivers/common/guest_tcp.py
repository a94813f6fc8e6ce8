"""The service's end of the handshake with a guest on TCP (guest/handshake.py), and the key that it signs with."""

from __future__ import annotations

import asyncio
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from cubicle import durable
from cubicle.guest import handshake
from cubicle.machine.errors import Unusable

_BITS = 2048
_EXPONENT = 65537
_MAX_FILE = 64 * 1024
_MAX_IDENTITY = 256
_PEM = re.compile(rb"-----BEGIN [A-Z ]+-----.+?-----END [A-Z ]+-----\n?", re.DOTALL)


class NotThisGuest(OSError):
    """Somebody answers who is not the guest that was meant."""


@dataclass(frozen=True, slots=True)
class GuestKeys:
    """The private keys of the service. The first signs; guests accept each, so that a new one can be put before it."""

    keys: tuple[rsa.RSAPrivateKey, ...]

    @classmethod
    def generate(cls) -> Self:
        return cls((rsa.generate_private_key(_EXPONENT, _BITS),))

    @classmethod
    def load(cls, file: Path) -> Self:
        """The keys of a file, one PEM after the other; a file that is not there is made. Raises Unusable."""
        try:
            with file.open("rb") as stream:
                content = stream.read(_MAX_FILE)
        except FileNotFoundError:
            made = cls.generate()
            durable.make_folder(file.parent)
            durable.write(file, made.to_pem())
            return made
        except OSError as error:
            raise Unusable(f"The key of the guests, {file}, cannot be read: {error.strerror}.") from None
        try:
            found = [serialization.load_pem_private_key(part, None) for part in _PEM.findall(content)]
        except (ValueError, TypeError, UnsupportedAlgorithm):
            found = []
        keys = tuple(key for key in found if isinstance(key, rsa.RSAPrivateKey) and _usable(key))
        if not keys or len(keys) < len(found):
            raise Unusable(f"{file} has to hold RSA keys of 2048 to 4096 bits as PEM, without a password.")
        return cls(keys)

    def to_pem(self) -> bytes:
        form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return b"".join(key.private_bytes(serialization.Encoding.PEM, form, plain) for key in self.keys)

    @property
    def moduli(self) -> list[str]:
        """What guests are given of them."""
        return [f"{key.public_key().public_numbers().n:x}" for key in self.keys]

    def sign(self, text: bytes) -> bytes:
        return self.keys[0].sign(text, padding.PKCS1v15(), hashes.SHA256())


def _usable(key: rsa.RSAPrivateKey) -> bool:
    return _BITS <= key.key_size <= 8 * handshake.MAX_SIGNATURE and key.public_key().public_numbers().e == _EXPONENT


@dataclass(frozen=True, slots=True)
class GuestAddress:
    """Where a guest is, and which one is meant."""

    host: str
    port: int
    identity: str


async def connect(guest: GuestAddress, epoch: int, keys: GuestKeys, seconds: float) -> socket.socket:
    """A connected, non-blocking socket behind the handshake. Raises OSError, TimeoutError among them."""
    family = socket.AF_INET6 if ":" in guest.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        async with asyncio.timeout(seconds):
            handshake.set_tcp_options(sock)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, (guest.host, guest.port))
            nonce, identity = await _challenge(sock)
            if identity != guest.identity.encode():
                raise NotThisGuest("another sandbox has this address now")
            signature = keys.sign(handshake.signed_text(nonce, identity, epoch))
            await loop.sock_sendall(sock, handshake.ANSWER.pack(epoch, len(signature)) + signature)
            if await _exactly(sock, 1) != handshake.ACCEPTED:
                raise NotThisGuest("it refuses the connection")
    except BaseException:
        sock.close()
        raise
    return sock


async def _challenge(sock: socket.socket) -> tuple[bytes, bytes]:
    size = len(handshake.GREETING) + handshake.NONCE_BYTES
    head = await _exactly(sock, size + 2)
    length = int.from_bytes(head[size:], "big")
    if not head.startswith(handshake.GREETING) or length > _MAX_IDENTITY:
        raise NotThisGuest("it does not speak as a guest does")
    return head[len(handshake.GREETING) : size], await _exactly(sock, length)


async def _exactly(sock: socket.socket, size: int) -> bytes:
    """So many bytes, and none of those that follow."""
    heard = b""
    while len(heard) < size:
        got = await asyncio.get_running_loop().sock_recv(sock, size - len(heard))
        if not got:
            raise NotThisGuest("it hung up")
        heard += got
    return heard
