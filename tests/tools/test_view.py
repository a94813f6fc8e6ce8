"""view: text, folders, images, documents, bytes."""

from __future__ import annotations

import base64
import io
import struct
import zipfile
import zlib
from datetime import date, datetime, timedelta
from typing import Any
from xml.sax.saxutils import escape

import openpyxl
import pytest
from openpyxl.formula.translate import Translator
from openpyxl.utils.datetime import CALENDAR_MAC_1904

from cubicle.core.chat import Chat
from cubicle.machine.connection import GuestLink
from tests.support.service import Options, Service, service_of, text


async def put(service: Service, path: str, content: bytes) -> None:
    async with service.fleet.lease(Chat("test")) as machine:
        await machine.write(path, content)


async def view(service: Service, path: str, *view_range: int) -> tuple[str, bool]:
    arguments: dict[str, Any] = {"path": path} | ({"view_range": list(view_range)} if view_range else {})
    result = await service.call("view", arguments)
    return text(result), result["isError"]


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes([(x * y) % 251 for x in range(width)]) for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def archive(**parts: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for name, content in parts.items():
            packed.writestr(name.replace("__", "/") + ".xml", content)
    return out.getvalue()


async def test_text_comes_with_its_line_numbers(service: Service) -> None:
    await put(service, "/tmp/t.txt", b"one\ntwo\n\nfour")
    assert await view(service, "/tmp/t.txt") == ("     1\tone\n     2\ttwo\n     3\t\n     4\tfour", False)
    assert await view(service, "/tmp/t.txt", 2, 3) == ("     2\ttwo\n     3\t", False)
    assert await view(service, "/tmp/t.txt", 4, -1) == ("     4\tfour", False)


async def test_a_file_is_asked_for_once_when_it_is_short(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = GuestLink.open

    def opened(link: GuestLink, request: Any) -> Any:
        if getattr(request, "path", "") in ("/tmp/short.txt", "/tmp/long.txt"):
            asked.append(request.path)
        return real(link, request)

    whole = b"a line\n" * 9_362  # 2 bytes less than what is read at first
    await put(service, "/tmp/short.txt", whole)
    await put(service, "/tmp/long.txt", whole + b"end")
    monkeypatch.setattr(GuestLink, "open", opened)
    assert await view(service, "/tmp/short.txt", 9_362, -1) == ("  9362\ta line", False)
    assert await view(service, "/tmp/long.txt", 9_363, -1) == ("  9363\tend", False)
    assert asked == ["/tmp/short.txt", "/tmp/long.txt", "/tmp/long.txt"]


async def test_a_range_that_the_file_has_not_is_an_error_with_the_number_of_lines(service: Service) -> None:
    await put(service, "/tmp/t4.txt", b"one\ntwo\n\nfour")
    for pair in ((5, 6), (1, 5), (9, -1)):
        said, failed = await view(service, "/tmp/t4.txt", *pair)
        assert failed
        assert "has 4 lines" in said
    for pair in ((0, 1), (3, 2)):
        said, failed = await view(service, "/tmp/t4.txt", *pair)
        assert failed
        assert "`view_range`" in said
    result = await service.call("view", {"path": "/tmp/t4.txt", "view_range": [1]})
    assert "`view_range`" in text(result)


async def test_an_empty_file_says_so(service: Service) -> None:
    await put(service, "/tmp/empty", b"")
    assert await view(service, "/tmp/empty") == ("(the file is empty)", False)
    assert await view(service, "/tmp/empty", 1, -1) == ("(the file is empty)", False)


@pytest.mark.parametrize("lines", [(1, 1), (1, 9), (2, -1), (5, 9)])
async def test_an_empty_file_has_no_line_to_ask_for(service: Service, lines: tuple[int, int]) -> None:
    await put(service, "/tmp/empty", b"")
    said, failed = await view(service, "/tmp/empty", *lines)
    assert failed
    assert "the file has 0 lines" in said


async def test_a_long_file_is_capped_and_its_end_numbered(service: Service) -> None:
    await service.bash("seq 1 3000000 > /tmp/long.txt")
    said, _ = await view(service, "/tmp/long.txt")
    assert said.startswith("     1\t1\n     2\t2\n")
    assert said.endswith("3000000\t3000000")
    assert "characters left out" in said
    assert len(said) < 30_100
    assert await view(service, "/tmp/long.txt", 2_000_000, 2_000_001) == ("2000000\t2000000\n2000001\t2000001", False)


async def test_a_directory_is_a_tree_of_two_levels_with_sizes_and_without_dot_files(service: Service) -> None:
    await service.bash(
        "mkdir -p d/sub/deeper && cd d && echo hi > a.txt && touch .hidden sub/deeper/no && ln -s a.txt link"
    )
    said, failed = await view(service, "/home/assistant/d")
    assert not failed
    assert said == "/home/assistant/d/\n  a.txt (3 bytes)\n  link -> a.txt\n  sub/\n    deeper/"


async def test_binary_files_come_as_base64_bounded(service: Service) -> None:
    data = bytes(range(256)) * 4
    await put(service, "/tmp/b.bin", data)
    said, _ = await view(service, "/tmp/b.bin")
    line, encoded = said.split("\n", 1)
    assert "1.0 KB" in line
    assert base64.b64decode(encoded) == data
    for size in (22_500, 22_501, 22_502, 22_503, 100_001):
        large = bytes(range(256)) * (size // 256) + bytes(size % 256)
        await put(service, "/tmp/large.bin", large)
        _, encoded = (await view(service, "/tmp/large.bin"))[0].split("\n", 1)
        whole = base64.b64encode(large).decode()
        if size <= 22_500:
            assert encoded == whole
        else:
            head, note, tail = encoded.split("\n")
            assert whole.startswith(head)
            assert whole.endswith(tail)
            assert note == f"[... {len(whole) - len(head) - len(tail):,} characters left out ...]"
            assert 29_990 <= len(head) + len(tail) <= 30_000


async def test_a_small_image_comes_as_it_is(service: Service) -> None:
    picture = png(40, 30)
    await put(service, "/tmp/small.png", picture)
    result = await service.call("view", {"path": "/tmp/small.png"})
    line, shown = (block["text"] for block in result["content"])
    assert "PNG image, 40 x 30 pixels" in line
    assert shown == "data:image/png;base64," + base64.b64encode(picture).decode()
    async with service_of(service.fleet, Options({"view_images": "blocks"})) as other:
        result = await other.call("view", {"path": "/tmp/small.png"})
        assert [block["type"] for block in result["content"]] == ["text", "image"]
        assert result["content"][1]["mimeType"] == "image/png"
        assert base64.b64decode(result["content"][1]["data"]) == picture


async def test_a_large_image_comes_as_a_thumbnail_or_says_why_not(service: Service) -> None:
    await put(service, "/tmp/large.png", png(2600, 1300))
    result = await service.call("view", {"path": "/tmp/large.png"})
    assert not result["isError"]
    assert "2600 x 1300 pixels" in text(result)
    has_tool = "yes" in await service.bash(
        "python3 -c 'import PIL' 2>/dev/null || which magick convert && echo yes || true"
    )
    if has_tool:
        kind, encoded = result["content"][1]["text"].removeprefix("data:").split(";base64,")
        data = base64.b64decode(encoded)
        assert kind in ("image/jpeg", "image/png")
        assert len(data) <= 200 * 1024
    else:
        assert "could not make a small picture" in text(result)


WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
LINKS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def cell(text: str) -> str:
    return f"<w:tc><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:tc>"


DOCX = archive(
    word__document=f'<w:document xmlns:w="{WORD}"><w:body><w:p><w:r><w:t>Hello</w:t></w:r><w:r>'
    f"<w:t xml:space='preserve'> Word</w:t></w:r></w:p><w:tbl><w:tr>{cell('a')}{cell('b')}</w:tr></w:tbl></w:body>"
    "</w:document>"
)
XLSX = archive(
    xl__workbook=f'<workbook xmlns="{SHEET}" xmlns:r="{LINKS}"><sheets>'
    '<sheet name="First" sheetId="1" r:id="rId1"/></sheets></workbook>',
    xl__sharedStrings=f'<sst xmlns="{SHEET}"><si><t>shared</t></si></sst>',
    xl__worksheets__sheet1=f'<worksheet xmlns="{SHEET}"><sheetData>'
    '<row r="1"><c r="A1" t="s"><v>0</v></c><c r="C1"><v>42</v></c></row></sheetData></worksheet>',
)
PPTX = archive(
    ppt__presentation="<p/>",
    ppt__slides__slide1='<p:sld xmlns:p="p" xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"><a:p><a:r>'
    "<a:t>Title</a:t></a:r></a:p></p:sld>",
)


def with_relations(workbook: bytes) -> bytes:
    out = io.BytesIO(workbook)
    with zipfile.ZipFile(out, "a") as packed:
        packed.writestr(
            "xl/_rels/workbook.xml.rels",
            '<Relationships xmlns="x"><Relationship Id="rId1" Target="worksheets/sheet1.xml"/></Relationships>',
        )
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("a.docx", DOCX, ["Hello Word", "a\tb"]),
        ("a.xlsx", with_relations(XLSX), ["--- sheet First ---", "shared\t\t42"]),
        ("a.pptx", PPTX, ["--- slide 1 ---", "Title"]),
    ],
)
async def test_office_files_come_as_their_text(service: Service, name: str, content: bytes, lines: list[str]) -> None:
    await put(service, f"/tmp/{name}", content)
    said, failed = await view(service, f"/tmp/{name}")
    assert not failed, said
    assert said == "\n".join(f"{n:6}\t{line}" for n, line in enumerate(lines, 1))
    assert (await view(service, f"/tmp/{name}", 2, 2))[0] == f"     2\t{lines[1]}"


async def test_a_sheet_shows_dates_as_dates_and_formulas_that_were_never_calculated(service: Service) -> None:
    book = openpyxl.Workbook()
    sheet = book.worksheets[0]
    moment = datetime(2026, 1, 2, 13, 30)
    sheet.append([moment.date(), moment, moment.time(), timedelta(hours=30), 46024, "=A1+E1"])
    sheet.append([59, 61, 0.5, -1, 1e300, 46024])
    for place, code in {"A2": "d mmm yy", "B2": "[$-409]mm/dd/yyyy", "C2": '0.00 "days"', "F2": "[Red]0.00"}.items():
        sheet[place].number_format = code
    sheet["D2"].number_format = sheet["E2"].number_format = "yyyy-mm-dd"
    content = io.BytesIO()
    book.save(content)
    await put(service, "/tmp/dates.xlsx", content.getvalue())
    said, failed = await view(service, "/tmp/dates.xlsx", 2, 3)
    assert not failed, said
    first, second = said.splitlines()
    assert first == "     2\t2026-01-02\t2026-01-02 13:30:00\t13:30:00\t30:00:00\t46024\t=A1+E1"
    assert second.startswith("     3\t1900-02-28\t1900-03-01\t0.5\t-1\t1e")
    assert second.endswith("\t46024")


SHARED = [
    "A1*$A$1+A$1+$A1",
    "SUM(A1:B2,C:D,$C:D,5:6,$5:6)",
    'LOG10(A1)&"A1 ""B2"""&\'A1 B2\'!C3&Sheet1!AZ9',
    "Table1[A1]+XFD1048576*1.5+AA1",
]


@pytest.mark.parametrize("formula", SHARED)
@pytest.mark.parametrize("place", ["D10", "E12", "Z14"])
async def test_a_formula_that_cells_share_is_shown_as_it_reads_in_each(
    service: Service, formula: str, place: str
) -> None:
    row = place.lstrip("DEZ")
    others = f'<row r="{row}"><c r="{place}"><f t="shared" si="3"/></c></row>' if place != "D10" else ""
    book = archive(
        xl__workbook=f'<workbook xmlns="{SHEET}" xmlns:r="{LINKS}"><sheets>'
        '<sheet name="First" sheetId="1" r:id="rId1"/></sheets></workbook>',
        xl__worksheets__sheet1=f'<worksheet xmlns="{SHEET}"><sheetData><row r="10"><c r="D10">'
        f'<f t="shared" ref="D9:Z12" si="3">{escape(formula)}</f></c></row>{others}</sheetData></worksheet>',
    )
    await put(service, "/tmp/shared.xlsx", with_relations(book))
    said, failed = await view(service, "/tmp/shared.xlsx")
    assert not failed, said
    expected = Translator(f"={formula}", origin="D10").translate_formula(place)
    assert said.splitlines()[-1].split("\t")[-1] == expected


async def test_a_sheet_that_counts_from_1904_shows_its_own_dates(service: Service) -> None:
    book = openpyxl.Workbook()
    book.epoch = CALENDAR_MAC_1904
    book.worksheets[0].append([date(2026, 1, 2)])
    content = io.BytesIO()
    book.save(content)
    await put(service, "/tmp/mac.xlsx", content.getvalue())
    assert await view(service, "/tmp/mac.xlsx", 2, 2) == ("     2\t2026-01-02", False)


async def test_a_document_without_text_says_how_to_see_it(service: Service) -> None:
    blank = archive(word__document=f'<w:document xmlns:w="{WORD}"><w:body><w:p/></w:body></w:document>')
    await put(service, "/tmp/blank.docx", blank)
    said, failed = await view(service, "/tmp/blank.docx")
    assert failed
    assert "/tmp/blank.docx holds no text" in said
    assert "pdftoppm" in said


async def test_a_damaged_office_file_says_so(service: Service) -> None:
    await put(service, "/tmp/bad.docx", DOCX[:100])
    said, failed = await view(service, "/tmp/bad.docx")
    assert failed
    assert "could not be extracted" in said
    assert "Traceback" not in said


async def test_a_pdf_comes_as_its_text_or_says_what_is_missing(service: Service) -> None:
    page = b"BT /F1 12 Tf 72 700 Td (Hello PDF) Tj ET"
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(page), page),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj%sendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"xref\n0 6\n0000000000 65535 f \n%strailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (
        table,
        len(out),
    )
    await put(service, "/tmp/a.pdf", out)
    said, failed = await view(service, "/tmp/a.pdf")
    if "yes" in await service.bash("command -v pdftotext >/dev/null && echo yes || true"):
        assert "Hello PDF" in said
    else:
        assert failed
        assert "no tool to extract text" in said


@pytest.mark.parametrize(("path", "words"), [("/tmp/nothing", "does not exist"), ("/tmp/pipe", "pipe or socket")])
async def test_what_cannot_be_viewed_is_said(service: Service, path: str, words: str) -> None:
    await service.bash("test -p /tmp/pipe || mkfifo /tmp/pipe")
    said, failed = await view(service, path)
    assert failed
    assert words in said
