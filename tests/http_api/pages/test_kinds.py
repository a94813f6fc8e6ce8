"""Every kind of file opens in its own viewer: a true Chromium before the true service, files as programs write them."""

from __future__ import annotations

import base64
import io
import json
import math
import struct
import tarfile
import wave
import zipfile
from datetime import date

import openpyxl
import pytest
from playwright.async_api import FrameLocator, Locator, Page, expect

from tests.http_api.pages.visitor import House, Visit

pytestmark = [pytest.mark.anyio, pytest.mark.real]
expect.set_options(timeout=60_000)

OUTPUTS = "/mnt/user-data/outputs"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><script>alert(1)</script></svg>'
MD = b"# Plan\n\n$x^2$\n\n```mermaid\ngraph TD; A[Start]-->B[End]\n```\n"
BOOK = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}},
    "cells": [
        {"cell_type": "markdown", "metadata": {}, "source": ["# Study"]},
        {
            "cell_type": "code",
            "execution_count": 1,
            "metadata": {},
            "source": ["print(40 + 2)"],
            "outputs": [
                {"output_type": "stream", "name": "stdout", "text": ["42\\n"]},
                {
                    "output_type": "display_data",
                    "metadata": {},
                    "data": {"text/html": ["<script>alert(1)</script><b>fat</b>"]},
                },
            ],
        },
    ],
}


def zipped(**files: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), text)
    return content.getvalue()


def tarred() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        member = tarfile.TarInfo("inside/kept.txt")
        member.size = 4
        archive.addfile(member, io.BytesIO(b"kept"))
    return content.getvalue()


