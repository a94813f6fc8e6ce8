"""How much script a page loads before it can be used."""

from __future__ import annotations

import gzip
import re

import pytest

from cubicle.http_api.assets import STATIC, Assets
from cubicle.http_api.plain_pages import FONTS, MARK, refusal

SOURCES = STATIC.parents[3] / "web"


@pytest.mark.parametrize("page", ["home", "workspace"])
def test_the_first_load_is_under_80_kb_of_script(page: str) -> None:
    entry = Assets().entry(page)
    scripts = [(STATIC / name).read_bytes() for name in (entry.script, *entry.preloads)]
    assert sum(len(gzip.compress(script)) for script in scripts) < 80_000


def test_the_pages_without_a_script_have_the_same_mark_and_fonts() -> None:
    paths = re.findall(r' d="([^"]+)"', MARK)
    for file in ("public/icon.svg", "src/ui/brand.tsx"):
        assert all(path in (SOURCES / file).read_text() for path in paths), file
    style = " ".join((SOURCES / "src/ui/base.css").read_text().split())
    assert f"--sans: {FONTS};" in style
    page = refusal("Not <a> chat", "<script>")
    assert "<title>Not &lt;a&gt; chat · Cubicle</title>" in page
    assert "<script" not in page


def test_distances_are_those_of_the_one_scale() -> None:
    """In every style sheet. Its steps are in base.css; a line of one pixel is no distance."""
    sheets = sorted(SOURCES.glob("src/*/*.css"))
    assert len(sheets) > 10
    odd = []
    for sheet in sheets:
        found = re.findall(r"[^-\w](?:(?:row-|column-)?gap|(?:padding|margin)(?:-\w+)*): ([^;]+);", sheet.read_text())
        odd += [(sheet.name, each) for each in found if re.search(r"(?<![\w.])(?!1px)[\d.]+(?:px|rem)", each)]
    assert odd == []
