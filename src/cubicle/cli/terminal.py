"""What `cubicle serve` writes for a person who looks on: the address in a plain line, and of the log only warnings."""

from __future__ import annotations

import logging
import sys

import click

from cubicle import log as logs
from cubicle.settings import LogFormat, Settings

log = logging.getLogger("cubicle")


def configure_log(settings: Settings) -> None:
    logs.configure(settings.log_format.value, level=logging.WARNING if _is_watched(settings) else logging.INFO)


def say_address(settings: Settings, address: str) -> None:
    """On a terminal in a plain line, which a person finds; elsewhere in the log."""
    endpoint = f"{address}{settings.mcp_paths[0]}"
    if _is_watched(settings):
        logs.flush()
        click.echo(f"\n  Cubicle is ready: open {address}/\n  MCP clients connect to {endpoint}\n", err=True)
        return
    several = {"workers": settings.workers} if settings.workers > 1 else {}
    log.info("serving", extra={"address": address, "driver": settings.driver.value, **several})
    log.info("MCP clients connect to %s; people open %s/", endpoint, address)


def _is_watched(settings: Settings) -> bool:
    """A person looks on, and did not ask for the log: what is written is what that person needs."""
    return settings.log_format is LogFormat.AUTO and sys.stderr.isatty()
