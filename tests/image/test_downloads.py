"""Every download that is no ordinary package of the release is taken away once: what replaces it, or what is said.

docs/image.md and docs/dependencies.md list them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cubicle.images.store import Recipe
from tests.conftest import absent
from tests.image.archive import Archive
from tests.setup.bare_root import copy_checkout
from tests.setup.programs import pip_wheel

RECIPE = Recipe.here()
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    """The release has a library; testing and unstable have a ttyd that asks for it."""
    if not shutil.which("gpg"):
        absent("needs gpg: scripts/packages test")
    made = Archive(tmp_path / "archive", RECIPE.architecture)
    made.folder.mkdir()
    try:
        made.make_key()
        made.publish("trixie", made.package("libtiny", "1.0"))
        yield made
    finally:
        made.close()


@pytest.fixture
def root(tmp_path: Path, archive: Archive) -> Path:
    """As much of a new root as fetching looks at."""
    root = tmp_path / "root"
    (root / "etc/apt").mkdir(parents=True)
    (root / "var/lib/dpkg").mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    line = f"deb [signed-by={archive.keyring}] {archive.address} trixie main\n"
    (root / "etc/apt/sources.list").write_text(line)
    return root


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECIPE.folder, tmp_path / "image"))


def pin(recipe: Path, path: Path, digest: str = "") -> None:
    digest = digest or hashlib.sha256(path.read_bytes()).hexdigest()
    (recipe / "ttyd.pins").write_text(f"{RECIPE.architecture} pool/{path.name} {digest}\n")


def fetch(recipe: Path, root: Path, archive: Archive, *wheels: str, **more: str) -> tuple[int, list[str], str]:
    """The exit code of fetch.sh, the files that it brought, and what it said."""
    out = root.parent / "out"
    argv = ["sh", str(recipe / "fetch.sh"), str(recipe), str(root), str(out), *wheels]
    environment = plain_environment() | {"KEYRING": str(archive.keyring)} | more
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=200, check=False)
    return done.returncode, sorted(path.name for path in out.iterdir()), done.stdout + done.stderr


def plain_environment() -> dict[str, str]:
    """This environment without the settings of package managers, which could lead past what is taken away."""
    ours = {name: value for name, value in os.environ.items() if not name.lower().startswith(("pip_", "uv_", "npm_"))}
    return ours | {"PIP_CONFIG_FILE": "/dev/null", "PIP_RETRIES": "0", "UV_HTTP_RETRIES": "0"}


def test_the_pinned_ttyd_is_taken_while_the_archive_has_it(archive: Archive, root: Path, recipe: Path) -> None:
    pinned = archive.package("ttyd", "1.7.7-8")
    archive.publish("testing", archive.package("ttyd", "1.7.7-9"))
    pin(recipe, pinned)
    code, files, _ = fetch(recipe, root, archive)
    assert (code, files) == (0, ["ttyd.deb"])
    assert (root.parent / "out/ttyd.deb").read_bytes() == pinned.read_bytes()


def test_when_it_is_gone_the_signed_index_leads_to_the_next_one_with_what_it_needs(
    archive: Archive, root: Path, recipe: Path
) -> None:
    """What the release has is taken from there, although testing has a newer one."""
    pinned = archive.package("ttyd", "1.7.7-8")
    pin(recipe, pinned)
    pinned.unlink()
    newer = [archive.package("ttyd", "1.7.7-9", "libtiny (>= 1.0)"), archive.package("libtiny", "2.0")]
    archive.publish("testing", *newer)
    archive.publish("unstable", *newer)
    code, files, said = fetch(recipe, root, archive)
    architecture = RECIPE.architecture
    assert (code, files) == (0, [f"libtiny_1.0_{architecture}.deb", f"ttyd_1.7.7-9_{architecture}.deb"]), said


def test_what_the_release_has_too_old_comes_along(archive: Archive, root: Path, recipe: Path) -> None:
    newer = [archive.package("ttyd", "1.8-1", "libtiny (>= 2.0)"), archive.package("libtiny", "2.0")]
    archive.publish("testing", *newer)
    archive.publish("unstable", *newer)
    code, files, said = fetch(recipe, root, archive)
    architecture = RECIPE.architecture
    assert (code, files) == (0, [f"libtiny_2.0_{architecture}.deb", f"ttyd_1.8-1_{architecture}.deb"]), said


def test_another_file_by_the_pinned_name_is_not_taken(archive: Archive, root: Path, recipe: Path) -> None:
    pinned = archive.package("ttyd", "1.7.7-8")
    pin(recipe, pinned, "0" * 64)
    archive.publish("unstable", archive.package("ttyd", "1.7.7-9"))
    code, files, said = fetch(recipe, root, archive)
    assert (code, files) == (0, [f"ttyd_1.7.7-9_{RECIPE.architecture}.deb"]), said


@pytest.mark.parametrize("how", ["no index has it", "a stranger signed the index", "the archive is gone"])
def test_without_any_ttyd_the_image_is_built_without_a_terminal_and_the_log_says_so(
    archive: Archive, root: Path, recipe: Path, how: str
) -> None:
    if how == "a stranger signed the index":
        trusted = archive.keyring.read_bytes()
        archive._gpg("--quick-generate-key", "stranger <stranger@test>", "ed25519", "sign", "never")
        for suite in ("testing", "unstable"):
            archive.publish(suite, archive.package("ttyd", f"1.7.7-9~{suite}"))
            release = archive.folder / f"dists/{suite}"
            archive._gpg("-u", "stranger@test", "--clearsign", "--output", f"{release}/InRelease", f"{release}/Release")
        assert archive.keyring.read_bytes() == trusted
    if how == "the archive is gone":
        shutil.rmtree(archive.folder / "dists")
    code, files, said = fetch(recipe, root, archive)
    assert (code, files) == (0, []), said
    assert "this image will have no terminal server" in said


def test_without_the_pinned_wheels_the_build_ends_and_names_them(archive: Archive, root: Path, recipe: Path) -> None:
    """Node, npm and Playwright: an image without them would not be the one that was asked for."""
    wheels = root / "usr/share/python-wheels"
    wheels.mkdir(parents=True)
    shutil.copy(pip_wheel(), wheels)
    pin(recipe, archive.package("ttyd", "1.7.7-8"))
    code, files, said = fetch(recipe, root, archive, "standard.txt", PIP_INDEX_URL=f"{NOWHERE}/simple")
    assert (code, files) == (1, ["ttyd.deb"])
    assert "The Python packages pinned in wheels/standard.txt could not be downloaded" in said


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    copy_checkout(tmp_path / "checkout")
    return tmp_path / "checkout"


def run(checkout: Path, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    caches = {"UV_CACHE_DIR": f"{checkout}.uv", "NPM_CONFIG_CACHE": f"{checkout}.npm", "NPM_CONFIG_FETCH_RETRIES": "0"}
    environment = plain_environment() | caches | {"IMAGE_DIR": f"{checkout}.images"} | environment
    return subprocess.run(argv, cwd=checkout, env=environment, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.bare
@pytest.mark.real
def test_without_uv_the_set_up_ends_and_says_whose_index_was_asked(checkout: Path) -> None:
    done = run(checkout, "scripts/environment", "serve", PIP_INDEX_URL=f"{NOWHERE}/simple")
    assert done.returncode == 1
    assert "uv could not be downloaded: see above. The index is the one that pip of this machine uses" in done.stderr


@pytest.mark.bare
@pytest.mark.real
def test_without_the_python_packages_the_set_up_ends_and_says_whose_index_was_asked(checkout: Path) -> None:
    ours = {name: value for name, value in os.environ.items() if name.lower().startswith("pip_")}
    ours["PIP_CONFIG_FILE"] = os.environ.get("PIP_CONFIG_FILE", "")
    done = run(checkout, "scripts/environment", "serve", UV_DEFAULT_INDEX=f"{NOWHERE}/simple", **ours)
    assert done.returncode == 1
    assert "The Python packages of requirements.txt could not be downloaded" in done.stderr, done.stderr
    assert not list((checkout / ".venv").glob(".serve-*")), "the next run tries again"


@pytest.mark.bare
@pytest.mark.real
def test_without_a_coding_agent_the_set_up_goes_on_and_says_so(checkout: Path) -> None:
    shutil.copytree(Path(__file__).parents[2] / ".state/uv", checkout / ".state/uv", symlinks=True)
    done = run(checkout, "scripts/agents", "claude", "codex", NPM_CONFIG_REGISTRY=NOWHERE)
    assert done.returncode == 1
    for name in ("claude", "codex"):
        assert f"note: the coding agent {name} could not be downloaded" in done.stderr
    assert [path.name for path in Path(f"{checkout}.images/agents").iterdir()] == ["bin"]


@pytest.mark.bare
@pytest.mark.real
def test_without_the_clients_of_the_tests_the_set_up_of_tests_ends(checkout: Path) -> None:
    done = run(checkout, "scripts/clients", NPM_CONFIG_REGISTRY=NOWHERE)
    assert done.returncode == 1
    assert "The MCP clients that the tests drive could not be downloaded" in done.stderr
    assert not list((checkout / ".state").glob("clients-*"))
