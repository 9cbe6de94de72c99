"""Rules document-line and document-size: documents that fit an editor's window. Rule recipe: what a
recipe says of a file is there, and its sample of a table's row has as many parts as the table's rows.

Tables, code blocks and the targets of links may be wider: they cannot be broken.
"""
import re

from tree import Finding, blank_out

COLUMNS = 100
SIZES = {"docs/PERFORMANCE.md": 150}
# Records of their day, which stay as they were written.
RECORDS = ("docs/measurements/",)
# Its tables say in the first column which files to change, and in the second what.
RECIPES = "docs/EXTENDING.md"
QUOTED = re.compile(r"`([^`]+)`")
LINK_TARGET = re.compile(r"(?<=\])\([^()\s]*\)|\bhttps?://\S+")


def is_document(path):
    return path.endswith(".md") and (path.startswith("docs/") and not path.startswith(RECORDS) or path == "README.md")


def prose(text):
    """(line number, line) of each line that is neither in a table nor in a code block."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (fence is None or line.strip() == fence):
            fence = None if fence else mark.group(1)
        elif fence is None and not line.lstrip().startswith("|"):
            yield number, line


def check_document(path, text):
    if not is_document(path):
        return
    for number, line in prose(text):
        columns = len(LINK_TARGET.sub("", line))
        if columns > COLUMNS:
            yield Finding(path, number, "document-line", f"{columns} columns, expected at most {COLUMNS}")
    lines = text.count("\n")
    if lines > SIZES.get(path, lines):
        yield Finding(path, lines, "document-size", f"{lines} lines, expected at most {SIZES[path]}")


def files_of(root, cell):
    """The files that a recipe's first cell names; a name alone lies where the one before it does."""
    folder, files = "", []
    for name in QUOTED.findall(cell):
        folder = name.rpartition("/")[0] or folder
        path = root / folder / name.rpartition("/")[2]
        if path.is_file():
            files.append(path)
    return files


def parts_of(initializer):
    """The number of parts of `{a, {b, c}, d}`, which is 3, and the end of it; comments and literals are blank."""
    depth, parts, filled = 0, 0, False
    for end, char in enumerate(initializer):
        if char in ")}]":
            depth -= 1
        if depth == 0 and char == "}":
            return parts + filled, end + 1
        if depth == 1 and char == ",":
            parts, filled = parts + 1, False
        elif depth > 0 and not char.isspace():
            filled = True
        if char in "({[":
            depth += 1
    return parts, len(initializer)


def row_sizes(source, table):
    """The numbers of parts that the rows of `table` have in `source`; empty when it is not defined there."""
    code = blank_out(source)
    begin = re.search(rf"\b{table}\[\w*\]\s*=\s*{{", code)
    sizes, at = set(), begin.end() if begin else len(code)
    while row := re.match(r"[\s,]*(?={)", code[at:]):
        size, length = parts_of(code[at + row.end():])
        sizes.add(size)
        at += row.end() + length
    return sizes


def check_samples(root, text):
    """Code blocks that are a row of a table which an earlier row of their recipe names, and have other parts."""
    sizes, sample = {}, None
    for number, line in enumerate(text.splitlines(), 1):
        cells = line.split("|")
        if line.startswith("## "):
            sizes = {}
        elif len(cells) == 4:
            for table in re.findall(r"`(k[A-Z]\w*)`", cells[2]):
                for file in files_of(root, cells[1]):
                    sizes.setdefault(table, set()).update(row_sizes(file.read_text(encoding="utf-8"), table))
        elif line.startswith("```"):
            for table, known in sizes.items() if sample and sample[1].lstrip().startswith("{") else ():
                parts, _ = parts_of(blank_out(sample[1]).lstrip())
                if known and parts not in known:
                    yield Finding(RECIPES, sample[0], "recipe",
                                  f"the sample has {parts} parts, the rows of {table} have {sorted(known)}")
            sample = (number + 1, "") if line == "```cpp" else None
        elif sample:
            sample = (sample[0], sample[1] + line + "\n")


def check_recipes(root, path, text):
    """Names of code (an upper-case letter in them) that a row gives, and none of its files has."""
    if path != RECIPES:
        return
    yield from check_samples(root, text)
    for number, line in enumerate(text.splitlines(), 1):
        cells = line.split("|")
        files = files_of(root, cells[1]) if len(cells) == 4 else []
        known = set().union(*(re.findall(r"\w+", file.read_text(encoding="utf-8")) for file in files))
        for name in QUOTED.findall(cells[2]) if files else ():
            if re.fullmatch(r"[A-Za-z_]*[A-Z]\w*", name) and name not in known:
                yield Finding(path, number, "recipe", f"{name} occurs in none of the row's files")
