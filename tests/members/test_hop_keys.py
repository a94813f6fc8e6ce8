"""The secret of the members in a file, as an operator or a cluster changes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubicle.members import hop_keys
from cubicle.members.hop_keys import HopKeys
from cubicle.record import BadRecord

OLD, NEW = "0123456789abcdef-old", "0123456789abcdef-new"


def test_a_secret_in_a_volume_of_a_cluster_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the file is a link into a folder that is a link itself, and which is replaced as a whole."""
    for name, content in (("..first", f"{OLD}\n"), ("..second", f"{NEW}\n{OLD}\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "member-secret").write_text(content)
    (tmp_path / "..data").symlink_to("..first")
    (tmp_path / "member-secret").symlink_to("..data/member-secret")
    keys = HopKeys(file=tmp_path / "member-secret")
    assert list(keys.believed) == [OLD.encode()]
    monkeypatch.setattr(hop_keys, "_LOOK_SECONDS", -1.0)
    (tmp_path / "..next").symlink_to("..second")
    (tmp_path / "..next").rename(tmp_path / "..data")
    assert list(keys.believed) == [NEW.encode(), OLD.encode()]
    assert keys.signing == NEW.encode()


def test_what_is_no_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("short\n")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(BadRecord):
        HopKeys(file=tmp_path / "short")
    with pytest.raises((OSError, BadRecord)):
        HopKeys(file=tmp_path / "loop")
