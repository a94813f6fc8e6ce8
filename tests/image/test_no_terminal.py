"""An image for which no ttyd was to be had: it is built without a terminal server, and everybody says so."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from cubicle.chat.terminal import Terminals, TerminalUnavailable
from cubicle.cli.image import image
from cubicle.drivers.common.checks import Verdict
from cubicle.drivers.oci import checks
from cubicle.drivers.oci.checks import HostSubject
from cubicle.drivers.oci.driver import RUN_DIR, OciDriver
from cubicle.images import builder
from cubicle.images.store import SUBUID_START, ImageStore, Recipe, Variant
from cubicle.sandbox.warm_pool import connect
from tests.support.emptying import leave

pytestmark = pytest.mark.anyio
SAYS_SO = "no terminal server"


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    """A slim image as far as the commands look at one, with no ttyd among its packages."""
    store = ImageStore(tmp_path / "images")
    folder = store.bases / store.recipe.digest(Variant.SLIM)
    (folder / "rootfs").mkdir(parents=True)
    known = {"variant": "slim", "architecture": store.recipe.architecture, "built_at": "2026-01-01T00:00:00+00:00"}
    (folder / "manifest.json").write_text(json.dumps(known | {"seconds": 1.0, "size": 5, "packages": {"bash": "5.2"}}))
    return store


def test_the_build_the_list_and_doctor_say_it(store: ImageStore, tmp_path: Path) -> None:
    environment = {"IMAGE_DIR": str(store.folder), "DATA_DIR": str(tmp_path / "data"), "COLUMNS": "200"}
    built = CliRunner().invoke(image, ["build", "slim"], env=environment)
    assert SAYS_SO in built.stderr
    assert "cubicle image rm" in built.stderr
    assert "current, no terminal" in CliRunner().invoke(image, ["list"], env=environment).output
    check = checks.image(HostSubject(tmp_path, store, "slim", "", SUBUID_START, RUN_DIR, 1024**2))
    assert (check.verdict, "without the terminal server" in check.found) == (Verdict.WEAK, True)


@pytest.mark.oci
@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_its_sandboxes_work_and_a_terminal_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built for it: the pinned file is unknown to the archive, and the index is signed by nobody who is trusted."""
    recipe = Path(shutil.copytree(Recipe.here().folder, tmp_path / "image"))
    (recipe / "ttyd.pins").write_text("")
    (tmp_path / "nobody.gpg").touch()
    monkeypatch.setenv("KEYRING", str(tmp_path / "nobody.gpg"))
    tmp_path.parent.chmod(0o711)
    store = ImageStore(tmp_path / "images", Recipe(recipe, Recipe.here().architecture))
    base = await asyncio.to_thread(builder.build, store, Variant.SLIM)
    assert not base.has_terminal
    driver = OciDriver(tmp_path / "data", store, base.digest, SUBUID_START)
    await driver.open()
    try:
        await driver.start("one", None)
        machine = await connect(driver, "one")
        assert (await machine.output("echo here"))[1] == b"here\n"
        with pytest.raises(TerminalUnavailable, match=SAYS_SO):
            await Terminals().start(machine)
        machine.close()
    finally:
        await leave(driver)
