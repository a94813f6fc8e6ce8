"""csv_sql.py "select …" FILE.csv…: SQL over CSV files; each is a table named after its file. Prints CSV."""

import csv
import os
import re
import sqlite3
import sys


def column_type(values):
    """A column is a number only if every value is one, and none has a leading zero that would be lost."""
    whole = re.compile(r"-?(?:0|[1-9]\d{0,17})")
    real = re.compile(r"-?(?:0|[1-9]\d*)\.\d+(?:[eE][+-]?\d+)?")
    filled = [v for v in values if v != ""]
    if filled and all(whole.fullmatch(v) for v in filled):
        return "INTEGER"
    if filled and all(whole.fullmatch(v) or real.fullmatch(v) for v in filled):
        return "REAL"
    return "TEXT"


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


def load(database, path):
    table = re.sub(r"\W+", "_", os.path.splitext(os.path.basename(path))[0])
    with open(path, newline="", encoding="utf-8-sig") as file:
        sample = file.read(64 * 1024)
        file.seek(0)
        try:
            dialect = csv.Sniffer().sniff(sample, delimiters=",;\t|")
        except csv.Error:
            dialect = csv.excel
        reader = csv.reader(file, dialect)
        header = [name.strip() or "column_%d" % (i + 1) for i, name in enumerate(next(reader))]
        database.execute("create table %s (%s)" % (quoted(table), ", ".join(quoted(h) + " TEXT" for h in header)))
        fitted = ((row + [""] * len(header))[: len(header)] for row in reader if row)
        places = ",".join("?" * len(header))
        database.executemany("insert into %s values (%s)" % (quoted(table), places), fitted)
    types = []
    for name in header:
        values = (row[0] for row in database.execute("select distinct %s from %s" % (quoted(name), quoted(table))))
        types.append(column_type(list(values)))
    typed = quoted(table + " typed")
    database.execute("create table %s (%s)" % (typed, ", ".join(quoted(n) + " " + t for n, t in zip(header, types))))
    filled = ", ".join("nullif(%s, '')" % quoted(name) for name in header)
    database.execute("insert into %s select %s from %s" % (typed, filled, quoted(table)))
    database.execute("drop table %s" % quoted(table))
    database.execute("alter table %s rename to %s" % (typed, quoted(table)))


def query(sql, paths):
    """(column names, rows). A file on disk holds the tables, so that large ones fit."""
    database = sqlite3.connect("")
    for path in paths:
        load(database, path)
    cursor = database.execute(sql)
    return [d[0] for d in cursor.description], cursor.fetchall()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    try:
        names, rows = query(sys.argv[1], sys.argv[2:])
    except sqlite3.Error as error:
        sys.exit("SQL: %s" % error)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
