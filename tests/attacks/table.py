"""The table of attacks, by name. The files that hold attacks enter their own when they are imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.attacks.attacker import Action


@dataclass(frozen=True)
class Attack:
    """What is done, and what the attacker may get for it."""

    name: str
    run: Action
    gets: frozenset[str]
    """Statuses, close codes or words; one of them must come."""
    also: frozenset[str]
    """What may come besides."""
    prepare: Action | None = None
    tidy: Action | None = None


ATTACKS: dict[str, Attack] = {}


def attack(
    gets: str, also: str = "", *, prepare: Action | None = None, tidy: Action | None = None
) -> Callable[[Action], Action]:
    """Enter a function into the table; its docstring says what it does."""

    def enter(run: Action) -> Action:
        name = run.__name__  # type: ignore[attr-defined]
        assert name not in ATTACKS
        ATTACKS[name] = Attack(name, run, frozenset(gets.split("|")), frozenset(also.split("|")), prepare, tidy)
        return run

    return enter
