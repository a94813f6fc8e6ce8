"""Typed messages: what the JSON object of a frame holds, checked when it comes and written when it goes.

To a type checker a message is a dataclass (PEP 681). At run time it is built here: the standard library's
`dataclasses` would take 2 MB of every sandbox, and more time at its start than all the rest of the guest.

A field is declared with a check, which returns the value or raises ValueError with what it has to be. Fields that are
not known are passed over, so that a newer side can say more than an older one reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

    _M = TypeVar("_M", bound="Message")
    _E_co = TypeVar("_E_co", bound="Message", covariant=True)
    _A_co = TypeVar("_A_co", bound="Message", covariant=True)
else:
    _E_co = _A_co = None

    def dataclass_transform(**_options):
        return lambda kind: kind


MAX_NUMBER = 2**63 - 1
Check = Callable[[object], object]
_NO_DEFAULT = object()


class BadMessage(ValueError):
    """A message does not hold what it has to."""


class Field:
    """How one field of a message is checked, and what it is when it is left out."""

    __slots__ = ("check", "default")

    def __init__(self, check: Check, default: object) -> None:
        self.check = check
        self.default = default


def field(check: Check, *, default: object = _NO_DEFAULT) -> Any:
    """Declare a field; without a default it must be there."""
    return Field(check, default)


@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=True, field_specifiers=(field,))
class Message:
    """What one frame says. Immutable."""

    STRICT: ClassVar[bool] = False
    """Whether one wrong field spoils the message. If not, a wrong field that has a default is as good as left out."""
    _FIELDS: ClassVar[dict[str, Field]] = {}
    _REQUIRED: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        own = {name: value for name, value in vars(cls).items() if isinstance(value, Field)}
        cls._FIELDS = {**cls._FIELDS, **own}
        cls._REQUIRED = frozenset(name for name, one in cls._FIELDS.items() if one.default is _NO_DEFAULT)
        for name, one in own.items():
            if one.default is _NO_DEFAULT:
                delattr(cls, name)
            else:
                setattr(cls, name, one.default)

    def __init__(self, **fields: object) -> None:
        if not fields.keys() >= self._REQUIRED or not fields.keys() <= self._FIELDS.keys():
            raise TypeError("%s has the fields %s" % (type(self).__name__, ", ".join(self._FIELDS)))
        self.__dict__.update(fields)

    @classmethod
    def decode(cls: type[_M], fields: dict[str, object]) -> _M:
        """The message of a JSON object. Raises BadMessage."""
        found = {}
        for name, one in cls._FIELDS.items():
            if name in fields:
                try:
                    found[name] = one.check(fields[name])
                except ValueError as error:
                    if cls.STRICT or one.default is _NO_DEFAULT:
                        raise BadMessage("%s is %s" % (name, error)) from None
            elif one.default is _NO_DEFAULT:
                raise BadMessage("%s is missing" % name)
        message = cls.__new__(cls)
        message.__dict__.update(found)
        return message

    @classmethod
    def decode_line(cls: type[_M], text: bytes) -> _M:
        """The message of a short text. Raises BadMessage."""
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            raise BadMessage("it is no JSON") from None
        if not isinstance(fields, dict):
            raise BadMessage("it is no JSON object")
        return cls.decode(fields)

    def replace(self: _M, **fields: object) -> _M:
        """The same with other values of these fields."""
        return type(self)(**{**self.__dict__, **fields})

    def encode(self) -> bytes:
        """The JSON object, without the fields that were left out."""
        return _encode(self.__dict__).encode()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a message does not change")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(getattr(self, name) == getattr(other, name) for name in self._FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "%s(%s)" % (
            type(self).__name__,
            ", ".join("%s=%r" % (name, getattr(self, name)) for name in self._FIELDS),
        )


def _plain(message: object) -> object:
    if isinstance(message, Message):
        return message.__dict__
    raise TypeError("%s is nothing that a message can hold" % type(message).__name__)


_encode = json.JSONEncoder(separators=(",", ":"), default=_plain).encode


if TYPE_CHECKING:

    class _Exchange(Generic[_E_co, _A_co]):
        EVENT: type[_E_co]
        ANSWER: type[_A_co]

else:

    class _Exchange:
        def __class_getitem__(cls, pair):
            return _Base(cls, pair)

    class _Base:
        """A base class with its event and answer, which the class that has it takes over: no class is made for it."""

        def __init__(self, kind, pair):
            self.kind = kind
            self.pair = pair

        def __mro_entries__(self, bases):
            return (self.kind,)


class Request(Message, _Exchange[_E_co, _A_co]):
    """What the host asks for: `Request[event, answer]`, what the guest says meanwhile and at the end."""

    OP: ClassVar[str]
    STRICT = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.EVENT, cls.ANSWER = vars(cls)["__orig_bases__"][-1].pair

    def encode(self) -> bytes:
        return _encode({"op": self.OP, **self.__dict__}).encode()


class Nothing(Message):
    """It is done, and there is nothing to say."""


# ---- checks


def text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("a text")


def flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("true or false")


def number(low: int, high: int) -> Check:
    """A whole number from low to high."""

    def check(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        raise ValueError("a whole number from %d to %d" % (low, high))

    return check


count = number(0, MAX_NUMBER)


def clamped(value: object) -> int:
    """A whole number, at most the largest and at least 0: some file systems number their files beyond it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return min(max(0, value), MAX_NUMBER)
    raise ValueError("a whole number")


def seconds(value: object) -> float:
    """A span of time, finite and not negative."""
    # Compared before it is converted: a number of 400 digits is no float.
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER:
        return float(value)
    raise ValueError("a number of seconds")


def between(low: float, high: float) -> Check:
    """Any number between the two."""

    def check(value: object) -> float:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and low < value < high:
            return float(value)
        raise ValueError("a number between %g and %g" % (low, high))

    return check


def optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def many(check: Check, most: int = MAX_NUMBER) -> Check:
    """A list, of at most so many."""

    def check_all(value: object) -> list[object]:
        if isinstance(value, list) and len(value) <= most:
            return [check(item) for item in value]
        raise ValueError("a list")

    return check_all


def pair(first: Check, second: Check) -> Check:
    def check(value: object) -> tuple[object, object]:
        if isinstance(value, list) and len(value) == 2:
            return first(value[0]), second(value[1])
        raise ValueError("a pair")

    return check


def texts_by_name(value: object) -> dict[str, str]:
    if isinstance(value, dict) and all(isinstance(one, str) for one in value.values()):
        return value
    raise ValueError("an object of texts")


def nested(kind: type[Message]) -> Check:
    def check(value: object) -> Message:
        if isinstance(value, dict):
            return kind.decode(value)
        raise ValueError("an object")

    return check


def _word(value: object) -> str:
    if isinstance(value, str) and "\0" not in value:
        return value
    raise ValueError("a list of words without NUL")


def words(value: object) -> list[str]:
    if isinstance(value, list) and value:
        return [_word(one) for one in value]
    raise ValueError("a list of words without NUL")


def call_id(value: object) -> str:
    if isinstance(value, str) and 0 < len(value) <= 100:
        return value
    raise ValueError("a text of 1 to 100 characters")
