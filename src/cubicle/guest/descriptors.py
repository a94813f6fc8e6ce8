"""What can be asked of an open descriptor."""

from __future__ import annotations

import fcntl
import struct
import termios


def window_size(fd: int, columns: int, rows: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def waiting(fd: int) -> int:
    """How many bytes can be read right now."""
    count: int = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]
    return count
