"""Records: what is there is read with its types checked, and what is not a record says why."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from cubicle import record
from cubicle.record import BadRecord, NewerRecord


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "record"


def test_what_is_written_is_read(path: Path) -> None:
    record.write(path, {"text": "a", "whole": 1, "number": 1.5, "texts": ["x"], "inner": {"text": "b"}})
    fields = record.read(path)
    assert (fields.text("text"), fields.whole("whole"), fields.number("number")) == ("a", 1, 1.5)
    assert (fields.texts("texts"), fields.fields("inner").text("text")) == (["x"], "b")
    assert json.loads(path.read_text())["version"] == record.VERSION
    assert os.listdir(path.parent) == ["record"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (bytes(512), "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b'{"a": 1', "not JSON"),
        (b"[" * 200_000, "nested"),
        (b'{"a": ' * 40_000, "nested"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"version": true}', "version"),
        (b'{"version": 0}', "version"),
        (b" " * (record.MAX_SIZE + 1), "larger"),
    ],
)
def test_what_is_no_record_says_why(path: Path, content: bytes, why: str) -> None:
    path.write_bytes(content)
    with pytest.raises(BadRecord, match=why):
        record.read(path)


def test_only_plain_files_are_read_and_nothing_is_waited_for(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        record.read(path)
    os.mkfifo(path)
    with pytest.raises(BadRecord):
        record.read(path)
    path.unlink()
    for target in ("record", "nowhere", "/dev/zero", "/etc/passwd"):
        path.symlink_to(target)
        with pytest.raises(BadRecord):
            record.read(path)
        path.unlink()
    path.mkdir()
    with pytest.raises(BadRecord, match="plain file"):
        record.read(path)


def test_what_is_not_the_files_fault_is_no_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*args: object, **options: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    record.write(path, {})
    monkeypatch.setattr(os, "open", short)
    with pytest.raises(OSError, match="Too many"):
        record.read(path)


@pytest.mark.parametrize("wrong", [None, True, "1", -1, 2**80, [], {}, 1.5])
def test_types_are_checked(path: Path, wrong: object) -> None:
    path.write_text(json.dumps({"field": wrong}))
    fields = record.read(path)
    with pytest.raises(BadRecord, match="field"):
        fields.whole("field")
    if not isinstance(wrong, dict):
        with pytest.raises(BadRecord, match="field"):
            fields.fields("field")
    if not isinstance(wrong, str):
        with pytest.raises(BadRecord, match="field"):
            fields.text("field")


@pytest.mark.parametrize("wrong", ["NaN", "Infinity", "-Infinity", "1e400", "true", "null"])
def test_a_number_is_one_that_can_be(path: Path, wrong: str) -> None:
    path.write_text(f'{{"field": {wrong}}}')
    with pytest.raises(BadRecord, match="field"):
        record.read(path).number("field")


def test_one_version_ahead_is_read_and_two_are_left_alone(path: Path) -> None:
    path.write_text(json.dumps({"version": record.VERSION + 1, "text": "a", "unknown": [1]}))
    assert record.read(path).text("text") == "a"
    path.write_text(json.dumps({"version": record.VERSION + 2, "text": "a"}))
    with pytest.raises(NewerRecord):
        record.read(path)


def test_a_folder_in_place_of_a_record_is_kept(path: Path) -> None:
    for act in (lambda: record.write(path, {"a": "b"}), lambda: record.remove(path)):
        path.unlink(missing_ok=True)
        path.mkdir()
        (path / "inner").write_text("somebody's")
        act()
    kept = sorted(path.parent.glob("record.bad-*"))
    assert [(folder / "inner").read_text() for folder in kept] == ["somebody's"] * 2


def test_a_file_in_place_of_a_folder_is_kept(path: Path) -> None:
    path.write_text("somebody's")
    record.make_folder(path)
    assert path.is_dir()
    assert [kept.read_text() for kept in path.parent.glob("record.bad-*")] == ["somebody's"]


def test_nothing_is_made_in_place_of_a_link_to_a_disk_that_is_not_mounted(tmp_path: Path) -> None:
    """The operator has moved the folder there. The service would start without any chat, and go on so."""
    elsewhere, path = tmp_path / "disk" / "sandboxes", tmp_path / "sandboxes"
    path.symlink_to(elsewhere)
    with pytest.raises(FileNotFoundError, match="mount its disk"):
        record.make_root(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["sandboxes"]
    elsewhere.mkdir(parents=True)
    record.make_root(path)
    assert path.readlink() == elsewhere


def test_a_link_to_itself_in_place_of_a_folder_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "sandboxes"
    path.symlink_to(path)
    record.make_root(path)
    assert path.is_dir()
    assert len(list(tmp_path.glob("sandboxes.bad-*"))) == 1


def test_what_is_set_aside_replaces_nothing_that_was_before(path: Path) -> None:
    for number in range(1000):
        path.write_text(str(number))
        record.keep_bad(path)
    assert {int(kept.read_text()) for kept in path.parent.iterdir()} == set(range(1000))
