"""inspect_book.py FILE.xlsx: what is in a workbook, sheet by sheet."""

import sys

try:
    from openpyxl import load_workbook
except ImportError:
    print("openpyxl is missing here. Get it with: pip install openpyxl", file=sys.stderr)
    sys.exit(3)

ERRORS = ("#REF!", "#DIV/0!", "#VALUE!", "#NAME?", "#N/A", "#NUM!", "#NULL!")


def main(path):
    book = load_workbook(path)
    for sheet in book.worksheets:
        formulas, errors = [], []
        for row in sheet.iter_rows():
            for cell in row:
                if cell.data_type == "f":
                    formulas.append(cell)
                elif cell.value in ERRORS:
                    errors.append(cell)
        print("%s: %s, %d formulas, %d errors" % (sheet.title, sheet.dimensions, len(formulas), len(errors)))
        header = [str(cell.value) for cell in sheet[1] if cell.value is not None] if sheet.max_row else []
        print("  header: %s" % " | ".join(header[:20]))
        for cell in formulas[:5]:
            print("  %s %s" % (cell.coordinate, cell.value))
        for cell in errors[:20]:
            print("  error %s %s" % (cell.coordinate, cell.value))
    book.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
