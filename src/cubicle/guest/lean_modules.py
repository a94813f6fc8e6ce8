"""Stand-ins for modules of the standard library that take most of the guest's start, such as json and socket.

The guest uses little of them, all of it written in C. What is around it (enumerations, regular expressions, selectors)
takes 16 of 34 ms of processor time of every start, and memory of every sandbox. A stand-in has the part that the guest
uses; what it lacks comes from the full module, which is loaded then. Only the compiled guest has them (bundle.py).
"""

from __future__ import annotations

import _collections  # type: ignore[import-not-found]
import _collections_abc
import _heapq
import _json
import _signal  # type: ignore[import-not-found]
import _socket
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_BLANK = " \t\n\r"


def install() -> None:
    """From now on these names import the stand-ins."""
    sys.modules["collections.abc"] = _collections_abc
    _stand_in("collections", {"deque": _collections.deque, "abc": _collections_abc})
    _stand_in("json", {"loads": loads, "dumps": JSONEncoder().encode, "JSONEncoder": JSONEncoder})
    _stand_in("json.decoder", {"JSONDecodeError": JSONDecodeError})  # by which the scanner says what is wrong
    _stand_in("heapq", {}, _heapq)
    _stand_in("signal", {}, _signal)
    _stand_in("socket", {"socket": Socket, "socketpair": socketpair}, _socket)


def _stand_in(name: str, parts: dict[str, Any], written_in_c: object = None) -> None:
    module = type(sys)(name)
    full: list[Any] = []

    def missing(part: str) -> Any:
        if part.startswith("__"):
            raise AttributeError(part)
        if hasattr(written_in_c, part):
            return getattr(written_in_c, part)
        if not full:
            names = [key for key in sys.modules if key == name or key.startswith(name + ".")]
            lean = {key: sys.modules.pop(key) for key in names}
            try:
                full.append(__import__(name))
            finally:
                sys.modules.update({**lean, **sys.modules, name: module})
        return getattr(full[0], part)

    module.__dict__.update({key: value for key, value in parts.items() if not key.startswith("__")})
    module.__dict__.update(__getattr__=missing)
    sys.modules[name] = module


class _Reading:
    """How JSON is read: as the full module does it by default."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


_scan = _json.make_scanner(_Reading())  # type: ignore[arg-type]


def loads(text: str | bytes | bytearray) -> object:
    """The value of a JSON text. Raises ValueError."""
    if not isinstance(text, str):
        text = bytes(text).decode("utf-8", "surrogatepass")
    text = text.strip(_BLANK)
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("no JSON value") from None
    if end != len(text):
        raise ValueError("more than one JSON value")
    return value


class JSONDecodeError(ValueError):
    def __init__(self, message: str, text: str, position: int) -> None:
        super().__init__("%s at %d" % (message, position))


class JSONEncoder:
    """Writes JSON as the full module's class of this name does."""

    def __init__(
        self, separators: tuple[str, str] = (", ", ": "), default: Callable[[object], object] | None = None
    ) -> None:
        self._separators = separators
        self._default = default or _no_json

    def encode(self, value: object) -> str:
        item, key = self._separators
        write = _json.make_encoder(
            {}, self._default, _json.encode_basestring_ascii, None, key, item, False, False, True
        )
        return "".join(write(value, 0))


def _no_json(value: object) -> object:
    raise TypeError("Object of type %s is not JSON serializable" % type(value).__name__)


class Socket(_socket.socket):
    """A socket with what the full module adds in Python, as far as the guest uses it."""

    __slots__ = ("__weakref__",)

    def accept(self) -> tuple[Socket, Any]:
        fd, address = self._accept()  # type: ignore[attr-defined]
        return Socket(self.family, self.type, self.proto, fileno=fd), address

    def set_inheritable(self, inheritable: bool) -> None:
        os.set_inheritable(self.fileno(), inheritable)

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def socketpair() -> tuple[Socket, Socket]:
    """A connected pair; both close themselves on exec."""
    return tuple(Socket(fileno=end.detach()) for end in _socket.socketpair())  # type: ignore[return-value]
