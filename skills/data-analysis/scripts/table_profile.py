"""table_profile.py FILE.csv [--json]: what each column of a table holds. Reads line by line."""

import csv
import json
import math
import re
import sys
from collections import Counter

DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
TEXT_NUMBER = re.compile(r"[+-]?[€$£]?\s?\d{1,3}(?:[.,' ]\d{3})+(?:[.,]\d+)?\s?[%€$£]?|[+-]?\d+,\d+|[+-]?\d+(?:\.\d+)?\s?[%€$£]")
MISSING = {"", "na", "n/a", "nan", "null", "none", "-"}
MAX_DISTINCT = 10_000


class Column:
    def __init__(self, name):
        self.name, self.kinds, self.values = name, Counter(), Counter()
        self.missing = self.count = 0
        self.total, self.low, self.high = 0.0, math.inf, -math.inf
        self.more = self.zeros = False

    def add(self, text):
        text = text.strip()
        if text.lower() in MISSING:
            self.missing += 1
            return
        kind = "text"
        if NUMBER.fullmatch(text):
            kind = "number"
            value = float(text)
            self.total, self.low, self.high = self.total + value, min(self.low, value), max(self.high, value)
            self.zeros |= len(text) > 1 and text[0] == "0" and text[1].isdigit()
        elif DATE.fullmatch(text):
            kind = "date"
        elif TEXT_NUMBER.fullmatch(text):
            kind = "number as text"
        self.count += 1
        self.kinds[kind] += 1
        if text in self.values or len(self.values) < MAX_DISTINCT:
            self.values[text] += 1
        else:
            self.more = True

    def report(self):
        kind = self.kinds.most_common(1)[0][0] if self.kinds else "empty"
        facts = {"column": self.name, "type": kind, "missing": self.missing,
                 "distinct": "%d%s" % (len(self.values), "+" if self.more else "")}
        if kind == "number":
            facts.update(min=self.low, max=self.high, mean=round(self.total / self.kinds["number"], 6))
        facts["frequent"] = [list(pair) for pair in self.values.most_common(3)]
        notes = []
        if len(self.kinds) > 1:
            notes.append("mixed: " + ", ".join("%s %d" % pair for pair in self.kinds.most_common()))
        if kind == "number as text":
            notes.append("numbers with separators or units: convert before use")
        if self.zeros:
            notes.append("leading zeros: read as text")
        return {**facts, "notes": notes}


def profile(path):
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        sample = file.read(64 * 1024)
        file.seek(0)
        try:
            dialect = csv.Sniffer().sniff(sample, delimiters=",;\t|")
        except csv.Error:
            dialect = csv.excel
        reader = csv.reader(file, dialect)
        columns = [Column(name.strip()) for name in next(reader, [])]
        rows = ragged = repeated = 0
        seen = set()
        for row in reader:
            rows += 1
            ragged += len(row) != len(columns)
            key = hash(tuple(row))
            repeated += key in seen
            if len(seen) < 1_000_000:
                seen.add(key)
            for column, text in zip(columns, row):
                column.add(text)
    return {"rows": rows, "columns": [column.report() for column in columns], "repeated_rows": repeated,
            "ragged_rows": ragged, "separator": dialect.delimiter}


def main(arguments):
    found = profile(arguments[0])
    if "--json" in arguments:
        print(json.dumps(found, ensure_ascii=False, indent=1))
        return
    print("%(rows)d rows, separator %(separator)r, %(repeated_rows)d repeated, %(ragged_rows)d ragged" % found)
    for column in found["columns"]:
        notes = column.pop("notes")
        print("- " + ", ".join("%s: %s" % pair for pair in column.items()))
        for note in notes:
            print("    ! " + note)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
