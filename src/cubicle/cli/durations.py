"""A length of time as people write it on the command line: 30m, 12h, 90d."""

from __future__ import annotations

import re
from typing import Any

import click

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MAX_SECONDS = 36500 * 86400


class Duration(click.ParamType[int]):
    """Seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d{1,9})([smhd])", str(value).strip())
        seconds = int(found[1]) * _UNITS[found[2]] if found else 0
        if not 0 < seconds <= _MAX_SECONDS:
            self.fail("write a number and s, m, h or d, such as 90d", param, ctx)
        return seconds


DURATION = Duration()
