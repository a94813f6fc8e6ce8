"""What a guest is started with."""

from __future__ import annotations

from .messages import Message, count, field, flag, many, number, optional, text, texts_by_name


class GuestConfig(Message):
    """What the guest is started with: the argument of its program."""

    STRICT = True
    socket: str = field(text, default="")
    """Where it listens."""
    listen_fd: int | None = field(optional(count), default=None)
    """Or the descriptor of a socket that listens already."""
    tcp: int | None = field(optional(number(1, 65535)), default=None)
    """Or the TCP port, on every address: then whoever connects has to sign a challenge (handshake.py)."""
    identity: str = field(text, default="")
    """With `tcp`: what tells this sandbox from every other, so that no answer to one is good for another."""
    keys: list[str] = field(many(text, 16), default=())
    """With `tcp`: moduli of the RSA keys that may sign, in hexadecimal."""
    home: str = field(text, default="/home/assistant")
    uid: int = field(count, default=1000)
    gid: int = field(count, default=1000)
    env: dict[str, str] = field(texts_by_name, default={})
    """Of every command."""
    aliases: dict[str, str] = field(texts_by_name, default={})
    """Folders that commands can only read, and where the guest can write each."""
    records: str = field(text, default="/run/cubicle/calls")
    """Where it keeps what was done under an id: a folder that outlives the sandbox's stop, closed to commands."""
    spawn_helper: bool = field(flag, default=False)
    """Whether a process of its own starts the commands (gVisor)."""
