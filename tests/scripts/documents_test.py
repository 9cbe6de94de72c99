#!/usr/bin/env python3
"""Goal: a document never points at a file that is not there, and its pictures are current.

Checks every committed Markdown file: links and their anchors, names of metrics, and paths, file
names, test names, members of classes and fields of messages in backquotes. Checks the pages that comments of the code
name, and holds docs/pictures to scripts/draw_diagrams.py.
"""

import importlib.util
import re
import sys
import unittest
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = ("h", "cc", "cu", "cuh", "proto", "py", "sh", "yaml", "md", "txt", "svg", "inc")
# A name without a folder, such as `ucx_worker.cc`, is a file of that name anywhere in these.
FOLDERS = ("cli", "cmake", "common", "decode_node", "deploy", "docs", "kernels", "prefill_node", "proto",
           "router", "scripts", "sim", "tests")
# Its tests name pages of trees that they make.
TIDY = ROOT / "tests" / "tidy"
# Calls of gRPC services, which look like tests.
SERVICES = ("Fleet.Join", "Tandem.Generate")
# Records of their day: they may name files and symbols that have moved since.
HISTORY = ROOT / "docs" / "measurements"
# Decisions of their day: they may name members of classes that have changed since.
DECISIONS = ROOT / "docs" / "adr"


def documents():
    yield ROOT / "README.md"
    for folder in ("docs", "deploy", "tests"):
        yield from sorted((ROOT / folder).rglob("*.md"))


def without_code_blocks(text):
    """The text with fenced blocks emptied; line numbers stay."""
    lines, fenced = [], False
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        lines.append("" if fence or fenced else line)
        fenced ^= fence
    return "\n".join(lines)


def links(text):
    """(path, anchor) of each link into the repository; the path is empty for a link into the page."""
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield path, anchor


def quoted_paths(text):
    """Paths in backquotes that end like a source file, or that name a folder of the tree."""
    for path in re.findall(r"`([A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)+/?)`", text):
        if path.rsplit(".", 1)[-1] in SUFFIXES or path.split("/")[0] in FOLDERS:
            yield path


def quoted_names(text):
    """File names in backquotes without a folder."""
    for name in re.findall(r"`([a-z0-9_]+\.(?:h|cc|cu|proto))`", text):
        yield name


def quoted_members(text):
    """(class, member) of each `Class::Member` in backquotes, with or without arguments."""
    return re.findall(r"`(?:\w+::)*([A-Z]\w*)::(\w+)(?:\([^`]*\))?`", text)


def quoted_fields(text):
    """(message, field) of each "`Message` with `field`"."""
    return re.findall(r"`([A-Z]\w+)` with `([a-z]\w*)`", text)


def members_of_classes():
    """For each class, structure and enumeration of the sources, the names that its body declares or that
    `Class::` precedes."""
    members = {}
    for source in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")):
        if source.suffix not in (".h", ".cc", ".cu", ".cuh"):
            continue
        text = re.sub(r"//.*", "", source.read_text(encoding="utf-8", errors="replace"))
        for name, member in re.findall(r"\b([A-Z]\w*)::(~?\w+)", text):
            members.setdefault(name, set()).add(member)
        # A body ends on its own line, or with the brace that stands below the class's first letter.
        for _, name, body in re.findall(
                r"(?m)^( *)(?:class|struct|enum class|enum)\s+(?:\w+::)*([A-Z]\w*)\b[^;{}()]*"
                r"\{([^\n]*\};|[^\0]*?^\1\})", text):
            members.setdefault(name, set()).update(re.findall(r"\b[A-Za-z]\w*\b", body))
    return members


def fields_of_messages():
    """For each message of proto/, the names of its fields."""
    fields, message = {}, None
    for source in (ROOT / "proto").rglob("*.proto"):
        for line in source.read_text(encoding="utf-8").split("\n"):
            if opening := re.match(r"\s*message (\w+)", line):
                message = fields.setdefault(opening[1], set())
            elif field := re.match(r"\s*[\w.<>, ]+ ([a-z]\w*) = \d+", line):
                message.add(field[1])
    return fields


def anchors(document):
    """GitHub's anchors of a page's headings."""
    text = without_code_blocks(document.read_text(encoding="utf-8"))
    for heading in re.findall(r"(?m)^#+ (.*)$", text):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        yield re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


