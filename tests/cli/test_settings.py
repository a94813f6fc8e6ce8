"""`cubicle settings` shows what there is to set."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from cubicle.cli.settings import rows, settings
from cubicle.settings import Settings


def test_the_table_names_every_setting_once() -> None:
    names = [row.name for row in rows()]
    assert len(names) == len(set(names)) == len(Settings.model_fields)


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("HOST", "127.0.0.1"),
        ("PORT", "8081"),
        ("DRIVER", "oci"),
        ("MCP_PATHS", "/mcp,/mcp/computer_use"),
        ("SINGLE_USER_MODE", "unset"),
        ("CONTAINER_MAX_AGE_HOURS", "24"),
        ("API_KEYS_FILE", ""),
        ("SUB_AGENT_CLI", "claude"),
        ("SUB_AGENT_MAX_TURNS", "25"),
        ("SUB_AGENT_TIMEOUT", "3600"),
    ],
)
def test_a_default_is_shown_as_one_would_set_it(name: str, default: str) -> None:
    assert {row.name: row.default for row in rows()}[name] == default


def test_a_shown_default_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in rows():
        monkeypatch.setenv(row.name, row.default)
    assert Settings(_env_file=None) == Settings.model_construct()


def test_the_command_prints_a_table() -> None:
    result = CliRunner().invoke(settings, env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "CONTAINER_MAX_AGE_HOURS" in result.output


def test_the_command_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_API_KEY", "hunter-two")
    assert "hunter-two" not in CliRunner().invoke(settings).output
    assert "hunter-two" not in CliRunner().invoke(settings, ["--markdown"]).output
