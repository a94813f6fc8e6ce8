"""example.py OUT_FOLDER: a report with contents, headings, table and page numbers; made, changed and checked."""

import os
import shutil
import subprocess
import sys

try:
    from docx import Document
    from docx.enum.text import WD_ALIGN_PARAGRAPH
    from docx.oxml import OxmlElement
    from docx.oxml.ns import qn
    from docx.shared import Cm
except ImportError:
    print("python-docx is missing here. Get it with: pip install python-docx", file=sys.stderr)
    sys.exit(3)

FIGURES = [("North", 120), ("South", 95), ("West", 143)]


def add_field(paragraph, code, placeholder=""):
    """A field such as PAGE or TOC, which the word processor fills in."""
    for kind, text in (("begin", None), (None, code), ("separate", None), ("text", placeholder), ("end", None)):
        run = paragraph.add_run()
        if kind == "text":
            run.text = text
        elif kind is None:
            element = OxmlElement("w:instrText")
            element.set(qn("xml:space"), "preserve")
            element.text = text
            run._r.append(element)
        else:
            element = OxmlElement("w:fldChar")
            element.set(qn("w:fldCharType"), kind)
            run._r.append(element)


def repeat_header(table):
    """The first row comes again at the top of every page."""
    properties = table.rows[0]._tr.get_or_add_trPr()
    mark = OxmlElement("w:tblHeader")
    mark.set(qn("w:val"), "true")
    properties.append(mark)


def make(path):
    document = Document()
    document.core_properties.title = "Sales report"
    section = document.sections[0]
    section.page_width, section.page_height = Cm(21), Cm(29.7)
    document.add_heading("Sales report", level=0)
    add_field(document.add_paragraph(), r'TOC \o "1-2" \h \z \u', "Contents: update this field")
    document.add_heading("Summary", level=1)
    document.add_paragraph("The West leads. The South needs a plan by DATE.")
    document.add_heading("Figures", level=1)
    table = document.add_table(rows=1, cols=2, style="Light Grid Accent 1")
    table.rows[0].cells[0].text, table.rows[0].cells[1].text = "Region", "Units"
    repeat_header(table)
    for region, units in FIGURES:
        cells = table.add_row().cells
        cells[0].text = region
        cells[1].paragraphs[0].add_run(str(units))
        cells[1].paragraphs[0].alignment = WD_ALIGN_PARAGRAPH.RIGHT
    for step in ("Call the ten largest customers", "Review prices"):
        document.add_paragraph(step, style="List Number")
    footer = section.footer.paragraphs[0]
    footer.alignment = WD_ALIGN_PARAGRAPH.CENTER
    add_field(footer, "PAGE")
    document.save(path)


def replace(path, old, new):
    """Replace text in every run, with its formatting kept; returns how many runs changed."""
    document = Document(path)
    runs = [run for paragraph in document.paragraphs for run in paragraph.runs if old in run.text]
    for run in runs:
        run.text = run.text.replace(old, new)
    document.save(path)
    return len(runs)


def main(folder):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "report.docx")
    make(path)
    assert replace(path, "DATE", "1 March") == 1
    again = Document(path)
    headings = [p.text for p in again.paragraphs if p.style.name.startswith("Heading")]
    assert headings == ["Summary", "Figures"], headings
    assert any("1 March" in p.text for p in again.paragraphs)
    assert [row.cells[0].text for row in again.tables[0].rows] == ["Region", "North", "South", "West"]
    if shutil.which("soffice"):
        pages = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pages.sh")
        subprocess.run(["bash", pages, path, os.path.join(folder, "pages")], check=True, timeout=240)
    print("ok", path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "documents-example")