def tone() -> bytes:
    content = io.BytesIO()
    with wave.open(content, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(b"".join(struct.pack("<h", int(9000 * math.sin(i / 3))) for i in range(8000)))
    return content.getvalue()


def sheet() -> bytes:
    """As openpyxl leaves it: the formula has no value."""
    book, content = openpyxl.Workbook(), io.BytesIO()
    book.worksheets[0].append([date(2026, 1, 2), "=A1+1"])
    book.save(content)
    return content.getvalue()


def slides() -> bytes:
    """The least that a presentation is: one slide with one text."""
    main = "http://schemas.openxmlformats.org/presentationml/2006/main"
    text = "http://schemas.openxmlformats.org/drawingml/2006/main"
    links = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006/relationships"
    slide = (
        f'<p:sld xmlns:p="{main}" xmlns:a="{text}"><p:cSld><p:spTree><p:sp><p:txBody><a:p><a:r>'
        "<a:t>First slide</a:t></a:r></a:p></p:txBody></p:sp></p:spTree></p:cSld></p:sld>"
    )
    return zipped(
        ppt__presentation_dot_xml=f'<p:presentation xmlns:p="{main}" xmlns:r="{links}"><p:sldIdLst>'
        '<p:sldId id="256" r:id="rId1"/></p:sldIdLst></p:presentation>',
        ppt___rels__presentation_dot_xml_dot_rels=f'<Relationships xmlns="{package}"><Relationship Id="rId1" '
        f'Type="{links}/slide" Target="slides/slide1.xml"/></Relationships>',
        ppt__slides__slide1_dot_xml=slide,
    )


async def shows_text(frame: FrameLocator, text: str) -> None:
    await expect(frame.locator(".viewer")).to_contain_text(text)


async def plays(element: Locator) -> None:
    """The browser has read it and knows how long it is."""
    await expect(element).to_be_visible()
    await element.evaluate("e => e.readyState >= 1 || new Promise((r) => e.addEventListener('loadedmetadata', r))")
    assert await element.evaluate("e => e.duration > 0.5")


KINDS: list[tuple[str, bytes, str]] = [
    ("app.py", b"def total():\n    return 42\n", "return 42"),
    ("plan.md", MD, "Plan"),
    ("study.ipynb", json.dumps(BOOK).encode(), "fat"),
    ("data.csv", b"name,amount\nAnn,3\n", "Ann"),
    ("things.zip", zipped(a__b_dot_txt="hello"), "a/b.txt"),
    ("things.tar.gz", tarred(), "inside/kept.txt"),
    ("talk.pptx", slides(), "First slide"),
    ("sums.xlsx", sheet(), "=A1+1"),
    ("dates.xlsx", sheet(), "2026-01-02"),
    ("blob.bin", bytes(range(256)), "00 01 02 03"),
    ("latin.txt", "café – naïve\nnext line".encode("cp1252"), "café – naïve"),
    ("latin.csv", b"name\ncaf\xe9", "café"),
    ("mixed.txt", "ein Stück für Zoë \n".encode() + b"\xff", "Stück für Zoë \ufffd"),
    ("wide.txt", "café".encode("utf-16"), "café"),
    ("empty.txt", b"", ""),
]


async def opened(page: Page, name: str) -> Locator:
    """The pane of a file that a person opens from the tree."""
    await page.get_by_role("treeitem", name=name).click()
    return page.get_by_role("region", name=f"File {name}")


async def test_a_file_opens_in_the_viewer_of_its_kind(house: House, tab: Visit) -> None:
    for name, content, _ in KINDS:
        await house.put("each", f"{OUTPUTS}/{name}", content)
    await tab.go(f"{house.url}/preview/each/")
    for name, _, text in KINDS:
        pane = await opened(tab.page, name)
        await shows_text(pane.frame_locator("iframe.file-frame"), text)
        assert (name, tab.dialogs, tab.errors) == (name, [], [])


DAMAGED = {"broken": b"not what the name says\n" * 40, "cut": zipped(a="hello" * 200)[:80], "empty": b""}
ENDINGS = ["zip", "tar", "tgz", "docx", "pptx", "xlsx", "pdf", "ipynb", "png", "mp3", "mp4"]


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_damaged_file_says_so_in_our_own_words_and_can_be_downloaded(
    house: House, tab: Visit, ending: str
) -> None:
    names = {f"{stem}.{ending}": content for stem, content in DAMAGED.items() if (stem, ending) != ("empty", "tar")}
    for name, content in names.items():
        await house.put("damaged", f"{OUTPUTS}/{name}", content)
    await tab.go(f"{house.url}/preview/damaged/broken.{ending}")
    for name in names:
        pane = await opened(tab.page, name)
        said = pane.locator(".empty", has_text="This file cannot be shown")
        await expect(said.get_by_text("It may be damaged")).to_be_visible()
        await expect(said.get_by_role("link", name="Download")).to_be_visible()


async def test_a_tar_with_an_entry_of_a_size_below_nothing_ends(house: House, tab: Visit) -> None:
    header = tarfile.TarInfo("round and round").tobuf()
    await house.put("damaged", f"{OUTPUTS}/round.tar", header[:124] + b"-0000001000\0" + header[136:] + bytes(1024))
    await tab.go(f"{house.url}/preview/damaged/round.tar")
    await expect(tab.page.get_by_text("This file cannot be shown")).to_be_visible()


async def test_an_archive_hides_no_entry_and_no_part_of_a_name(house: House, tab: Visit) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in ("../evil.txt", "evil.txt", "/etc/x", "a/./b", "<b>bold", "in\u202etxt.exe"):
            archive.writestr(name, name)
    await house.put("kinds", f"{OUTPUTS}/names.zip", content.getvalue())
    await tab.go(f"{house.url}/preview/kinds/names.zip")
    cells = tab.page.frame_locator("iframe.file-frame").locator("tbody tr td:nth-child(2)")
    await expect(cells).to_have_text(["../evil.txt", "evil.txt", "/etc/x", "a/./b", "<b>bold", "in\ufffdtxt.exe"])
    unsafe = "Unsafe: leads out of the folder"
    marks = tab.page.frame_locator("iframe.file-frame").locator("tbody tr td:nth-child(5)")
    await expect(marks).to_have_text([unsafe, "", unsafe, "", "", ""])
    warning = tab.page.frame_locator("iframe.file-frame").get_by_text("Do not unpack this as it is: 2 of its names")
    await expect(warning).to_be_visible()


async def test_a_file_that_is_a_diagram_is_drawn_and_has_a_source(house: House, tab: Visit) -> None:
    await house.put("kinds", f"{OUTPUTS}/flow.mmd", b"graph TD; A[Start]-->B[End]\n")
    await tab.go(f"{house.url}/preview/kinds/flow.mmd")
    frame = tab.page.frame_locator("iframe.file-frame")
    await expect(frame.locator("svg").get_by_text("Start", exact=True)).to_be_visible()
    await tab.page.get_by_role("button", name="Source").click()
    await shows_text(frame, "A[Start]-->B[End]")
    assert (tab.dialogs, tab.errors) == ([], [])


async def test_a_diagram_with_an_error_shows_its_text_and_the_error(house: House, tab: Visit) -> None:
    await house.put("kinds", f"{OUTPUTS}/wrong.mmd", b"graph TD; A[Start-->\n")
    await tab.go(f"{house.url}/preview/kinds/wrong.mmd")
    frame = tab.page.frame_locator("iframe.file-frame")
    await shows_text(frame, "This diagram has an error")
    await shows_text(frame, "A[Start-->")


async def test_a_diagram_is_drawn(house: House, tab: Visit) -> None:
    await house.put("kinds", f"{OUTPUTS}/drawn.md", MD)
    await tab.go(f"{house.url}/preview/kinds/drawn.md")
    frame = tab.page.frame_locator("iframe.file-frame")
    await expect(frame.locator("svg").get_by_text("Start", exact=True)).to_be_visible()
    await expect(frame.locator(".katex").first).to_be_visible()
    assert tab.errors == []


@pytest.mark.parametrize(("name", "content"), [("dot.png", PIXEL), ("dot.svg", SVG)])
async def test_a_picture_is_an_image_and_its_scripts_do_not_run(
    house: House, tab: Visit, name: str, content: bytes
) -> None:
    await house.put("kinds", f"{OUTPUTS}/{name}", content)
    await tab.go(f"{house.url}/preview/kinds/{name}")
    place = tab.page.frame_locator("iframe.file-frame") if name.endswith(".svg") else tab.page
    picture = place.get_by_role("img", name=name)
    await expect(picture).to_be_visible()
    assert await picture.evaluate("e => e.decode().then(() => e.naturalWidth)") > 0
    assert (tab.dialogs, tab.errors) == ([], [])


async def test_a_sound_can_be_played(house: House, tab: Visit) -> None:
    await house.put("kinds", f"{OUTPUTS}/tone.wav", tone())
    await tab.go(f"{house.url}/preview/kinds/tone.wav")
    await plays(tab.page.locator("audio"))


async def test_a_film_can_be_played(house: House, tab: Visit) -> None:
    """The film is one that Chromium itself records: nothing else here could make one."""
    await tab.go("about:blank")
    film = await tab.page.evaluate(_FILM)
    await house.put("kinds", f"{OUTPUTS}/film.webm", base64.b64decode(film))
    await tab.go(f"{house.url}/preview/kinds/film.webm")
    element = tab.page.locator("video")
    await expect(element).to_be_visible()
    await element.evaluate("e => e.readyState >= 1 || new Promise((r) => e.addEventListener('loadedmetadata', r))")
    assert await element.evaluate("e => e.videoWidth") == 64


_FILM = """() => new Promise((done) => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 64;
  const pen = canvas.getContext("2d");
  const recorder = new MediaRecorder(canvas.captureStream(20), { mimeType: "video/webm" });
  const parts = [];
  recorder.ondataavailable = (event) => parts.push(event.data);
  recorder.onstop = () => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.split(",")[1]);
    reader.readAsDataURL(new Blob(parts));
  };
  let turn = 0;
  const drawing = setInterval(() => { pen.fillStyle = turn++ % 2 ? "red" : "blue"; pen.fillRect(0, 0, 64, 64); }, 40);
  recorder.start();
  setTimeout(() => { clearInterval(drawing); recorder.stop(); }, 1000);
})"""
