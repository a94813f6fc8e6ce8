"""Print the text of a docx, xlsx or pptx file. Runs in the sandbox: office_text.py PATH."""

from __future__ import annotations

import posixpath
import re
import sys
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Iterator
from datetime import datetime, timedelta

MAX_PART = 64 * 1024 * 1024
WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
DRAW = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
BUILT_IN = {"d": "14 15 16", "m": "17", "h": "18 19 20 21", "dh": "22", "s": "45 47", "[h": "46"}
MAX_FORMULA = 8192
# Words in quotes and names in brackets stay as they are; then a cell, whole columns, whole rows.
REFERENCE = re.compile(
    r"""("(?:[^"]|"")*"|'(?:[^']|'')*'|\[[^]]*\])|(?<![\w.$])(?:\$?[A-Z]{1,3}\$?[0-9]{1,7}"""
    r"""|\$?[A-Z]{1,3}:\$?[A-Z]{1,3}|\$?[0-9]{1,7}:\$?[0-9]{1,7})(?![\w(.!])"""
)
LINK = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


def part(archive: zipfile.ZipFile, name: str) -> ET.Element:
    if archive.getinfo(name).file_size > MAX_PART:
        sys.exit("a part of the document is too big: " + name)
    return ET.fromstring(archive.read(name))  # noqa: S314  (what it breaks is the sandbox, which is the file's own)


def numbered(archive: zipfile.ZipFile, pattern: str) -> list[str]:
    names = [name for name in archive.namelist() if re.fullmatch(pattern, name)]
    return sorted(names, key=lambda name: int(re.findall(r"\d+", name)[-1]))


def paragraph(element: ET.Element, space: str) -> str:
    pieces = []
    for node in element.iter():
        if node.tag == space + "t":
            pieces.append(node.text or "")
        elif node.tag in (space + "br", space + "cr"):
            pieces.append("\n")
        elif node.tag == space + "tab":
            pieces.append("\t")
    return "".join(pieces)


def word(archive: zipfile.ZipFile) -> Iterator[str]:
    body = part(archive, "word/document.xml").find(WORD + "body")
    for block in body if body is not None else ():
        if block.tag == WORD + "tbl":
            for row in block.iter(WORD + "tr"):
                cells = [" ".join(paragraph(p, WORD) for p in cell.iter(WORD + "p")) for cell in row.iter(WORD + "tc")]
                yield "\t".join(cells)
        else:
            yield paragraph(block, WORD)


def slides(archive: zipfile.ZipFile) -> Iterator[str]:
    for number, name in enumerate(numbered(archive, r"ppt/slides/slide\d+\.xml"), 1):
        yield f"--- slide {number} ---"
        for block in part(archive, name).iter(DRAW + "p"):
            text = paragraph(block, DRAW)
            if text:
                yield text
        notes = f"ppt/notesSlides/notesSlide{number}.xml"
        if notes in archive.namelist():
            text = " ".join(paragraph(p, DRAW) for p in part(archive, notes).iter(DRAW + "p")).strip()
            if text:
                yield "(notes) " + text


def sheets(archive: zipfile.ZipFile) -> Iterator[str]:
    strings = []
    if "xl/sharedStrings.xml" in archive.namelist():
        strings = [
            "".join(t.text or "" for t in item.iter(SHEET + "t")) for item in part(archive, "xl/sharedStrings.xml")
        ]
    targets = {
        link.get("Id", ""): posixpath.normpath(posixpath.join("xl", link.get("Target", ""))).lstrip("/")
        for link in part(archive, "xl/_rels/workbook.xml.rels")
    }
    book = part(archive, "xl/workbook.xml")
    formats = number_formats(archive)
    from_1904 = any(node.get("date1904") in ("1", "true") for node in book.iter(SHEET + "workbookPr"))
    for sheet in book.iter(SHEET + "sheet"):
        yield f"--- sheet {sheet.get('name')} ---"
        name = targets.get(sheet.get(LINK, ""), "")
        if name.startswith("xl/xl/"):
            name = name[3:]
        if name in archive.namelist():
            for cells in rows(part(archive, name), strings, formats, 1462 if from_1904 else 0):
                yield "\t".join(cells)


def number_formats(archive: zipfile.ZipFile) -> list[str]:
    """For each style of cells the letters of its number format that tell dates and times; none for plain numbers."""
    if "xl/styles.xml" not in archive.namelist():
        return []
    styles = part(archive, "xl/styles.xml")
    letters = {number: found for found, numbers in BUILT_IN.items() for number in numbers.split()}
    for node in styles.iter(SHEET + "numFmt"):
        code = re.sub(r'"[^"]*"|[\\_*].|\[(?!h+\]|m+\]|s+\])[^]]*\]', "", node.get("formatCode", "").lower())
        letters[node.get("numFmtId", "")] = "".join(re.findall(r"[ymdhs[]", code.split(";")[0]))
    used = styles.find(SHEET + "cellXfs")
    return [letters.get(style.get("numFmtId", ""), "") for style in used] if used is not None else []


