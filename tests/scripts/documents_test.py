#!/usr/bin/env python3
"""Goal: a document never points at a file that is not there.

Checks links, and paths in backticks that end like a source file, in every committed Markdown file.
"""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = ("h", "cc", "proto", "py", "sh", "yaml", "md", "txt", "svg")


def documents():
    yield ROOT / "README.md"
    for folder in ("docs", "deploy", "tests"):
        yield from sorted((ROOT / folder).rglob("*.md"))


def references(text):
    """Paths that a document names, without anchors and addresses."""
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            yield target.strip()
    for path in re.findall(r"`([A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)+)`", text):
        if path.rsplit(".", 1)[-1] in SUFFIXES:
            yield path


class DocumentsTest(unittest.TestCase):
    def test_every_reference_exists(self):
        count = 0
        for document in documents():
            for path in references(document.read_text(encoding="utf-8")):
                count += 1
                places = (document.parent / path, ROOT / path)
                with self.subTest(document=str(document.relative_to(ROOT)), path=path):
                    self.assertTrue(any(place.exists() for place in places))
        self.assertGreater(count, 30)


if __name__ == "__main__":
    unittest.main()
