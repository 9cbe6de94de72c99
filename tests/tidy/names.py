"""Rules one-name, retired-word, actor, stale-path: what things are called."""
import re

from tree import PRODUCTION, Finding, is_production

TYPE_HEAD = re.compile(r"\b(?:struct|class|enum(?:\s+class)?)\s+(?:ABSL_\w+\s+|alignas\([^)]*\)\s+)*(\w+)"
                       r"(?:\s+final)?\s*(?::(?!:).*)?$", re.S)
NAMESPACE_HEAD = re.compile(r"\bnamespace\b\s*([\w:]*)\s*$")


def types_defined(code):
    """(qualified name, line) of each type that `code` defines in named namespaces. Namespaces named by a macro are
    left out, because each build of the file gives them another name."""
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda match: "\n" * match.group().count("\n"), code, flags=re.M)
    within, head = [], 0  # names of namespaces, None for other braces
    for brace in re.finditer(r"[{};]", code):
        if brace.group() == "{":
            before = code[head:brace.start()]
            namespace, type_head = NAMESPACE_HEAD.search(before), TYPE_HEAD.search(before)
            if type_head and all(within) and not any("TANDEM_" in name for name in within):
                yield "::".join([*within, type_head.group(1)]), code.count("\n", 0, brace.start()) + 1
            within.append(namespace.group(1) if namespace else None)
        elif brace.group() == "}" and within:
            within.pop()
        head = brace.end()


def check_one_name(codes):
    """No two files define a type of one name in one namespace: the linker would keep the functions of either."""
    first = {}
    for path, code in codes.items():
        for name, line in types_defined(code):
            if first.setdefault(name, path) != path:
                yield Finding(path, line, "one-name", f"{name} is a type of {first[name]} too")


GLOSSARY = "docs/GLOSSARY.md"
RETIRED_HEADING = "## Retired words"
# Places that explain the old words, or records that keep the words of their day.
MAY_SAY_RETIRED = (GLOSSARY, "docs/adr/", "docs/measurements/", "tests/tidy/", "tests/fuzz/corpus/", "tests/golden/")
# Comments that name no actor.
NO_ACTOR = re.compile(r"\b(?:[Ww]hoever|[Nn]obody|[Ss]omebody|[Aa]nybody|[Ww]ho has the)\b")
# A file that a comment names by its path from the root.
NAMED_FILE = re.compile(r"(?<![\w./-])(?:" + "|".join((*PRODUCTION, "docs", "proto", "scripts", "cmake")) +
                        r")/[\w./-]*\.(?:h|cc|cuh?|py|md|proto|sh|cmake|json)\b")


def retired_words(glossary):
    """The words in backquotes in the first cells of the glossary's table of retired words."""
    section = glossary.partition(RETIRED_HEADING + "\n")[2].partition("\n## ")[0]
    words = []
    for line in section.splitlines():
        if line.startswith("|"):
            words += re.findall(r"`([^`]+)`", line.split("|")[1])
    return words


def retired_pattern(words):
    """Matches each of `words`, with its case: as a whole word, and those that begin with a capital within names in
    CamelCase as well. None when there are none."""
    if not words:
        return None

    def any_of(some):
        return "|".join(map(re.escape, sorted(some, key=len, reverse=True)))

    capitalised = [word for word in words if word[0].isupper()]
    within = rf"|(?:{any_of(capitalised)})(?![a-z])" if capitalised else ""
    return re.compile(rf"(?<!\w)(?:{any_of(words)})(?!\w){within}")


def check_retired(path, text, pattern):
    if pattern is None or path.startswith(MAY_SAY_RETIRED) or not pattern.search(text):
        return
    for number, line in enumerate(text.splitlines(), 1):
        match = pattern.search(line)
        if match:
            yield Finding(path, number, "retired-word", f"`{match.group()}`: {GLOSSARY} says what to say instead")


def check_actor(path, text):
    """Comments of production sources name the thread, node or object that acts."""
    if not is_production(path):
        return
    for number, line in enumerate(text.splitlines(), 1):
        match = NO_ACTOR.search(line.partition("//")[2])
        if match:
            yield Finding(path, number, "actor", f"`{match.group()}`: name the thread, node or object that acts")


def check_named_files(root, path, text):
    """The files that comments of production sources and of messages name exist."""
    if not is_production(path) and not path.startswith("proto/"):
        return
    for number, line in enumerate(text.splitlines(), 1):
        for name in NAMED_FILE.findall(line.partition("//")[2]):
            if not (root / name).is_file():
                yield Finding(path, number, "stale-path", f"{name} does not exist")
