"""example.py OUT_FOLDER: two PDFs from HTML, merged, split, searched."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from html_to_pdf import convert

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>@page {{ size: A4; margin: 20mm }} body {{ font-family: "DejaVu Sans", sans-serif }}
h2 {{ break-before: page }}</style>
<h1>{title}</h1><p>First page of {title}, with an accent: café.</p><h2>Annex</h2><p>Second page.</p></html>"""


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=60).stdout.decode()


def main(folder):
    os.makedirs(folder, exist_ok=True)
    parts = []
    for title in ("Alpha", "Beta"):
        source = os.path.join(folder, title + ".html")
        with open(source, "w", encoding="utf-8") as file:
            file.write(PAGE.format(title=title))
        parts.append(os.path.join(folder, title + ".pdf"))
        convert(source, parts[-1])
    whole = os.path.join(folder, "whole.pdf")
    run("pdfunite", *parts, whole)
    assert "Pages:           4" in run("pdfinfo", whole), run("pdfinfo", whole)
    text = run("pdftotext", "-layout", whole, "-")
    assert "First page of Alpha, with an accent: café." in text and "First page of Beta" in text, text
    run("pdfseparate", whole, os.path.join(folder, "page-%d.pdf"))
    assert "Beta" in run("pdftotext", os.path.join(folder, "page-3.pdf"), "-")
    run("pdftoppm", "-r", "40", "-png", whole, os.path.join(folder, "look"))
    assert len([n for n in os.listdir(folder) if n.startswith("look")]) == 4
    print("ok", whole)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "pdf-example")
