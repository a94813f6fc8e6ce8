"""`cubicle rescue`: what was set aside is listed, and goes back to a chat."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from cubicle.cli import main
from cubicle.core.chat import Chat
from cubicle.drivers.factory import make_driver
from cubicle.images.store import ImageStore
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.lost_found import LostFound
from cubicle.sandbox.warm_pool import connect
from cubicle.settings import load
from tests.drivers.makers import some_base
from tests.support.emptying import empty

A = Chat("a-chat")


def call(data: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    settings = {"DATA_DIR": str(data), "COLUMNS": "200", **environment}
    done = CliRunner().invoke(main, list(arguments), env=settings)
    return done.exit_code, done.output


def test_what_was_set_aside_is_listed(tmp_path: Path) -> None:
    assert call(tmp_path, "rescue") == (0, f"Nothing was set aside in DATA_DIR={tmp_path}.\n")
    chat_index = ChatIndex(tmp_path / "chats")
    chat_index.open()
    chat_index.enter(A)
    (tmp_path / "some-file").write_text("x")
    LostFound(tmp_path).set_aside(tmp_path / "some-file", "nobody knows what it is", A.digest)
    (tmp_path / "lost+found" / "#12345").mkdir()  # e2fsck's own
    status, said = call(tmp_path, "rescue")
    assert status == 0
    assert "nobody knows what it is" in said
    assert A.id in said
    assert "#12345" not in said
    assert call(tmp_path, "rescue", "nothing", "chat")[0] != 0
    (entry,) = LostFound(tmp_path).entries()
    assert call(tmp_path, "rescue", entry.name)[0] != 0


@pytest.mark.oci
async def test_a_sandbox_goes_back_to_a_chat(tmp_path: Path) -> None:
    data = tmp_path / "data"
    image = (await asyncio.to_thread(some_base, ImageStore(load().image_dir))).digest
    settings = load(data_dir=data, sandbox_image=image, sandbox_disk_mb=64, driver="oci")
    driver = make_driver(settings)
    await driver.open()
    await driver.start("one", "somebody")
    machine = await connect(driver, "one")
    await machine.output("echo kept > ~/note")
    machine.close()
    await driver.stop("one")
    await driver.close()
    try:
        await asyncio.to_thread(LostFound(data).set_aside, data / "sandboxes/one", "a test")
        (entry,) = await asyncio.to_thread(LostFound(data).entries)
        told = {"SANDBOX_IMAGE": image, "SANDBOX_DISK_MB": "64", "DRIVER": "oci"}
        status, said = await asyncio.to_thread(call, data, "rescue", entry.name, A.id, **told)
        assert (status, "with all its files" in said) == (0, True), said
        driver = make_driver(settings)
        await driver.open()
        name = await driver.find(A.digest)
        assert name == "one"
        await driver.start(name, A.digest)
        machine = await connect(driver, name)
        assert (await machine.output("cat ~/note"))[1] == b"kept\n"
        machine.close()
        await driver.close()
    finally:
        await empty(make_driver(settings))
