"""Rules document-line and document-size: documents that fit an editor's window.

Tables, code blocks and the targets of links may be wider: they cannot be broken.
"""
import re

from tree import Finding

COLUMNS = 100
SIZES = {"docs/PERFORMANCE.md": 150}
# Records of their day, which stay as they were written.
RECORDS = ("docs/measurements/",)
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
