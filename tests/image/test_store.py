"""The folder of built images: names, turns, and what is removed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cubicle.drivers.oci.images_in_use import sandboxes_by_image
from cubicle.drivers.oci.records import Meta, OciHome, OciRecords
from cubicle.images.store import (
    ImageError,
    ImageInUse,
    ImageStore,
    Manifest,
    NotBuilt,
    Recipe,
    UnknownImage,
    Variant,
)
from cubicle.images.users import Count, ImageUser, users
from cubicle.sandbox.service_lock import only_service_of


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """A copy of the true recipe, free to be changed."""
    shutil.copytree(Recipe.here().folder, tmp_path / "image")
    return Recipe(tmp_path / "image", "arm64")


@pytest.fixture
def store(tmp_path: Path, recipe: Recipe) -> ImageStore:
    return ImageStore(tmp_path / "images", recipe)


def manifest(variant: Variant, built_at: str = "2026-01-01T00:00:00+00:00") -> Manifest:
    return Manifest(variant, "arm64", built_at, seconds=1.0, size=5, packages={"bash": "5.2", "ttyd": "1.7.7"})


def fill(folder: Path) -> Manifest:
    (folder / "rootfs/etc").mkdir(parents=True)
    (folder / "rootfs/etc/environment").write_text("# the base\nLANG=C.UTF-8\nOPTIONS=a=b\n")
    return manifest(Variant.SLIM)


def put(store: ImageStore, digest: str, variant: Variant = Variant.SLIM) -> None:
    folder = store.bases / digest
    (folder / "rootfs").mkdir(parents=True)
    known = manifest(variant)
    fields = {name: getattr(known, name) for name in Manifest.__slots__}
    (folder / "manifest.json").write_text(json.dumps(fields))


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("packages/slim.txt", {"slim", "standard", "full"}),
        ("packages/full.txt", {"full"}),
        ("wheels/standard.txt", {"standard", "full"}),
        ("ttyd.pins", {"slim", "standard", "full"}),
        ("setup.sh", {"slim", "standard", "full"}),
        ("root/etc/pip.conf", {"slim", "standard", "full"}),
        ("revision", {"slim", "standard", "full"}),
    ],
)
def test_an_input_changes_the_hash_of_the_variants_that_use_it(recipe: Recipe, file: str, changed: set[str]) -> None:
    before = {variant: recipe.digest(variant) for variant in Variant}
    with (recipe.folder / file).open("a") as input_:
        input_.write("# changed\n")
    assert {variant for variant in Variant if recipe.digest(variant) != before[variant]} == changed


def test_a_new_file_changes_the_hash(recipe: Recipe) -> None:
    before = recipe.digest(Variant.SLIM)
    (recipe.folder / "root/etc/motd").write_text("hello\n")
    assert recipe.digest(Variant.SLIM) != before


def test_variants_and_architectures_have_hashes_of_their_own(recipe: Recipe) -> None:
    other = replace(recipe, architecture="amd64")
    assert len({r.digest(variant) for r in (recipe, other) for variant in Variant}) == 6


@pytest.mark.parametrize("variant", Variant)
def test_the_script_for_docker_gives_the_same_lists(recipe: Recipe, variant: Variant) -> None:
    def lines(kind: str) -> list[str]:
        argv = ["sh", str(recipe.folder / "lists.sh"), kind, variant]
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.split()

    assert lines("packages") == recipe.packages(variant)
    assert lines("wheels") == recipe.wheels(variant)


def test_every_wheel_is_pinned_by_hash(recipe: Recipe) -> None:
    for name in recipe.wheels(Variant.FULL):
        text = (recipe.folder / "wheels" / name).read_text().replace("\\\n", " ")
        for line in text.splitlines():
            assert line.startswith("#") or ("==" in line and "--hash=sha256:" in line), line


def test_git_sees_every_file_of_the_recipe() -> None:
    """An ignored file would be in the images of one checkout and missing from all others."""
    argv = ["git", "-c", "safe.directory=*", "ls-files", "--others", "--ignored", "--exclude-standard", "."]
    done = subprocess.run(argv, cwd=Recipe.here().folder, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        pytest.skip("not a checkout")
    assert done.stdout == ""


def test_a_variant_that_is_not_built_says_how_to_build_it(store: ImageStore) -> None:
    with pytest.raises(NotBuilt, match="cubicle image build slim"):
        store.resolve("slim")


def test_a_made_image_is_found_by_variant_by_hash_and_by_its_beginning(store: ImageStore) -> None:
    base = store.make(Variant.SLIM, fill)
    assert base.digest == store.recipe.digest(Variant.SLIM)
    assert store.resolve("slim") == store.resolve(base.digest) == store.resolve(base.digest[:8]) == base
    assert store.built() == [base]
    assert base.rootfs.is_dir()
    assert base.environment == {"LANG": "C.UTF-8", "OPTIONS": "a=b"}


def test_a_changed_recipe_makes_the_variant_another_image(store: ImageStore) -> None:
    old = store.make(Variant.SLIM, fill)
    (store.recipe.folder / "revision").write_text("next\n")
    with pytest.raises(NotBuilt):
        store.resolve("slim")
    assert store.resolve(old.digest) == old


@pytest.mark.parametrize("name", ["", "abc", "nothing", "../bases", "full/../x", "zzzz"])
def test_a_name_that_is_nothing_is_an_error(store: ImageStore, name: str) -> None:
    put(store, "abcd" + "0" * 60)
    with pytest.raises(UnknownImage):
        store.resolve(name)


def test_a_beginning_of_two_hashes_is_an_error(store: ImageStore) -> None:
    put(store, "abcd" + "0" * 60)
    put(store, "abcd" + "1" * 60)
    with pytest.raises(UnknownImage, match="2 images"):
        store.resolve("abcd")
    assert store.resolve("abcd1").digest.endswith("1")


def test_a_broken_manifest_says_what_to_do(store: ImageStore) -> None:
    put(store, "abcd" + "0" * 60)
    (store.bases / ("abcd" + "0" * 60) / "manifest.json").write_text("{")
    with pytest.raises(ImageError, match="build it again"):
        store.resolve("abcd0")


def test_a_failed_build_leaves_nothing(store: ImageStore) -> None:
    def fail(folder: Path) -> Manifest:
        fill(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        store.make(Variant.SLIM, fail)
    assert store.built() == []
    assert list((store.folder / "building").iterdir()) == []


def test_a_recipe_that_changes_during_the_build_gives_no_image(store: ImageStore) -> None:
    def change(folder: Path) -> Manifest:
        (store.recipe.folder / "revision").write_text("next\n")
        return fill(folder)

    with pytest.raises(ImageError, match="changed while"):
        store.make(Variant.SLIM, change)
    assert store.built() == []


def test_what_a_crashed_build_left_is_removed_by_the_next(store: ImageStore) -> None:
    digest = store.recipe.digest(Variant.SLIM)
    (store.folder / "building" / f"{digest}.dead/rootfs").mkdir(parents=True)
    store.make(Variant.SLIM, fill)
    assert list((store.folder / "building").iterdir()) == []


def test_an_image_is_out_of_sight_until_it_is_whole(store: ImageStore) -> None:
    def look(folder: Path) -> Manifest:
        assert store.built() == []
        return fill(folder)

    store.make(Variant.SLIM, look)
    assert len(store.built()) == 1


def test_two_builds_at_once_make_one(store: ImageStore) -> None:
    entered, waited, release = threading.Event(), threading.Event(), threading.Event()
    fills: list[Path] = []

    def slow(folder: Path) -> Manifest:
        fills.append(folder)
        entered.set()
        assert release.wait(60)
        return fill(folder)

    def second() -> None:
        waited.set()
        release.set()

    first = threading.Thread(target=store.make, args=(Variant.SLIM, slow))
    first.start()
    assert entered.wait(60)
    base = store.make(Variant.SLIM, slow, on_wait=second)
    first.join(60)
    assert waited.is_set()
    assert len(fills) == 1
    assert store.built() == [base]


def test_an_old_image_is_collected_when_no_chat_uses_it(store: ImageStore) -> None:
    current = store.make(Variant.SLIM, fill)
    used, unused = "a" * 64, "b" * 64
    put(store, used)
    put(store, unused)
    assert [base.digest for base in store.collect({used})] == [unused]
    assert {base.digest for base in store.built()} == {used, current.digest}
    assert list((store.folder / "building").iterdir()) == []


def test_services_that_share_the_folder_keep_each_others_images(store: ImageStore, tmp_path: Path) -> None:
    mine, theirs, nobodys, young = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
    for digest in (mine, theirs, nobodys, young):
        put(store, digest)
    for digest in (mine, theirs, nobodys):
        os.utime(store.bases / digest, (1, 1))
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    assert store.settle(other, {mine, theirs, nobodys}, sandboxes_by_image) == []
    assert store.settle(one, {mine}, sandboxes_by_image) == []
    assert [base.digest for base in store.settle(other, {theirs}, sandboxes_by_image)] == [nobodys]
    other.rmdir()
    assert [base.digest for base in store.settle(one, {mine}, sandboxes_by_image)] == [theirs]
    assert {base.digest for base in store.built()} == {mine, young}


def sandbox(data_dir: Path, name: str, image: str) -> OciHome:
    """A sandbox as the driver writes it down."""
    records = OciRecords(data_dir)
    records.make_folders()
    home = records.home(name)
    home.path.mkdir()
    home.save_meta(Meta(image, 1024))
    return home


def test_an_image_that_a_sandbox_stands_on_is_not_removed_before_it(store: ImageStore, tmp_path: Path) -> None:
    """Not that of this data folder, and not that of another, whose service noted nothing of it."""
    put(store, "a" * 64)
    put(store, "b" * 64)
    mine, other = tmp_path / "mine", tmp_path / "other"
    own, foreign = sandbox(mine, "one", "a" * 64), sandbox(other, "two", "b" * 64)
    store.settle(other, set(), sandboxes_by_image)
    with pytest.raises(ImageInUse, match=f"1 sandbox stands on the image aaaaaaaaaaaa.* DATA_DIR={mine}"):
        store.remove(store.resolve("aaaa"), mine, sandboxes_by_image)
    with pytest.raises(ImageInUse, match=f"DATA_DIR={other}"):
        store.remove(store.resolve("bbbb"), mine, sandboxes_by_image)
    assert len(store.built()) == 2
    OciRecords(mine).remove(own)
    OciRecords(other).remove(foreign)
    for name in ("aaaa", "bbbb"):
        store.remove(store.resolve(name), mine, sandboxes_by_image)
    assert store.built() == []
    assert list((store.folder / "building").iterdir()) == []


def test_the_image_of_a_service_that_runs_is_not_removed(store: ImageStore, tmp_path: Path) -> None:
    put(store, "a" * 64)
    base = store.resolve("aaaa")
    with only_service_of(tmp_path / "data", "127.0.0.1:1"):
        store.settle(tmp_path / "data", {base.digest}, sandboxes_by_image)
        with pytest.raises(ImageInUse, match="Stop it first"):
            store.remove(base, tmp_path / "mine", sandboxes_by_image)
    store.remove(base, tmp_path / "mine", sandboxes_by_image)
    assert store.built() == []


def test_an_image_that_a_service_starts_with_is_not_removed_before_its_first_sandbox(
    store: ImageStore, tmp_path: Path
) -> None:
    put(store, "a" * 64)
    with only_service_of(tmp_path / "data", "127.0.0.1:1"):
        store.claim("aaaa", tmp_path / "data")
        with pytest.raises(ImageInUse, match="Stop it first"):
            store.remove(store.resolve("aaaa"), tmp_path / "mine", sandboxes_by_image)


def test_a_service_that_starts_while_its_image_is_removed_is_told(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "a" * 64)
    told: list[str] = []

    def start() -> None:
        try:
            store.claim("aaaa", tmp_path / "data")
        except UnknownImage as error:
            told.append(str(error))

    starting = threading.Thread(target=start, daemon=True)

    def look(folder: Path, count: Count, *data_dirs: Path) -> list[ImageUser]:
        found = users(folder, count, *data_dirs)
        starting.start()
        starting.join(1)  # without a lock it is done by now
        return found

    monkeypatch.setattr("cubicle.images.store.users", look)
    store.remove(store.resolve("aaaa"), tmp_path / "mine", sandboxes_by_image)
    starting.join(60)
    assert len(told) == 1
    assert "There is no sandbox image" in told[0]


def test_an_image_is_kept_for_a_sandbox_that_is_younger_than_its_services_note(
    store: ImageStore, tmp_path: Path
) -> None:
    put(store, "a" * 64)
    os.utime(store.bases / ("a" * 64), (1, 1))
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    assert [base.digest for base in store.settle(other, {"a" * 64}, sandboxes_by_image)] == []
    store.settle(one, set(), sandboxes_by_image)
    sandbox(one, "late", "a" * 64)
    assert store.settle(other, set(), sandboxes_by_image) == []
    assert {user.data_dir: user.images for user in users(store.folder, sandboxes_by_image)} == {
        one: {"a" * 64},
        other: set(),
    }


def test_what_is_used_by_those_that_cannot_be_looked_into_stays(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "a" * 64)
    os.utime(store.bases / ("a" * 64), (1, 1))

    def refuse(records: OciRecords) -> list[OciHome]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(OciRecords, "homes", refuse)
    (tmp_path / "one").mkdir()
    assert store.settle(tmp_path / "one", set(), sandboxes_by_image) == []
    with pytest.raises(ImageInUse, match="cannot be read"):
        store.remove(store.resolve("aaaa"), tmp_path / "one", sandboxes_by_image)
    assert len(store.built()) == 1


def test_the_note_of_a_data_dir_whose_disk_fails_stays(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come back with its sandboxes, and is no reason for another service not to start."""
    put(store, "a" * 64)
    os.utime(store.bases / ("a" * 64), (1, 1))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    store.settle(tmp_path / "one", {"a" * 64}, sandboxes_by_image)
    is_dir = Path.is_dir

    def fails(path: Path) -> bool:
        if path == tmp_path / "one":
            raise OSError(5, "Input/output error")
        return is_dir(path)

    with monkeypatch.context() as failing:
        failing.setattr(Path, "is_dir", fails)
        failing.setattr(OciRecords, "homes", lambda records: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        assert store.settle(tmp_path / "two", set(), sandboxes_by_image) == []
    assert {user.data_dir for user in users(store.folder, sandboxes_by_image)} == {tmp_path / "one", tmp_path / "two"}
