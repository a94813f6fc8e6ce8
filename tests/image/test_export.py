"""An exported image: owners from 0, names in order, the same bytes each time."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from cubicle.cli.image import image
from cubicle.images import builder, export, oci_layout
from cubicle.images.store import BuiltImage, ImageStore, Manifest, Variant

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def fill(folder: Path) -> Manifest:
    root = folder / "rootfs"
    for name in ("usr/bin", "etc", "home/assistant", "empty"):
        (root / name).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "usr/bin/tool").write_text("tool")
    os.link(root / "usr/bin/tool", root / "usr/bin/twin")
    (root / "etc/environment").write_text("LANG=C.UTF-8\n")
    (root / "home/assistant/ü").write_text("x")
    os.chown(root / "home/assistant", 1000, 1000)
    builder.shift_owners(root)
    return Manifest(Variant.SLIM, "arm64", "2026-01-01T00:00:00+00:00", 1.0, 4_200_000, {"bash": "5"})


@pytest.fixture
def base(tmp_path: Path) -> BuiltImage:
    return ImageStore(tmp_path / "images").make(Variant.SLIM, fill)


def test_the_tar_has_every_file_once_with_its_owner_counted_from_zero(base: BuiltImage) -> None:
    output = io.BytesIO()
    count = export.write_tar(base, output)
    output.seek(0)
    with tarfile.open(fileobj=output) as tar:
        entries = {entry.name: entry for entry in tar}
        assert len(entries) == count == 11
        assert list(entries) == [
            "bin",
            "empty",
            "etc",
            "etc/environment",
            "home",
            "home/assistant",
            "home/assistant/ü",
            "usr",
            "usr/bin",
            "usr/bin/tool",
            "usr/bin/twin",
        ]
        assert entries["bin"].issym()
        assert entries["usr/bin/twin"].islnk()
        assert entries["home/assistant"].uid == 1000
        assert {entry.uid for name, entry in entries.items() if name != "home/assistant"} == {0}


def test_the_oci_layout_names_each_part_by_its_digest(base: BuiltImage) -> None:
    output = io.BytesIO()
    digest = oci_layout.write_layout(base, output, "registry.test/sandbox:1")
    output.seek(0)
    with tarfile.open(fileobj=output) as tar:
        parts = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
    blobs = {name.rpartition("/")[2]: content for name, content in parts.items() if name.startswith("blobs/sha256/")}
    assert all(hashlib.sha256(content).hexdigest() == name for name, content in blobs.items())
    assert json.loads(parts["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (named,) = json.loads(parts["index.json"])["manifests"]
    assert named["digest"] == digest
    assert named["annotations"]["io.containerd.image.name"] == "registry.test/sandbox:1"
    manifest = json.loads(blobs[digest.removeprefix("sha256:")])
    (layer,) = manifest["layers"]
    packed, config = (blobs[one["digest"].removeprefix("sha256:")] for one in (layer, manifest["config"]))
    assert len(packed) == layer["size"]
    told = json.loads(config)
    assert told["architecture"] == "arm64"
    assert told["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(gzip.decompress(packed)).hexdigest()}"]
    assert told["config"]["Env"] == ["LANG=C.UTF-8"]
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert len(tar.getnames()) == 11
    again = io.BytesIO()
    assert oci_layout.write_layout(base, again, "registry.test/sandbox:1") == digest


def test_two_exports_are_the_same_bytes(base: BuiltImage) -> None:
    first, second = io.BytesIO(), io.BytesIO()
    export.write_tar(base, first)
    export.write_tar(base, second)
    assert first.getvalue() == second.getvalue()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("IMAGE_DIR", str(tmp_path / "images"))
    monkeypatch.chdir(tmp_path)
    return CliRunner()


def test_the_list_shows_what_is_built(base: BuiltImage, run: CliRunner) -> None:
    result = run.invoke(image, ["list"], env={"COLUMNS": "120"})
    assert result.exit_code == 0
    assert base.digest[:12] in result.stdout
    assert "slim" in result.stdout
    assert "4 MB" in result.stdout
    assert "current" in result.stdout


def test_a_built_image_is_not_built_again(base: BuiltImage, run: CliRunner) -> None:
    result = run.invoke(image, ["build", "slim"])
    assert result.exit_code == 0
    assert f"is built: {base.digest[:12]}" in result.stderr


def test_without_a_name_the_setting_decides_what_is_built(base: BuiltImage, run: CliRunner) -> None:
    result = run.invoke(image, ["build"], env={"SANDBOX_IMAGE": base.digest[:10]})
    assert result.exit_code == 0
    assert f"is built: {base.digest[:12]}" in result.stderr


def test_an_export_to_a_file_prints_the_command_for_docker(base: BuiltImage, run: CliRunner, tmp_path: Path) -> None:
    result = run.invoke(image, ["export", "slim", "-o", "slim.tar"])
    assert result.exit_code == 0
    assert "docker import --change 'ENV LANG=C.UTF-8'" in result.stderr
    with tarfile.open(tmp_path / "slim.tar") as tar:
        assert tar.getmember("home/assistant").uid == 1000
    assert list(tmp_path.glob(".*.part")) == []


def test_an_export_to_standard_output_is_the_tar_and_nothing_else(base: BuiltImage, run: CliRunner) -> None:
    result = run.invoke(image, ["export", base.digest[:8]])
    with tarfile.open(fileobj=io.BytesIO(result.stdout_bytes)) as tar:
        assert "usr/bin/tool" in tar.getnames()


def test_an_export_of_what_is_not_built_says_how_to_build_it(run: CliRunner) -> None:
    result = run.invoke(image, ["export", "full"])
    assert result.exit_code == 1
    assert "cubicle image build full" in result.stderr
