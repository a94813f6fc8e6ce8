"""The package as people install it: built from a plain copy of the sources, in an environment of its own, then used."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from cubicle.images import builder
from cubicle.images.store import ImageStore, Recipe, Variant
from cubicle.settings import load
from tests.conftest import absent
from tests.drivers.makers import some_base
from tests.setup.bare_root import ROOT, BareRoot, copy_checkout
from tests.setup.test_bare_machine import call_bash, wait_until_ready
from tests.support.process import free_port

pytestmark = [pytest.mark.bare, pytest.mark.real]
UV = ROOT / ".state/uv/bin/uv"
MINUTES = 600


@dataclass(frozen=True)
class Installed:
    """The package in a virtual environment outside of the repository."""

    folder: Path
    wheel: Path

    @property
    def program(self) -> Path:
        return self.folder / "environment/bin/cubicle"

    def run(self, *arguments: str, **changes: str) -> str:
        done = subprocess.run(
            [self.program, *arguments],
            cwd=self.folder,
            env=self.environment(**changes),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=MINUTES,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def environment(self, **changes: str) -> dict[str, str]:
        """As sudo gives it: nothing of the shell that runs the tests."""
        told = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self.folder), "LANG": "C.UTF-8"}
        kept = ("CUBICLE_TEST_RUN", "IMAGE_DIR")
        return told | {name: os.environ[name] for name in kept if name in os.environ} | changes

    @contextlib.contextmanager
    def serving(self, **changes: str) -> Iterator[int]:
        """`cubicle serve`, asked nothing, up to the block's end; the port that it answers at."""
        port = free_port()
        told = {"PORT": str(port), "DATA_DIR": str(self.folder / "data"), "POOL_SIZE": "1"} | changes
        with (self.folder / "serve.log").open("w+") as log:
            process = subprocess.Popen(
                [self.program, "serve"],
                cwd=self.folder,
                env=self.environment(**told),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            try:
                self._wait(process, port)
                yield port
            finally:
                process.terminate()
                process.wait(MINUTES)
                self.run("rm", "--all", "--now", **told)

    def _wait(self, process: subprocess.Popen[bytes], port: int) -> None:
        deadline = time.monotonic() + 150
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (
                    httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False, verify=False, timeout=10).status_code
                    == 200
                ):
                    return
            said = (self.folder / "serve.log").read_text()
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.05)


def uv(*arguments: object) -> None:
    done = subprocess.run([UV, *map(str, arguments)], capture_output=True, text=True, timeout=MINUTES, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def build_wheel(folder: Path) -> Path:
    """A wheel of the sources without their history: what an archive of a release holds."""
    if not UV.exists():
        absent("needs uv: scripts/environment dev")
    copy_checkout(folder / "sources")
    setup = ROOT / "requirements-setup.txt"
    uv("build", "--wheel", "--quiet", "--build-constraints", setup, "--out-dir", folder / "dist", folder / "sources")
    (wheel,) = (folder / "dist").glob("cubicle-*-py3-none-any.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    wheel = build_wheel(folder)
    environment = folder / "environment"
    uv("venv", "--quiet", "--python", sys.executable, environment)
    uv("pip", "install", "--quiet", "--python", environment / "bin/python", "-c", ROOT / "requirements.txt", wheel)
    return Installed(folder, wheel)


def test_the_wheel_holds_the_pages_the_image_recipe_and_the_skills(installed: Installed) -> None:
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    for folder, place in (("image", "image_files"), ("skills", "skills"), ("src/cubicle", "")):
        files = [path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*") if path.is_file()]
        shipped = [f"cubicle/{place}/{path}".replace("//", "/") for path in files if "__pycache__" not in path.parts]
        assert len(shipped) > 10
        assert sorted(set(shipped) - names) == []


def test_it_finds_the_images_that_a_checkout_built(installed: Installed) -> None:
    """Images are named by their recipe: the installed one and the one of the repository are the same."""
    python = installed.folder / "environment/bin/python"
    ask = "from cubicle.images.store import Recipe, Variant; print(*map(Recipe.here().digest, Variant))"
    told = subprocess.run(
        [python, "-c", ask],
        cwd=installed.folder,
        env=installed.environment(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert told.stdout.decode().split() == [Recipe.here().digest(variant) for variant in Variant]


def test_the_pages_are_there_and_a_tool_call_is_answered(installed: Installed) -> None:
    with installed.serving(DRIVER="memory") as port:
        assert "first words" in call_bash(port, "echo first words")
        page = httpx.get(f"http://127.0.0.1:{port}/preview/first/", trust_env=False, verify=False, timeout=60)
        assert page.status_code == 200, page.text
        assert "<script" in page.text


@pytest.mark.oci
def test_with_an_image_that_is_built_it_serves_true_sandboxes(installed: Installed) -> None:
    base = some_base(ImageStore(load().image_dir))
    with installed.serving(SANDBOX_IMAGE=base.digest) as port:
        assert "assistant" in call_bash(port, "id -un")


# No git and no make: Python with venv, and the wheel. The set-up is not asked for, for nobody is there to ask.
FROM_WHEEL = (
    "python3 -m venv /srv/env && /srv/env/bin/pip install --quiet /srv/*.whl && exec /srv/env/bin/cubicle serve --yes"
)


@pytest.mark.oci
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_on_a_bare_machine_it_installs_what_is_missing_and_builds_its_image() -> None:
    folder = Path(tempfile.mkdtemp(prefix="bare-", dir=os.environ["CUBICLE_TEST_RUN"]))
    packages = "ca-certificates,python3,python3-venv"
    root = BareRoot(folder / "root", builder.RELEASE, builder.sources(builder.RELEASE), packages=packages)
    root.start, root.program = FROM_WHEEL, "/srv/env/bin/cubicle"
    try:
        root.make()
        shutil.copy(build_wheel(folder / "wheel"), root.folder / "srv")
        port = free_port()
        with root.serving(port) as process:
            wait_until_ready(root, port, process)
            assert "hello from a sandbox" in call_bash(port, "echo hello from a sandbox; id -un")
        assert root.left() == []
    finally:
        shutil.rmtree(folder)
