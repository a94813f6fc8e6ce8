"""bash_tool, through the service, in a true sandbox."""

from __future__ import annotations

import time
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from cubicle.core.chat import Chat
from cubicle.core.network import NetworkMode
from cubicle.drivers.memory import MemoryDriver
from cubicle.egress.policy import Policy
from cubicle.egress.proxy import EgressProxy
from cubicle.guest import operations
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.fleet import Fleet
from cubicle.tools import exit_codes
from cubicle.tools.arguments import Arguments, BadArgument
from tests.support.service import Options, Service, service_of, text


async def run(service: Service, command: str, **arguments: Any) -> tuple[str, bool]:
    result = await service.call("bash_tool", {"command": command, "description": "test", **arguments})
    assert len(result["content"]) == 1
    return text(result), result["isError"]


@pytest.mark.parametrize(
    ("command", "output", "error"),
    [
        ("echo hi", "hi\n", False),
        ("true", "(no output)", False),
        ("echo out; echo err >&2; echo out2", "out\nerr\nout2\n", False),
        ("echo oops >&2; exit 3", "oops\n[exit code 3]", True),
        ("printf x; exit 1", "x\n[exit code 1]", True),
        ("echo a | grep b", "[exit code 1: grep says no match; this is not an error]", False),
        ("cd /tmp && grep -r nothing-like-this /etc/hostname", None, False),
        ("grep x /none", None, True),
        ("diff <(echo a) <(echo b)", None, False),
        ("test -f /none", "[exit code 1: test says the condition is false; this is not an error]", False),
        ("[ 1 = 2 ]", "[exit code 1: [ says the condition is false; this is not an error]", False),
        ("grep x /dev/null; false", exit_codes.judge("false", 1, printed=False).note, True),
        ("kill -9 $$", exit_codes.killed(9).note, True),
        ("printf '\\377\\376ok'", "\ufffd\ufffdok", False),
        ("pwd", "/home/assistant\n", False),
        ("id -u", "1000\n", False),
    ],
)
async def test_what_a_command_answers(service: Service, command: str, output: str | None, error: bool) -> None:
    said, failed = await run(service, command)
    assert failed is error, said
    assert output is None or said == output


async def test_a_working_directory_is_used_under_both_names(service: Service) -> None:
    assert await run(service, "pwd", cwd="/tmp") == ("/tmp\n", False)
    assert await run(service, "pwd", working_directory="/tmp") == ("/tmp\n", False)


async def test_a_missing_working_directory_is_said(service: Service) -> None:
    said, failed = await run(service, "pwd", cwd="/none")
    assert failed
    assert "/none" in said
    assert "cwd" in said


async def test_a_command_that_takes_too_long_is_ended_and_its_output_kept(service: Service) -> None:
    for limit in (1, 10, 60):  # a busy machine may need more than a second to begin
        started = time.monotonic()
        said, failed = await run(service, "echo before; sleep 300; echo after", timeout=limit)
        assert time.monotonic() - started < limit + 60
        if said.startswith("before"):
            break
    assert (said, failed) == (f"before\n{exit_codes.timed_out(limit).note}", True)


@pytest.mark.real
async def test_the_usual_time_limit_is_the_setting(service: Service) -> None:
    async with service_of(service.fleet, Options({"command_timeout": 1})) as hasty:
        assert await run(hasty, "sleep 200") == (exit_codes.timed_out(1).note, True)
        assert await run(hasty, "sleep 1.5; echo ok", timeout=60) == ("ok\n", False)


@pytest.mark.parametrize("timeout", [0, 0.5, 86_401, -1, "soon", True])
async def test_a_time_limit_out_of_range_is_named(service: Service, timeout: Any) -> None:
    said, failed = await run(service, "true", timeout=timeout)
    assert failed
    assert "`timeout`" in said
    assert "86,400" in said


@pytest.mark.parametrize("timeout", [1, 1.5, 86_400])
async def test_a_time_limit_within_its_range_is_taken(service: Service, timeout: Any) -> None:
    for _ in range(5):  # a busy machine may take longer than that once, not every time
        if (answer := await run(service, "echo fine", timeout=timeout)) == ("fine\n", False):
            return
    raise AssertionError(answer)


@pytest.mark.parametrize("missing", ["command", "description"])
async def test_a_missing_argument_is_named(service: Service, missing: str) -> None:
    arguments = {"command": "true", "description": "x"}
    del arguments[missing]
    result = await service.call("bash_tool", arguments)
    assert result["isError"]
    assert f"`{missing}`" in text(result)