class DocumentsTest(unittest.TestCase):
    def each_document(self):
        for document in documents():
            text = without_code_blocks(document.read_text(encoding="utf-8"))
            with self.subTest(document=str(document.relative_to(ROOT))):
                yield document, text

    def test_every_link_resolves(self):
        count = 0
        for document, text in self.each_document():
            for path, anchor in links(text):
                count += 1
                target = (document.parent / path).resolve() if path else document
                with self.subTest(link=path, anchor=anchor):
                    self.assertTrue(target.exists())
                    if anchor and target.suffix == ".md":
                        self.assertIn(anchor, set(anchors(target)))
        self.assertGreater(count, 30)

    def test_every_quoted_path_exists(self):
        count = 0
        for document, text in self.each_document():
            if HISTORY in document.parents:
                continue
            for path in quoted_paths(text):
                count += 1
                with self.subTest(path=path):
                    self.assertTrue(any((place / path).exists() for place in (document.parent, ROOT)))
        self.assertGreater(count, 30)

    def test_every_quoted_file_name_exists(self):
        names = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")}
        for document, text in self.each_document():
            if HISTORY in document.parents:
                continue
            for name in quoted_names(text):
                with self.subTest(name=name):
                    self.assertIn(name, names)

    def test_every_quoted_test_exists(self):
        cases = set()
        for source in (ROOT / "tests").rglob("*.cc"):
            text = source.read_text(encoding="utf-8", errors="replace")
            for suite, case in re.findall(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)", text):
                cases |= {f"{suite}.{case}", f"{suite}.*"}
        for document, text in self.each_document():
            if HISTORY in document.parents:
                continue
            for name in re.findall(r"`([A-Z]\w+\.(?:[A-Z][a-z]\w+|\*))`", text):
                with self.subTest(test=name):
                    self.assertTrue(name in cases or name in SERVICES)

    def test_every_quoted_member_exists(self):
        members, count = members_of_classes(), 0
        for document, text in self.each_document():
            if HISTORY in document.parents or DECISIONS in document.parents:
                continue
            for name, member in quoted_members(text):
                count += 1
                with self.subTest(member=f"{name}::{member}"):
                    self.assertIn(member, members.get(name, ()))
        self.assertGreater(count, 10)

    def test_every_quoted_field_exists(self):
        fields, count = fields_of_messages(), 0
        for document, text in self.each_document():
            for message, field in quoted_fields(text):
                count += 1
                with self.subTest(field=f"{message}.{field}"):
                    self.assertIn(field, fields.get(message, ()))
        self.assertGreater(count, 1)

    def test_every_metric_exists(self):
        page = "".join(source.read_text(encoding="utf-8") for source in (ROOT / "router" / "front_end").rglob("*.cc"))
        metrics, count = set(re.findall(r'"((?:tandem_|vllm:)\w+)"', page)), 0
        for document in documents():
            if HISTORY in document.parents or DECISIONS in document.parents:
                continue
            text = document.read_text(encoding="utf-8").replace("tandem_test(", "")
            for metric in re.findall(r"\btandem_\w*[a-z]\b(?!\*)", text):
                count += 1
                with self.subTest(document=str(document.relative_to(ROOT)), metric=metric):
                    self.assertIn(re.sub(r"_(bucket|sum|count)$", "", metric), metrics)
        self.assertGreater(count, 40)

    def test_every_page_that_the_code_names_exists(self):
        for folder in FOLDERS:
            for source in (ROOT / folder).rglob("*.*"):
                if TIDY in source.parents or source.suffix not in (".h", ".cc", ".cu", ".py", ".sh", ".proto", ".txt", ".yaml"):
                    continue
                for page in re.findall(r"\bdocs/[\w./-]+\.(?:md|svg)\b", source.read_text(errors="replace")):
                    with self.subTest(source=str(source.relative_to(ROOT)), page=page):
                        self.assertTrue((ROOT / page).exists())

    def test_pages_of_the_documents_folder_are_found(self):
        linked = set()
        for document, text in self.each_document():
            linked |= {(document.parent / path).resolve() for path, _ in links(text) if path}
        for page in sorted((ROOT / "docs").rglob("*.md")):
            with self.subTest(page=str(page.relative_to(ROOT))):
                self.assertIn(page, linked)


LIFE = ROOT / "docs" / "LIFE_OF_A_REQUEST.md"


class LifeOfARequestTest(unittest.TestCase):
    """A reader who opens only files that earlier ones name finds each file of the page."""

    def test_each_file_is_named_by_an_earlier_one(self):
        modules = list(dict.fromkeys(path.with_suffix("") for path in self.files_in_order()))
        self.assertGreater(len(modules), 100)
        before, included = set(), set()
        for module in modules:
            if module.name != "main":
                with self.subTest(file=str(module)):
                    self.assertTrue(module in included or before & set(self.implemented_by(module)),
                                    "no file that the page names before includes it or declares what it implements")
            before.add(module)
            included |= set(self.included_by(module))

    def files_in_order(self):
        """Sources in backquotes; a name without a folder is a sibling of the path before it, or was given before."""
        paths = []
        for quoted in re.findall(r"`([\w./-]+\.(?:h|cc))`", LIFE.read_text(encoding="utf-8")):
            path = Path(quoted)
            if "/" not in quoted:
                sibling = paths[-1].parent / quoted
                path = sibling if (ROOT / sibling).exists() else next(p for p in paths if p.name == quoted)
            paths.append(path)
        return paths

    def included_by(self, module):
        for source in (ROOT / module.parent).glob(f"{module.name}.*"):
            for included in re.findall(r'#include "([^"]+)"', source.read_text(encoding="utf-8")):
                yield Path(included).with_suffix("")

    def implemented_by(self, module):
        """The headers that the opening comment of a module's source names."""
        source = ROOT / module.with_suffix(".cc")
        opening = source.read_text(encoding="utf-8").partition("#include")[0] if source.exists() else ""
        for header in re.findall(r"[\w/]+\.h\b", opening):
            yield Path(header).with_suffix("")


class PicturesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        script = ROOT / "scripts" / "draw_diagrams.py"
        spec = importlib.util.spec_from_file_location("draw_diagrams", script)
        cls.diagrams = importlib.util.module_from_spec(spec)
        sys.dont_write_bytecode = True
        spec.loader.exec_module(cls.diagrams)

    def test_are_what_the_script_draws(self):
        drawn = dict(self.diagrams.outputs())
        for path, content in drawn.items():
            with self.subTest(picture=path.name):
                self.assertEqual(path.read_text(encoding="utf-8"), content)
        committed = set((ROOT / "docs" / "pictures").glob("*.svg"))
        self.assertEqual(committed, set(drawn))

    def test_have_a_title_and_a_description(self):
        space = "{http://www.w3.org/2000/svg}"
        for path, content in self.diagrams.outputs():
            with self.subTest(picture=path.name):
                root = xml.etree.ElementTree.fromstring(content)
                self.assertTrue(root.find(space + "title").text)
                self.assertTrue(root.find(space + "desc").text)


if __name__ == "__main__":
    unittest.main()
