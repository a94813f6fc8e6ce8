"""`cubicle settings` shows what there is to set."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cubicle.cli.serve import serve
from cubicle.cli.settings import rows, settings
from cubicle.settings import BadSettings, Settings, load, misspelt


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


def test_off_a_terminal_a_setting_is_a_line_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "https://" + "a-long-name." * 30 + "example"
    monkeypatch.setenv("PUBLIC_BASE_URL", address)
    monkeypatch.setenv("SKILLS_DIR", "/srv/[bold]/skills\nof mine")
    lines = CliRunner().invoke(settings, env={"COLUMNS": "80"}).output.splitlines()
    assert [line.split()[0] for line in lines] == ["setting", *(row.name for row in rows())]
    found = {line.split()[0]: line for line in lines}
    assert f"PUBLIC_BASE_URL * {address}" in " ".join(found["PUBLIC_BASE_URL"].split())
    assert "/srv/[bold]/skills of mine" in found["SKILLS_DIR"]
    assert all(row.meaning in found[row.name] for row in rows())
    assert all(line == line.rstrip() for line in lines)


def test_on_a_terminal_the_table_is_as_wide_as_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cubicle.cli.output.is_terminal", lambda: True)
    monkeypatch.setattr("cubicle.cli.settings.is_terminal", lambda: True)
    lines = CliRunner().invoke(settings, env={"COLUMNS": "80"}).output.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) > len(rows())


def test_the_command_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_API_KEY", "hunter-two")
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Key: hunter-two")
    assert "hunter-two" not in CliRunner().invoke(settings).output
    assert "hunter-two" not in CliRunner().invoke(settings, ["--markdown"]).output


def test_the_command_shows_what_is_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOL_SIZE", "7")
    monkeypatch.setenv("MCP_API_KEY", "hunter-two")
    lines = CliRunner().invoke(settings, env={"COLUMNS": "250"}).output.splitlines()
    pool = next(line for line in lines if line.startswith("POOL_SIZE"))
    assert pool.split()[:3] == ["POOL_SIZE", "*", "7"]
    assert "Default: 2." in pool
    assert next(line for line in lines if line.startswith("MCP_API_KEY")).split()[:3] == ["MCP_API_KEY", "*", "(set)"]
    assert next(line for line in lines if line.startswith("PORT")).split()[:2] == ["PORT", "8081"]


def test_a_value_that_cannot_be_used_is_named_and_the_table_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOL_SIZE", "many")
    result = CliRunner().invoke(settings, env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "POOL_SIZE" in result.stderr
    assert "CONTAINER_MAX_AGE_HOURS" in result.stdout


def test_a_replica_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers would be no replica: one pod would serve, and the others not start."""
    monkeypatch.setattr("cubicle.cli.serve.prepare_process", lambda: pytest.fail("it would start"))
    result = CliRunner().invoke(serve, env={"DRIVER": "kubernetes", "WORKERS": "2", "REPLICAS": "3"})
    assert result.exit_code == 1
    assert "WORKERS: a replica is one process" in result.stderr


def test_a_name_in_the_env_file_that_is_nearly_a_setting_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What has nothing to do with the service may be there as well."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("MCP_KEY=x\nPORT=1234\nCOMPOSE_PROJECT_NAME=mine\npool_siez=3\n")
    assert misspelt() == {"MCP_KEY": "MCP_API_KEY", "POOL_SIEZ": "POOL_SIZE"}
    assert "did you mean POOL_SIZE?" in CliRunner().invoke(settings).stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [("PUBLIC_BASE_URL", "https://例え.jp"), ("PUBLIC_BASE_URL", "https://box.example/a b"), ("ROOT_PATH", "/größe")],
)
def test_an_address_that_no_header_can_carry_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(BadSettings, match=f"{name}: must be ASCII without blanks"):
        load()


def test_a_name_of_other_letters_can_be_written_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBLIC_BASE_URL", "https://xn--r8jz45g.jp/%C3%A9")
    assert load().public_base_url == "https://xn--r8jz45g.jp/%C3%A9"


_NO_PAIR = "it is neither NAME=value nor a comment (#)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("PORT=1\nMCP_API_KEY: hunter-two\n", f"line 2: {_NO_PAIR}"),
        ("# mine\n\n\n  hunter two = 3\n", f"line 4: {_NO_PAIR}"),
        ("=hunter-two\r\n", f"line 1: {_NO_PAIR}"),
        ("PORT=1\r\n\r\nhunter two\r\n", f"line 3: {_NO_PAIR}"),
        (
            "PORT=1\nexport MCP_API_KEY = 'hunter-two\nPOOL_SIZE=3\n",
            "line 2: the value of MCP_API_KEY begins with a quote, and the line does not end with it",
        ),
        (
            'HUNTER="hunter-two\nHOST="0.0.0.0"\n',
            "line 1: the value begins with a quote, and the line does not end with it",
        ),
        ("hunter-two x\nPORT=1\nhunter-two y", f"line 1: {_NO_PAIR}; line 3: {_NO_PAIR}"),
    ],
)
def test_a_line_of_the_env_file_that_says_nothing_is_named_without_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_bytes(text.encode())
    with pytest.raises(BadSettings) as raised:
        load()
    assert str(raised.value) == f"{tmp_path / '.env'}, {said}."
    shown = CliRunner().invoke(settings)
    assert said in shown.stderr
    assert "hunter" not in shown.output.lower()


def test_an_env_file_that_is_no_text_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_bytes(b"PORT=1\nHOST=\xff\n")
    with pytest.raises(BadSettings, match="line 2: this is not UTF-8 text"):
        load()
    assert CliRunner().invoke(settings).exit_code == 0


def test_what_an_env_file_may_hold_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text(
        "\ufeff# mine\n\nexport PORT=1234 # here\nMCP_API_KEY='a b'\nPASSED_ON\nEGRESS=\"none\"\n", "utf-8"
    )
    read = load()
    assert (read.port, read.mcp_api_key, read.egress.value) == (1234, "a b", "none")


@pytest.mark.parametrize(
    "address", ["foo", "my-machine:8081", "ftp://files", "http://", "http:///x", "//host", "http://[::1"]
)
def test_a_public_address_that_is_none_stops_the_start(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("PUBLIC_BASE_URL", address)
    with pytest.raises(BadSettings, match="PUBLIC_BASE_URL"):
        load()


@pytest.mark.parametrize(
    "address", ["", "http://my-machine:8081", "https://tools.example.net/cubicle", "http://[::1]:8081/"]
)
def test_a_public_address_is_one_of_the_web(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("PUBLIC_BASE_URL", address)
    assert load().public_base_url == address
