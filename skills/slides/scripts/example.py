"""example.py OUT_FOLDER: a 16:9 deck with title, bullets and notes, native chart and table; made and checked."""

import os
import sys

try:
    from pptx import Presentation
    from pptx.chart.data import CategoryChartData
    from pptx.enum.chart import XL_CHART_TYPE, XL_LEGEND_POSITION
    from pptx.util import Inches, Pt
except ImportError:
    print("python-pptx is missing here. Get it with: pip install python-pptx", file=sys.stderr)
    sys.exit(3)

TITLE, TITLE_AND_CONTENT, TITLE_ONLY = 0, 1, 5
MARGIN = Inches(0.7)


def add_slide(deck, layout, title):
    """A slide whose placeholders fit 16:9: the built-in template is drawn for 4:3."""
    slide = deck.slides.add_slide(deck.slide_layouts[layout])
    slide.shapes.title.text = title
    if layout != TITLE:
        width = deck.slide_width - 2 * MARGIN
        for placeholder, top, height in zip(slide.placeholders, (0.4, 1.7), (1.1, 5.2)):
            placeholder.left, placeholder.width = MARGIN, width
            placeholder.top, placeholder.height = Inches(top), Inches(height)
        slide.shapes.title.text_frame.paragraphs[0].runs[0].font.size = Pt(32)
    return slide


def make(path):
    deck = Presentation()
    deck.slide_width, deck.slide_height = Inches(13.333), Inches(7.5)

    first = add_slide(deck, TITLE, "The move paid off in one year")
    for placeholder, top in zip(first.placeholders, (2.2, 4.2)):
        placeholder.left, placeholder.width = MARGIN, deck.slide_width - 2 * MARGIN
        placeholder.top, placeholder.height = Inches(top), Inches(1.6)
    first.placeholders[1].text = "Review of the year"

    bullets = add_slide(deck, TITLE_AND_CONTENT, "Three things changed")
    frame = bullets.placeholders[1].text_frame
    for index, text in enumerate(("One team instead of three", "Orders within a day", "Half the stock")):
        paragraph = frame.paragraphs[0] if index == 0 else frame.add_paragraph()
        paragraph.text = text
        paragraph.font.size = Pt(24)
    bullets.notes_slide.notes_text_frame.text = "Tell the story of the first week."

    charted = add_slide(deck, TITLE_ONLY, "Costs fell by 12 % from spring to autumn")
    data = CategoryChartData()
    data.categories = ["Spring", "Summer", "Autumn"]
    data.add_series("Cost in thousands", (50, 47, 44))
    area = (MARGIN, Inches(1.7), deck.slide_width - 2 * MARGIN, Inches(5.2))
    chart = charted.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, *area, data).chart
    chart.has_legend = True
    chart.legend.position = XL_LEGEND_POSITION.BOTTOM
    chart.legend.include_in_layout = False

    tabled = add_slide(deck, TITLE_ONLY, "Next year has two goals")
    rows = [("Goal", "Until"), ("Open the second site", "June"), ("Train every team", "October")]
    table = tabled.shapes.add_table(3, 2, MARGIN, Inches(1.9), deck.slide_width - 2 * MARGIN, Inches(2)).table
    for row, cells in enumerate(rows):
        for column, text in enumerate(cells):
            table.cell(row, column).text = text
    deck.save(path)


def main(folder):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "review.pptx")
    make(path)
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from check_deck import problems

    assert problems(path) == [], problems(path)
    deck = Presentation(path)
    assert len(deck.slides) == 4
    assert deck.slides[1].notes_slide.notes_text_frame.text.startswith("Tell")
    assert any(shape.has_chart for shape in deck.slides[2].shapes)
    print("ok", path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "slides-example")
