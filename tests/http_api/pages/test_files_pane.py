"""The files pane in a true Chromium: what people find, change, follow and look at."""

from __future__ import annotations

import base64
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.http_api.pages.test_undo import call
from tests.http_api.pages.visitor import House, accessible, address, screens, visit

pytestmark = [pytest.mark.anyio, pytest.mark.real]
OUTPUTS = "/mnt/user-data/outputs"
SHOTS = os.environ.get("CUBICLE_SHOTS")


async def shot(page: Page, name: str) -> None:
    if SHOTS:
        await page.screenshot(path=Path(SHOTS) / f"{name}.png")


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes((y * 255 // height, 90, 120)) * width for y in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def pdf(*pages: str) -> bytes:
    """A document of Helvetica text, a line a page."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", "", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for text in pages:
        content = f"BT /F1 24 Tf 72 700 Td ({text}) Tj ET"
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
        kids.append(f"{len(objects) + 1} 0 R")
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {len(objects)} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    out, places = b"%PDF-1.4\n", []
    for number, text in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{text}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    trailer = f"trailer\n<< /Size {len(places) + 1} /Root 1 0 R >>\nstartxref\n{len(out)}\n%%EOF"
    return out + f"xref\n0 {len(places) + 1}\n0000000000 65535 f \n{table}{trailer}".encode()


async def rename_and_delete(page: Page, shown: str) -> None:
    await page.get_by_role("treeitem", name="old.csv").focus()
    await page.get_by_role("button", name="Actions for old.csv").click()
    menu = page.get_by_role("menu")
    assert await menu.get_by_role("menuitem").all_inner_texts() == [
        "Download", "Copy path", "Copy link", "Rename", "Delete",
    ]  # fmt: skip
    await accessible(page)
    await shot(page, f"menu-{shown}")
    await page.keyboard.press("ArrowUp")
    await page.keyboard.press("ArrowUp")
    await page.keyboard.press("Enter")
    await page.get_by_role("textbox", name="New name").fill("deep")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text("Something has this name already.")
    await page.get_by_role("textbox", name="New name").fill("renamed ü.csv")
    await page.keyboard.press("Enter")
    row = page.get_by_role("treeitem", name="renamed ü.csv")
    await expect(row).to_be_visible()
    await row.click(button="right")
    await expect(menu).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(menu).to_have_count(0)
    await expect(row).to_be_focused()
    await page.keyboard.press("F2")
    await expect(page.get_by_role("textbox", name="New name")).to_be_focused()
    await page.keyboard.press("Escape")
    await row.focus()
    await page.keyboard.press("Delete")
    await page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    await expect(row).to_have_count(0)


@pytest.mark.parametrize(("scheme", "width"), screens(1280))
async def test_files_are_found_renamed_deleted_and_listed_newest_first(
    house: House, browser: Browser, scheme: Any, width: int
) -> None:
    chat = f"pane-{scheme}-{width}"
    await house.bash(
        chat,
        f"cd {OUTPUTS} && mkdir -p deep/er && printf 'x\\nthe needle <b>is</b> here\\n' > deep/er/notes.txt && "
        "touch -d '2 hours ago' old.csv && touch -d '1 hour ago' deep && touch new.png",
    )
    async with visit(browser, f"{house.url}/preview/{chat}/", width=width, scheme=scheme) as seen:
        page = seen.page
        await page.get_by_role("navigation").get_by_role("button", name="Files").click()
        assert "panel=files" in await address(page)
        outputs = page.get_by_role("tree", name="Outputs").get_by_role("treeitem")
        await expect(outputs).to_have_count(3)
        titles = [await row.get_attribute("title") or "" for row in await outputs.all()]
        names = [title.split("·")[0].strip() for title in titles]
        assert names == ["new.png", "deep", "old.csv"]
        await accessible(page)
        await shot(page, f"files-{scheme}-{width}")
        search = page.get_by_role("searchbox", name="Search names and contents of files")
        await search.fill("needle")
        line = page.get_by_role("button", name="Line 2: the needle <b>is</b> here")
        await expect(line).to_be_visible()
        await expect(line.locator("mark")).to_have_text("needle")
        await accessible(page)
        await shot(page, f"search-{scheme}-{width}")
        await line.click()
        text = page.frame_locator("iframe.file-frame").locator(".cm-content")
        await expect(text).to_contain_text("the needle")
        await expect(page.frame_locator("iframe.file-frame").locator(".cm-activeLine")).to_contain_text("needle")
        assert (await address(page)).endswith("/deep/er/notes.txt")
        if width < 720:
            await page.get_by_role("button", name="Close the file").first.click()
        await search.fill("")
        chosen = page.get_by_role("treeitem", name="notes.txt")
        await expect(chosen).to_be_visible()  # the folders around it were opened
        await rename_and_delete(page, f"{scheme}-{width}")
        assert await house.bash(chat, f"ls {OUTPUTS}") == "deep\nnew.png\n"
        assert seen.errors == []


async def test_a_text_is_edited_and_a_conflict_is_asked_about(house: House, browser: Browser) -> None:
    path = f"{OUTPUTS}/plan.md"
    await call(house, "edit", "create_file", path=path, content="# Plan\r\nfirst\r\n", description="x")
    async with visit(browser, f"{house.url}/preview/edit/plan.md", width=1280) as seen:
        page = seen.page
        editor = page.frame_locator(".editor iframe").locator(".cm-content")
        await page.get_by_role("button", name="Edit", exact=True).click()
        await expect(editor).to_contain_text("first")
        save = page.get_by_role("button", name="Save", exact=True)
        await expect(save).to_be_disabled()
        await editor.press("Control+End")
        await editor.press_sequentially("second")
        await accessible(page)
        await shot(page, "edit-light-1280")
        await editor.press("Control+s")
        await expect(page.get_by_text("Saved.")).to_be_visible()
        assert await house.bash("edit", f"cat {path} | od -An -c | tr -d ' \\n'") == r"#Plan\r\nfirst\r\nsecond"
        await call(house, "edit", "create_file", path=path, content="the model was here\n", description="x")
        await editor.press_sequentially(" and third")
        await save.click()
        conflict = page.get_by_role("dialog", name="The file was changed meanwhile")
        await expect(conflict).to_be_visible()
        assert await house.bash("edit", f"cat {path}") == "the model was here\n"
        await conflict.get_by_role("button", name="Save mine over it").click()
        await expect(conflict).to_have_count(0)
        await expect(save).to_be_disabled()
        assert (await house.bash("edit", f"cat {path}")).endswith("second and third")
        await page.get_by_role("button", name="Done").click()
        await page.get_by_role("button", name="More for plan.md").click()
        await page.get_by_role("menuitem", name="Versions").click()
        versions = page.get_by_role("dialog", name="Versions of plan.md")
        await expect(versions.get_by_role("listitem")).to_have_count(3)
        await versions.get_by_role("button", name="Compare").first.click()
        await expect(versions.locator(".removed").first).to_have_text("- the model was here\n")
        await accessible(page)
        await shot(page, "versions-light-1280")
        await versions.get_by_role("button", name="Put back").first.click()
        await expect(versions).to_have_count(0)
        assert await house.bash("edit", f"cat {path}") == "the model was here\n"
        await page.get_by_role("button", name="Changes", exact=True).click()
        changes = page.locator(".changes li")
        await expect(changes.first).to_contain_text("Changed plan.md")
        assert "view=changes" in await address(page)
        await accessible(page)
        await shot(page, "changes-light-1280")
        assert seen.errors == []


async def test_a_log_is_followed_and_a_view_link_is_offered_no_change(house: House, browser: Browser) -> None:
    await house.bash("log", f"seq 1 60000 > {OUTPUTS}/run.log; printf '\\033[31mred\\033[0m\\n' >> {OUTPUTS}/run.log")
    async with visit(browser, f"{house.url}/preview/log/run.log", width=1280) as seen:
        page = seen.page
        await page.get_by_role("button", name="Follow end").click()
        log = page.get_by_role("log", name="End of the file")
        await expect(log).to_contain_text("60000\nred")
        await expect(log.get_by_text("red", exact=True)).to_have_css("color", "rgb(163, 32, 26)")
        await house.bash("log", f"echo added later >> {OUTPUTS}/run.log")
        await expect(log).to_contain_text("added later")
        await page.get_by_role("button", name="Pause").click()
        await expect(page.get_by_text("Paused.")).to_be_visible()
        await page.get_by_role("button", name="Go on").click()
        await expect(log).to_contain_text("added later")
        assert await log.evaluate("box => box.scrollHeight - box.scrollTop - box.clientHeight < 20")
        await accessible(page)
        await shot(page, "log-light-1280")
        await house.client.post("/api/sandboxes/log/stop")
        await expect(page.get_by_text("The operator stopped this computer.")).to_be_visible()
        assert seen.errors == []


async def test_pictures_are_zoomed_sheets_sorted_and_pdfs_searched(house: House, browser: Browser) -> None:
    await house.put("kinds", f"{OUTPUTS}/big.png", png(600, 400))
    await house.put("kinds", f"{OUTPUTS}/t.csv", b"name,n\nb,10\na,9\nc,1000\n")
    encoded = base64.b64encode(pdf("first page", "a needle here", "nothing", "Needle again")).decode()
    await house.bash("kinds", f"echo {encoded} | base64 -d > {OUTPUTS}/d.pdf")
    async with visit(browser, f"{house.url}/preview/kinds/big.png", width=1280) as seen:
        page = seen.page
        picture = page.get_by_role("img", name="big.png")
        await expect(picture).to_be_visible()
        await page.get_by_role("button", name="1:1").click()
        await page.get_by_role("button", name="Larger").click()
        await expect(page.get_by_text("125 %")).to_be_visible()
        assert await picture.evaluate("picture => picture.clientWidth") == 750
        await page.locator(".file-media").press("0")
        await expect(page.get_by_text("Fits")).to_be_visible()
        await accessible(page)
        await page.goto(f"{house.url}/preview/kinds/t.csv")
        frame = page.frame_locator("iframe.file-frame")
        numbers = frame.locator("td.number")
        await expect(numbers).to_have_text(["10", "9", "1000"])
        await frame.get_by_role("button", name="n", exact=True).click()
        await expect(numbers).to_have_text(["9", "10", "1000"])
        await frame.get_by_role("button", name="n", exact=True).click()
        await expect(numbers).to_have_text(["1000", "10", "9"])
        await frame.get_by_role("searchbox", name="Filter rows").fill("a")
        await expect(numbers).to_have_text(["9"])
        await shot(page, "sheet-light-1280")
        await page.goto(f"{house.url}/preview/kinds/d.pdf")
        field = frame.get_by_role("searchbox", name="Search in the document")
        await field.fill("needle")
        await expect(frame.get_by_text("1 of 2")).to_be_visible()
        await expect(frame.locator("mark.current")).to_have_text("needle")
        await field.press("Enter")
        await expect(frame.get_by_text("2 of 2")).to_be_visible()
        await expect(frame.locator("mark.current")).to_have_text("Needle")
        await shot(page, "pdf-light-1280")
        assert seen.errors == []


async def test_every_panel_has_an_address_and_the_back_button_leads_to_it(house: House, browser: Browser) -> None:
    await house.bash("panels", "true")
    async with visit(browser, f"{house.url}/preview/panels/?panel=agents", width=1280) as seen:
        page = seen.page
        rail = page.get_by_role("navigation", name="Panels")
        await expect(rail.get_by_role("button", name="Agents")).to_have_attribute("aria-current", "true")
        await rail.get_by_role("button", name="Ports").click()
        await expect(page.get_by_role("region", name="Ports")).to_be_visible()
        assert (await address(page)).endswith("?panel=ports")
        await page.evaluate("history.back()")
        await expect(rail.get_by_role("button", name="Agents")).to_have_attribute("aria-current", "true")
        await page.evaluate("history.forward()")
        await expect(page.get_by_role("region", name="Ports")).to_be_visible()
        await page.goto(f"{house.url}/no/such/page")
        await expect(page.get_by_role("heading", name="There is nothing at this address")).to_be_visible()
        await accessible(page)
        await page.goto(f"{house.url}/preview/nobody/")
        await expect(page.get_by_text("The model's first call, or an upload, makes one.")).to_be_visible()
        assert (await house.client.get("/terminal/nobody/status")).json()["sandbox"] == "none"
