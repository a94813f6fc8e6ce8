"""recalculate.py FILE.xlsx: let LibreOffice work out all formulas, keep the values in the file, list error cells."""

import os
import shutil
import subprocess
import sys
import tempfile

try:
    from openpyxl import load_workbook
except ImportError:
    print("openpyxl is missing here. Get it with: pip install openpyxl", file=sys.stderr)
    sys.exit(3)


def recalculate(path):
    """Replace the file by the same one with values; returns a list of (cell, error)."""
    if not shutil.which("soffice"):
        print("LibreOffice is not in this image (the full image has it); formulas stay uncalculated.", file=sys.stderr)
        sys.exit(3)
    with tempfile.TemporaryDirectory() as folder:
        command = ["soffice", "--headless", "--norestore", "-env:UserInstallation=file://" + folder + "/profile",
                   "--convert-to", "xlsx:Calc MS Excel 2007 XML", "--outdir", folder + "/out", path]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=180)
        shutil.move(os.path.join(folder, "out", os.path.basename(path)), path)
    book = load_workbook(path, data_only=True)
    found = []
    for sheet in book.worksheets:
        for row in sheet.iter_rows():
            found += [(sheet.title + "!" + cell.coordinate, cell.value) for cell in row if cell.data_type == "e"]
    book.close()
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    errors = recalculate(sys.argv[1])
    for place, error in errors:
        print("%s %s" % (place, error))
    print("%d error cells" % len(errors))
    sys.exit(1 if errors else 0)
