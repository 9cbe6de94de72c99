"""Rules document-line and document-size: documents that fit an editor's window. Rule recipe: what a
recipe says of a file is there.

Tables, code blocks and the targets of links may be wider: they cannot be broken.
"""
import re

from tree import Finding

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


def check_recipes(root, path, text):
    """Names of code (an upper-case letter in them) that a row gives, and none of its files has."""
    if path != RECIPES:
        return
    for number, line in enumerate(text.splitlines(), 1):
        cells = line.split("|")
        files = files_of(root, cells[1]) if len(cells) == 4 else []
        known = set().union(*(re.findall(r"\w+", file.read_text(encoding="utf-8")) for file in files))
        for name in QUOTED.findall(cells[2]) if files else ():
            if re.fullmatch(r"[A-Za-z_]*[A-Z]\w*", name) and name not in known:
                yield Finding(path, number, "recipe", f"{name} occurs in none of the row's files")
