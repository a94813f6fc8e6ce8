"""create_file and str_replace."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cubicle.core.chat import Chat
from tests.support.service import Service, text


async def ask(service: Service, tool: str, **arguments: Any) -> tuple[str, bool]:
    result = await service.call(tool, arguments)
    return text(result), result["isError"]


async def content(service: Service, path: str) -> bytes:
    async with service.fleet.lease(Chat("test")) as machine:
        return await machine.read_bytes(path, limit=1 << 20)


async def test_a_file_is_created_with_its_folders_then_overwritten(service: Service) -> None:
    path = "/home/assistant/new/deep/file.txt"
    assert await ask(service, "create_file", path=path, content="one\r\n") == (f"Created {path} (5 bytes).", False)
    assert await content(service, path) == b"one\r\n"
    assert await ask(service, "create_file", path=path, file_text="zwölf") == (f"Overwrote {path} (6 bytes).", False)
    assert await content(service, path) == "zwölf".encode()
    assert await service.bash(f"stat -c %u:%a {path}") == "1000:644\n"


@pytest.mark.parametrize("tool", ["create_file", "str_replace", "view"])
@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/home/assistant/../../etc/passwd", "/root/x", "/", "/proc/self/environ"]
)
async def test_a_path_outside_of_the_allowed_folders_is_refused(service: Service, tool: str, path: str) -> None:
    said, failed = await ask(service, tool, path=path, content="x", old_str="a", new_str="b")
    assert failed
    assert "outside the allowed folders" in said
    assert "/home/assistant" in said


async def test_a_link_does_not_lead_out(service: Service) -> None:
    await service.bash("ln -sfn /etc /home/assistant/etc-link")
    for tool in ("create_file", "view", "str_replace"):
        said, failed = await ask(
            service, tool, path="/home/assistant/etc-link/hostname", content="x", old_str="a", new_str="b"
        )
        assert failed
        assert "(which leads to /etc/hostname) is outside" in said


async def test_skills_and_uploads_can_be_seen_but_not_written(service: Service) -> None:
    said, failed = await ask(service, "create_file", path="/mnt/skills/x/SKILL.md", content="x")
    assert failed
    assert "outside" in said
    said, failed = await ask(service, "create_file", path="/mnt/user-data/uploads/x", content="x")
    assert failed
    assert "/mnt/user-data/outputs" in said
    assert (await ask(service, "view", path="/mnt/skills"))[1] is False


@pytest.mark.parametrize("path", ["relative.txt", "", "~/x", "a\0b"])
async def test_a_path_that_is_not_absolute_is_named(service: Service, path: str) -> None:
    said, failed = await ask(service, "create_file", path=path, content="x")
    assert failed
    assert "`path`" in said


@pytest.mark.parametrize(
    ("tool", "path", "words"),
    [
        ("create_file", "/tmp/plain/x", "A part of /tmp/plain/x is a file"),
        ("create_file", "/tmp/closed/x", "no permission for /tmp/closed/x"),
        ("view", "/tmp/closed", "no permission for /tmp/closed"),
        ("view", "/tmp/closed/x", "no permission for /tmp/closed/x"),
        ("view", "/tmp/plain/x", "A part of /tmp/plain/x is a file"),
    ],
)
async def test_what_stands_in_the_way_of_a_path_is_said(service: Service, tool: str, path: str, words: str) -> None:
    await service.bash("mkdir -p -m 0 /tmp/closed; echo > /tmp/plain")
    said, failed = await ask(service, tool, path=path, content="x")
    assert failed
    assert words in said


async def test_a_directory_is_not_a_file(service: Service) -> None:
    said, failed = await ask(service, "create_file", path="/home/assistant", content="x")
    assert failed
    assert "is a directory" in said


async def test_one_occurrence_is_replaced(service: Service) -> None:
    path = "/tmp/edit.txt"
    await ask(service, "create_file", path=path, content="one\ntwo\nthree\n")
    said, failed = await ask(service, "str_replace", path=path, old_str="two\n", new_str="2\n")
    assert (said, failed) == (f"Replaced the text at line 2 of {path} (now 12 bytes).", False)
    assert await content(service, path) == b"one\n2\nthree\n"
    assert (await ask(service, "str_replace", path=path, old_str="2\n", new_str=""))[1] is False
    assert await content(service, path) == b"one\nthree\n"


async def test_no_occurrence_and_several_are_refused_and_change_nothing(service: Service) -> None:
    path = "/tmp/many.txt"
    await ask(service, "create_file", path=path, content="a\nb\na\r\n")
    said, failed = await ask(service, "str_replace", path=path, old_str="zzz", new_str="y")
    assert failed
    assert "does not occur" in said
    assert "Windows line ends" in said
    said, failed = await ask(service, "str_replace", path=path, old_str="a", new_str="y")
    assert failed
    assert "occurs 2 times" in said
    assert "lines 1, 3" in said
    assert await content(service, path) == b"a\nb\na\r\n"


async def test_pointless_edits_are_refused_in_words(service: Service) -> None:
    for old, new in (("", "x"), ("x", "x")):
        said, failed = await ask(service, "str_replace", path="/tmp/x", old_str=old, new_str=new)
        assert failed
        assert "`old_str`" in said


async def test_a_missing_file_is_said(service: Service) -> None:
    said, failed = await ask(service, "str_replace", path="/tmp/none", old_str="a", new_str="b")
    assert failed
    assert "does not exist" in said


@pytest.mark.parametrize("missing", ["path", "old_str", "new_str"])
async def test_a_missing_argument_is_named(service: Service, missing: str) -> None:
    arguments = {"path": "/tmp/x", "old_str": "a", "new_str": "b"}
    del arguments[missing]
    said, failed = await ask(service, "str_replace", **arguments)
    assert failed
    assert f"`{missing}`" in said


@settings(
    max_examples=min(30, settings.default.max_examples),  # type: ignore[union-attr]
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.text(alphabet="ab\n é", max_size=12),
    st.text(alphabet="ab\n é", min_size=1, max_size=3),
    st.text(alphabet="xy\n ü", max_size=4),
)
async def test_replacing_agrees_with_python(service: Service, whole: str, old: str, new: str) -> None:
    path = "/tmp/property.txt"
    await ask(service, "create_file", path=path, content=whole)
    _, failed = await ask(service, "str_replace", path=path, old_str=old, new_str=new)
    places = sum(whole.startswith(old, at) for at in range(len(whole)))
    assert failed is (places != 1 or old == new)
    assert (await content(service, path)).decode() == (whole if failed else whole.replace(old, new))


async def test_a_text_in_many_pieces_is_written_and_edited_exactly(service: Service) -> None:
    path, text = "/home/assistant/large", "a€😀" * 100_000 + "end"
    said, wrong = await ask(service, "create_file", path=path, content=text)
    assert (said, wrong) == (f"Created {path} (800,003 bytes).", False)
    said, wrong = await ask(service, "str_replace", path=path, old_str=text, new_str="b" * 200_000)
    assert (said, wrong) == (f"Replaced the text at line 1 of {path} (now 200,000 bytes).", False)


@pytest.mark.parametrize("tool", ["create_file", "str_replace", "view"])
async def test_a_path_of_megabytes_is_refused_before_any_work(service: Service, tool: str) -> None:
    said, wrong = await ask(service, tool, path="/" + "a" * 5_000_000, content="a", old_str="a", new_str="b")
    assert wrong
    assert said.endswith("is longer than a path may be: 4,096 characters.")
    said, wrong = await ask(service, "bash_tool", command="a" * 5_000_000, description="a")
    assert wrong
    assert "too long; write it to a file first" in said
