"""Files in the true image: ripgrep searches them, and its LibreOffice prints office files, as a person sees it."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from cubicle import settings
from cubicle.drivers.oci.driver import OciDriver
from cubicle.images.store import SUBUID_START, BuiltImage, ImageStore
from cubicle.sandbox.driver import Driver
from tests.conftest import absent
from tests.http_api.pages import visitor
from tests.http_api.pages.visitor import House, visit

pytestmark = [pytest.mark.anyio, pytest.mark.oci, pytest.mark.real, pytest.mark.timeout(300)]
OUTPUTS = "/mnt/user-data/outputs"
SHOTS = os.environ.get("CUBICLE_SHOTS")
MAKE = """
import docx, openpyxl
text = docx.Document()
text.add_heading("Quarterly report", 0)
text.add_paragraph("The needle is in this paragraph.")
table = text.add_table(rows=1, cols=2)
table.rows[0].cells[0].text, table.rows[0].cells[1].text = "North", "42"
text.save("-report ü.docx")
book = openpyxl.Workbook()
book.active.append(["name", "n"])
book.save("book.xlsx")
"""


def full_image() -> BuiltImage:
    for base in ImageStore(settings.load().image_dir).built():
        if (base.rootfs / "usr/bin/soffice").is_symlink() and (base.rootfs / "usr/bin/rg").exists():
            return base
    absent("needs a sandbox image with LibreOffice: cubicle image build full")
    raise AssertionError


@pytest.fixture(scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    image = full_image()

    def make_driver(folder: Path) -> Driver:
        return OciDriver(folder / "data", ImageStore(settings.load().image_dir), image.digest, SUBUID_START)

    async with visitor.house(tmp_path_factory.mktemp("house"), make_driver=make_driver) as house:
        yield house


async def test_ripgrep_of_the_image_searches(house: House) -> None:
    await house.bash(
        "search",
        f"cd {OUTPUTS} && printf 'one\\nA Needle here\\n' > notes.txt && printf 'needle\\n' > .hidden && "
        "mkdir -p ~/app/node_modules && echo needle > ~/app/node_modules/x.js && echo 'the needle' > ~/app/a.py && "
        "printf 'needle\\0' > binary && command -v rg",
    )
    answer = await house.client.get("/api/chats/search/search", params={"q": "needle"})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    found = {(one["path"], one["line"], one["text"]) for one in lines if one["type"] == "line"}
    assert found == {("notes.txt", 2, "A Needle here"), ("workspace/app/a.py", 1, "the needle")}
    assert lines[-1] == {"type": "end", "complete": True}


async def test_an_office_file_is_shown_as_libreoffice_prints_it(house: House, browser: Browser) -> None:
    await house.bash("office", f"cd {OUTPUTS} && python3 - <<'END'\n{MAKE}\nEND\necho no office file > bad.docx")
    for name in ("-report ü.docx", "book.xlsx"):
        made = await house.client.get(f"/api/chats/office/pdf/{name}", timeout=120)
        assert (made.status_code, made.headers["content-type"]) == (200, "application/pdf"), made.text
        assert made.content.startswith(b"%PDF-")
        assert b"%%EOF" in made.content[-64:]
    async with visit(browser, f"{house.url}/preview/office/-report%20%C3%BC.docx", width=1280) as seen:
        frame = seen.page.frame_locator("iframe.file-frame")
        await expect(frame.locator(".textLayer").get_by_text("Quarterly report")).to_be_visible()
        search = frame.get_by_role("searchbox", name="Search in the document")
        await search.fill("needle")
        await expect(frame.get_by_text("1 of 1")).to_be_visible()
        if SHOTS:
            await seen.page.screenshot(path=f"{SHOTS}/office-light-1280.png")
        await seen.page.get_by_role("button", name="As printed").click()
        await expect(frame.get_by_text("Quarterly report").first).to_be_visible()
        assert seen.errors == []