async def test_output_over_the_cap_keeps_both_ends(service: Service) -> None:
    said, _ = await run(service, "printf 'a%.0s' {1..20000}; printf 'b%.0s' {1..20000}")
    assert said == "a" * 15_000 + "\n[... 10,000 characters left out ...]\n" + "b" * 15_000


async def test_the_cap_counts_characters_and_splits_none(service: Service) -> None:
    said, _ = await run(service, "python3 -c \"print('€' * 40000, end='')\"")
    assert said == "€" * 15_000 + "\n[... 10,000 characters left out ...]\n" + "€" * 15_000


async def test_a_flood_of_output_is_no_trouble(service: Service) -> None:
    said, failed = await run(service, "head -c 100000000 /dev/zero | tr '\\0' x; echo end")
    assert not failed
    assert said.endswith("xend\n")
    assert "99,970,004 characters left out" in said


async def test_a_command_in_the_background_does_not_hold_the_answer(service: Service) -> None:
    started = time.monotonic()
    assert await run(service, "sleep 300 & echo started") == ("started\n", False)
    assert time.monotonic() - started < 60


async def test_files_stay_between_calls(service: Service) -> None:
    await run(service, "echo kept > kept.txt")
    assert await run(service, "cat kept.txt") == ("kept\n", False)


async def test_a_command_too_long_for_the_wire_is_refused_in_words(service: Service) -> None:
    said, failed = await run(service, "echo " + "x" * 300_000)
    assert failed
    assert "too long" in said


async def test_a_folder_of_megabytes_is_refused_before_any_work(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To encode one of 50 MB holds up the event loop for half a second."""

    def encode(request: operations.Run) -> bytes:
        raise AssertionError("it is encoded")

    monkeypatch.setattr(operations.Run, "encode", encode)
    said, failed = await run(service, "true", cwd="/" + "a" * 5_000_000)
    assert failed
    assert "too long" in said


def test_a_text_of_megabytes_is_no_number() -> None:
    """To read one of 50 MB holds up the event loop for a quarter second."""

    class Text(str):
        __slots__ = ()

        def __float__(self) -> float:
            raise AssertionError("it is read")

    with pytest.raises(BadArgument, match="must be a number"):
        Arguments({"timeout": Text("1" * 5_000_000)}).optional_number("timeout", 1, 86_400)


async def test_nul_in_a_command_is_refused_in_words(service: Service) -> None:
    said, failed = await run(service, "echo a\0b")
    assert failed
    assert "NUL" in said


async def test_a_command_that_the_network_door_refused_is_told_why(tmp_path: Path) -> None:
    """However silent the program is: curl says no more of a refused HTTPS request than its status, and with -s nothing."""
    door = EgressProxy(Policy(NetworkMode.ALLOWLIST, contact="it@example.com"), folder=tmp_path / "egress")
    fleet = Fleet(MemoryDriver(tmp_path), ChatIndex(tmp_path / "chats"), pool_size=0, sandbox_services=[door.attached])
    command = "for try in 1 2; do curl -s https://api.example/; done; true"
    async with door, fleet, service_of(fleet) as service:
        try:
            refused = await service.call("bash_tool", {"command": command, "description": "test"})
            quiet = await service.call("bash_tool", {"command": "echo hi", "description": "test"})
        finally:
            await fleet.remove(Chat("test"))
    assert [block["text"] for block in refused["content"]] == [
        "(no output)",
        "Note: The sandbox's egress proxy denied api.example:443 (rule 'mode allowlist': no rule of this service "
        "allows api.example:443). "
        "If the task needs it, tell the user to ask it@example.com for a rule that allows it.",
    ]
    assert not refused["isError"]
    assert [block["text"] for block in quiet["content"]] == ["hi\n"]


async def test_a_command_that_asked_for_a_name_without_an_address_is_told(tmp_path: Path) -> None:
    async def nobody(_name: str) -> list[IPv4Address]:
        return []

    door = EgressProxy(Policy(NetworkMode.OPEN), folder=tmp_path / "egress", resolve=nobody)
    fleet = Fleet(MemoryDriver(tmp_path), ChatIndex(tmp_path / "chats"), pool_size=0, sandbox_services=[door.attached])
    async with door, fleet, service_of(fleet) as service:
        try:
            asked = {"command": "curl -s https://nowhere.example/; true", "description": "test"}
            refused = await service.call("bash_tool", asked)
        finally:
            await fleet.remove(Chat("test"))
    assert [block["text"] for block in refused["content"]] == [
        "(no output)",
        "Note: The name nowhere.example has no address.",
    ]
