#!/usr/bin/env python3
"""Fills the measured cells of the tables in docs/GPU.md from the JSON of gpu_bench.

  fill_table.py RESULTS.json [PAGE]        PAGE: default docs/GPU.md of this tree

Only lines between the two marks change. A row's first cell names a result of the benchmark (gpu_bench --list), and the
heading of each other cell says what the cell holds: "µs", "TFLOP/s", "GB/s" or "% of copy" of that result, or
with words and a comma before it ("cuBLASLt, µs") of the result whose name has these words behind it. What was not
measured leaves its cell empty. A row that no result belongs to, and a heading that says nothing known, are errors.
"""
import json
import os
import re
import sys

BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"
PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "GPU.md")
FIELDS = {"µs": ("us", "{:.1f}"), "TFLOP/s": ("tflops", "{:.0f}"), "GB/s": ("gbs", "{:.0f}"),
          "% of copy": ("of_copy", "{:.0f}")}


class TableError(Exception):
    """Names what does not fit."""


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def split_page(page):
    """The page before the tables, the tables, and what follows."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise TableError(f"the page has {page.count(BEGIN)} and {page.count(END)} of the marks {BEGIN} and {END}, "
                         "expected one of each")
    before, rest = page.split(BEGIN)
    tables, after = rest.split(END)
    return before, tables, after


def case_of(name, heading):
    """The case and the field that a cell of the row `name` under `heading` shows."""
    words, _, unit = heading.rpartition(", ")
    if unit not in FIELDS:
        raise TableError(f"column `{heading}`: expected it to end with one of {', '.join(FIELDS)}")
    return (f"{name} {words}" if words else name), FIELDS[unit]


def fill_row(cells, headings, rows):
    filled = [cells[0]]
    found = False
    for heading in headings[1:]:
        case, (field, form) = case_of(cells[0], heading)
        value = rows.get(case, {}).get(field)
        found = found or value is not None
        filled.append("" if value is None else form.format(value))
    if not found:
        raise TableError(f"row `{cells[0]}`: there is no result of this name")
    return "| " + " | ".join(filled) + " |"


def fill(page, results):
    """The page with the results in its tables."""
    before, tables, after = split_page(page)
    rows = {row["name"]: row for row in results["rows"]}
    lines, headings = [], None
    for line in tables.splitlines():
        if line.startswith("Measured"):
            line = f"Measured on {results['device']} ({results['software']}), kernels `{results['kernels']}`."
        elif not line.startswith("|"):
            headings = None
        elif headings is None:
            headings = cells_of(line)
        elif not re.fullmatch(r"[|\-: ]+", line):
            line = fill_row(cells_of(line), headings, rows)
        lines.append(line)
    return before + BEGIN + "\n".join(lines) + "\n" + END + after


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    path = sys.argv[2] if len(sys.argv) == 3 else os.path.normpath(PAGE)
    with open(sys.argv[1], encoding="utf-8") as file:
        results = json.load(file)
    with open(path, encoding="utf-8") as file:
        page = file.read()
    try:
        page = fill(page, results)
    except TableError as error:
        sys.exit(f"{path}: {error}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)


if __name__ == "__main__":
    main()
