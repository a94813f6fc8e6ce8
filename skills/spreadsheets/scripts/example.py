"""example.py OUT_FOLDER: a budget with inputs, formulas, formats and a chart; made, read again and checked."""

import os
import shutil
import sys

try:
    from openpyxl import Workbook, load_workbook
    from openpyxl.chart import BarChart, Reference
    from openpyxl.styles import Font, PatternFill
    from openpyxl.utils import get_column_letter
except ImportError:
    print("openpyxl is missing here. Get it with: pip install openpyxl", file=sys.stderr)
    sys.exit(3)

ROWS = [("Rent", 1200, 1200, 1250), ("Power", 140, 95, 60), ("Travel", 300, 0, 420)]


def make(path):
    book = Workbook()
    inputs = book.active
    inputs.title = "Inputs"
    inputs.append(["Tax rate", 0.19])
    inputs["B1"].number_format = "0%"

    sheet = book.create_sheet("Budget")
    sheet.append(["Item", "January", "February", "March", "Total", "Share"])
    for number, row in enumerate(ROWS, start=2):
        sheet.append([*row, "=SUM(B%d:D%d)" % (number, number), '=IF($E$5=0,"",E%d/$E$5)' % number])
    last = len(ROWS) + 2
    sheet.append(["Sum", *("=SUM(%s2:%s%d)" % (c, c, last - 1) for c in "BCDE"), "=SUM(F2:F%d)" % (last - 1)])
    sheet.append(["With tax", None, None, None, "=E%d*(1+Inputs!$B$1)" % last])

    for cell in sheet[1]:
        cell.font = Font(bold=True, color="FFFFFF")
        cell.fill = PatternFill("solid", fgColor="305496")
    for cell in sheet[last]:
        cell.font = Font(bold=True)
    for row in sheet.iter_rows(min_row=2, min_col=2, max_col=5):
        for cell in row:
            cell.number_format = "#,##0.00"
    for row in range(2, last + 1):
        sheet.cell(row, 6).number_format = "0.0%"
    for column in range(1, 7):
        sheet.column_dimensions[get_column_letter(column)].width = 14
    sheet.freeze_panes = "B2"

    chart = BarChart()
    chart.title = "Cost by month"
    chart.add_data(Reference(sheet, min_col=2, max_col=4, min_row=1, max_row=last - 1), titles_from_data=True)
    chart.set_categories(Reference(sheet, min_col=1, min_row=2, max_row=last - 1))
    sheet.add_chart(chart, "H2")
    book.save(path)


def main(folder):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "budget.xlsx")
    make(path)
    book = load_workbook(path)
    assert book["Budget"]["E5"].value == "=SUM(E2:E4)", book["Budget"]["E5"].value
    assert book["Budget"].freeze_panes == "B2"
    if shutil.which("soffice"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
        from recalculate import recalculate

        assert recalculate(path) == []
        total = load_workbook(path, data_only=True)["Budget"]["E5"].value
        assert total == sum(sum(row[1:]) for row in ROWS), total
    print("ok", path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "spreadsheets-example")
