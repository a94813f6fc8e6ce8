"""`cubicle image`, over a folder of images of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cubicle.cli.image import image
from cubicle.drivers.oci.images_in_use import sandboxes_by_image
from cubicle.drivers.oci.records import Meta, OciRecords
from cubicle.images.store import ImageStore, Manifest, Recipe, Variant
from cubicle.sandbox.service_lock import only_service_of

OLD, STOOD_ON = "a" * 64, "b" * 64
Call = Callable[..., Result]


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    """Today's slim image, built an hour ago, and two of an older recipe, three days old."""
    store = ImageStore(tmp_path / "images")
    for digest, hours in ((store.recipe.digest(Variant.SLIM), 1), (OLD, 72), (STOOD_ON, 73)):
        built_at = (datetime.now(UTC) - timedelta(hours=hours, minutes=1)).isoformat()
        folder = store.bases / digest
        (folder / "rootfs").mkdir(parents=True)
        known = Manifest(
            "slim", Recipe.here().architecture, built_at, 1.0, 376_000_000, {"bash": "5.2", "ttyd": "1.7.7"}
        )
        (folder / "manifest.json").write_text(json.dumps(asdict(known)))
    records = OciRecords(tmp_path / "data")
    records.make_folders()
    for name in ("one", "two"):
        records.home(name).path.mkdir()
        records.home(name).save_meta(Meta(STOOD_ON, 1024))
    return store


@pytest.fixture
def call(store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.chdir(tmp_path)
    environment = {"IMAGE_DIR": str(store.folder), "DATA_DIR": str(tmp_path / "data"), "COLUMNS": "80"}
    return lambda *arguments: CliRunner().invoke(image, arguments, env=environment)


@pytest.mark.parametrize("arguments", [(), ("list",)])
def test_the_list_tells_size_and_age_and_who_uses_an_image(call: Call, arguments: tuple[str, ...]) -> None:
    listed = call(*arguments)
    assert listed.exit_code == 0
    heading, *rows = [line.split() for line in listed.output.splitlines()]
    assert heading == ["IMAGE", "VARIANT", "BUILT", "(UTC)", "AGE", "SIZE", "STATE", "USED", "BY"]
    today = Recipe.here().digest(Variant.SLIM)[:12]
    assert [row[:2] + row[4:] for row in rows] == [
        [today, "slim", "1h", "376", "MB", "current"],
        ["a" * 12, "slim", "3d", "376", "MB", "old"],
        ["b" * 12, "slim", "3d", "376", "MB", "old", "2", "sandboxes"],
    ]


def test_an_image_that_nothing_stands_on_is_removed(call: Call, store: ImageStore) -> None:
    removed = call("rm", "aaaa", "slim")
    today = store.recipe.digest(Variant.SLIM)[:12]
    assert removed.exit_code == 0
    assert removed.output == f"Removed {'a' * 12} (slim, 376 MB).\nRemoved {today} (slim, 376 MB).\n"
    assert [base.digest for base in store.built()] == [STOOD_ON]


def test_an_image_that_sandboxes_stand_on_is_refused_in_a_sentence(
    call: Call, store: ImageStore, tmp_path: Path
) -> None:
    refused = call("rm", "bbbb")
    assert refused.exit_code == 1
    assert refused.stderr == (
        f"Error: 2 sandboxes stand on the image {'b' * 12}, running, stopped or in the trash, in DATA_DIR="
        f"{tmp_path / 'data'}: a disk holds only what differs from it. Remove them first: `cubicle ps` lists them, "
        "`cubicle rm --now` removes.\n"
    )
    assert len(store.built()) == 3


def test_the_image_of_a_service_that_runs_is_listed_so_and_refused(
    call: Call, store: ImageStore, tmp_path: Path
) -> None:
    with only_service_of(tmp_path / "other", "127.0.0.1:1"):
        store.settle(tmp_path / "other", {OLD}, sandboxes_by_image)
        assert next(line for line in call().output.splitlines() if line.startswith("aaaa")).endswith("a service")
        assert "Stop it first" in call("rm", "aaaa").stderr
    assert call("rm", "aaaa").exit_code == 0


def test_a_name_that_is_no_image_removes_none(call: Call, store: ImageStore) -> None:
    refused = call("rm", "aaaa", "nothing")
    assert refused.exit_code == 1
    assert "There is no sandbox image 'nothing'" in refused.stderr
    assert len(store.built()) == 3


def test_a_machine_without_images_has_an_empty_list(call: Call, store: ImageStore) -> None:
    shutil.rmtree(store.folder)
    listed = call()
    assert (listed.exit_code, len(listed.output.splitlines())) == (0, 1)