def column_of(letters: str) -> int:
    column = 0
    for letter in letters:
        column = column * 26 + ord(letter) - 64
    return column


def letters_of(column: int) -> str:
    letters = ""
    while column > 0:
        column, rest = divmod(column - 1, 26)
        letters = chr(65 + rest) + letters
    return letters


def moved(formula: str, down: int, right: int) -> str:
    """The formula as it reads in a cell that lies so far from the one it was written in."""

    def end(text: str) -> str:
        column, row = re.fullmatch(r"(\$?[A-Z]+)?(\$?[0-9]+)?", text).groups("")  # type: ignore[union-attr]
        if column and not column.startswith("$"):
            column = letters_of(column_of(column) + right)
        if row and not row.startswith("$"):
            row = str(int(row) + down) if int(row) + down > 0 else ""
        whole = bool(column) + bool(row) == bool(re.search("[A-Z]", text)) + bool(re.search("[0-9]", text))
        return column + row if whole else "#REF!"

    return REFERENCE.sub(lambda found: found[0] if found[1] else ":".join(map(end, found[0].split(":"))), formula)


class Formulas:
    """The formulas of one sheet; one that is shared over a range is written out in its first cell alone."""

    def __init__(self) -> None:
        self.shared: dict[str, tuple[str, str]] = {}

    def of(self, cell: ET.Element) -> str:
        formula = cell.find(SHEET + "f")
        if formula is None:
            return ""
        text, place = formula.text or "", cell.get("r", "")
        if formula.get("t") == "shared" and re.fullmatch("[A-Z]{1,3}[0-9]{1,7}", place):
            first, at = self.shared.setdefault(formula.get("si", ""), (text, place))
            if not text and len(first) <= MAX_FORMULA:
                (here, row), (there, first_row) = (re.findall("[A-Z]+|[0-9]+", name) for name in (place, at))
                text = moved(first, int(row) - int(first_row), column_of(here) - column_of(there))
        return "=" + (text or "…")


def rows(sheet: ET.Element, strings: list[str], formats: list[str], later: int) -> Iterator[list[str]]:
    formulas = Formulas()
    for row in sheet.iter(SHEET + "row"):
        cells: list[str] = []
        for cell in row.iter(SHEET + "c"):
            column = column_of(re.sub(r"[^A-Z]", "", cell.get("r", "")))
            cells.extend([""] * (min(column, 16384) - 1 - len(cells)))
            style = cell.get("s", "0")
            letters = formats[int(style)] if style.isdigit() and int(style) < len(formats) else ""
            text = value(cell, strings, formulas.of(cell))
            cells.append(moment(text, letters, later) if letters and cell.get("t", "n") == "n" else text)
        yield cells


def moment(number: str, letters: str, later: int) -> str:
    """Days since 1900 (`later`: days from there to the book's own first day) as a date, a time, both or a duration."""
    try:
        seconds = round(float(number) * 86400)
        if "[" in letters:
            minutes, second = divmod(abs(seconds), 60)
            return f"{'-' if seconds < 0 else ''}{minutes // 60}:{minutes % 60:02}:{second:02}"
        if seconds < 0:
            return number
        day, second = divmod(seconds, 86400)
        day += later
        # Books count a 29th of February 1900, which there was not.
        at = datetime(1899, 12, 30) + timedelta(days=day + 1 if day < 60 else day, seconds=second)
    except (ValueError, OverflowError):
        return number
    if not re.search("[yd]", letters) and re.search("[hs]", letters):
        return f"{at:%H:%M:%S}"
    return f"{at:%Y-%m-%d %H:%M:%S}" if second else f"{at:%Y-%m-%d}"


def value(cell: ET.Element, strings: list[str], formula: str) -> str:
    kind, found = cell.get("t"), cell.find(SHEET + "v")
    text = found.text or "" if found is not None else ""
    if kind == "s":
        return strings[int(text)] if text.isdigit() and int(text) < len(strings) else ""
    if kind == "inlineStr":
        return "".join(t.text or "" for t in cell.iter(SHEET + "t"))
    if formula and not text and kind != "str":
        return formula  # never calculated: programs write formulas without their values
    return {"0": "FALSE", "1": "TRUE"}.get(text, text) if kind == "b" else text


def main() -> None:
    try:
        with zipfile.ZipFile(sys.argv[1]) as archive:
            names = set(archive.namelist())
            if "word/document.xml" in names:
                lines = word(archive)
            elif "xl/workbook.xml" in names:
                lines = sheets(archive)
            elif "ppt/presentation.xml" in names:
                lines = slides(archive)
            else:
                sys.exit("it is not a docx, xlsx or pptx file")
            for line in lines:
                sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")
    except (zipfile.BadZipFile, ET.ParseError, KeyError, OSError) as error:
        sys.exit(f"the file is damaged: {error}")


main()
