#!/usr/bin/env python3
"""Rule bound: every container member of a state machine states its bound in a comment.

    bounds.py ROOT          prints the table of all stated bounds
    bounds.py ROOT --write  writes the table into docs/LIMITS.md, between its marks

The comment `// Bound: what it is.` stands on the member's line or above it. A comment above holds for all members up to
the next comment or empty line. Members that cannot grow after construction state what bounds them, too. BoundedQueue and
Outbox need no comment: their capacity is their bound.
"""
import argparse
import pathlib
import re
import sys

STATE_MACHINES = ("router/", "prefill_node/", "decode_node/", "common/node/", "common/kv/", "common/transfer/",
                  "common/rpc/", "common/storage/", "common/lending/")
TABLE_FILE = "docs/LIMITS.md"
BEGIN, END = "<!-- bounds: written by tests/tidy/bounds.py -->", "<!-- bounds end -->"
GROWING = r"std::(?:multi)?(?:map|set)|std::(?:deque|queue|list|priority_queue|unordered_\w+)|absl::(?:flat|node)_hash_\w+|absl::btree_\w+"
CONTAINER = re.compile(rf"^\s+(?:const\s+|mutable\s+)*(?P<type>{GROWING}|std::vector|absl::InlinedVector)\b")
ALIAS = re.compile(rf"^\s*using\s+(\w+)\s*=\s*(?:{GROWING})\b")
# A field of a plain struct may be a vector: it is a value. One that grows is looked at wherever it is.
MEMBER = re.compile(r"(?P<names>[a-z]\w*(?:\s*,\s*[a-z]\w*)*)\s*(?:\b(?:ABSL|TANDEM)_\w+\([^)]*\))?\s*(?:=[^;]*|\{[^;]*\})?;\s*(?://.*)?$")
BOUND = re.compile(r"\bBound: (?P<text>.+)$")


def is_scope_head(head):
    """Whether the brace after `head` opens the body of a type or a namespace, not of a function."""
    return bool(re.search(r"\b(?:namespace|class|struct|union|enum)\b[^()]*(?:\([^)]*\)[^()]*)*$", head)) or not head.strip()


def at_class_level(lines):
    """For each line, whether it begins directly in a type's body."""
    stack, head, answer = [], "", []
    for line in lines:
        answer.append(bool(stack) and stack[-1] == "type")
        for c in re.sub(r'//.*|"(?:\\.|[^"\\])*"', "", line):
            if c == "{":
                if re.search(r"\bnamespace\b", head):
                    stack.append("namespace")
                else:
                    stack.append("type" if is_scope_head(head) and head.strip() else "body")
                head = ""
            elif c == "}":
                if stack:
                    stack.pop()
                head = ""
            elif c == ";":
                head = ""
            else:
                head += c
        head += " "
    return answer


def comment_above(lines, index):
    """The comment above the group of members around line `index`, as one line; "" when there is none."""
    while index > 0 and lines[index - 1].strip() and not lines[index - 1].lstrip().startswith("//"):
        if lines[index - 1].rstrip().endswith(("{", "}", ":")):
            return ""
        index -= 1
    end = index
    while index > 0 and lines[index - 1].lstrip().startswith("//"):
        index -= 1
    return " ".join(line.strip().lstrip("/ ") for line in lines[index:end])


def containers(path, text):
    """(line number, member, stated bound or None) for each container a class of this file keeps."""
    if not path.startswith(STATE_MACHINES) or not path.endswith((".h", ".cc")):
        return
    lines = text.splitlines()
    class_level = at_class_level(lines)
    aliases = [match.group(1) for match in map(ALIAS.match, lines) if match]
    for number, line in enumerate(lines):
        known = CONTAINER.match(line)
        aliased = not known and aliases and re.match(rf"^\s+(?:const\s+)?(?:{'|'.join(aliases)})\s+[a-z]", line)
        if not class_level[number] or not (known or aliased):
            continue
        declaration, last = line, number
        while ";" not in re.sub(r"//.*", "", declaration) and last + 1 < len(lines):
            last += 1
            declaration += " " + lines[last].strip()
        member = MEMBER.search(declaration)
        before = re.sub(r"<.*>", "", declaration[:member.start()]) if member else "("
        if member is None or "(" in before:
            continue  # a function
        if re.match(r"\s+const\s", line) or before.rstrip().endswith(("&", "*", "::iterator")):
            continue  # does not grow, or is not kept here
        if known and known.group("type") in ("std::vector", "absl::InlinedVector") and not member.group("names").endswith("_"):
            continue
        stated = BOUND.search(line) or BOUND.search(comment_above(lines, number))
        yield number + 1, member.group("names"), stated.group("text").strip() if stated else None


def table(root):
    """The Markdown table of all stated bounds under `root`."""
    rows = ["| File | Container | Bound |", "|---|---|---|"]
    for folder in sorted({prefix for prefix in STATE_MACHINES}):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".h", ".cc"):
                continue
            name = path.relative_to(root).as_posix()
            for _, member, bound in containers(name, path.read_text(encoding="utf-8")):
                if bound is not None:
                    rows.append(f"| {name} | `{member.rstrip('_')}` | {bound.rstrip('.')} |")
    return "\n".join(rows) + "\n"


def with_table(text, rows):
    """`text` with `rows` between its marks; None when it has no marks."""
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        return None
    return text[:begin + len(BEGIN)] + "\n" + rows + text[end:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = table(options.root)
    if not options.write:
        print(rows, end="")
        return 0
    file = options.root / TABLE_FILE
    text = with_table(file.read_text(encoding="utf-8"), rows)
    if text is None:
        print(f"{file}: no marks {BEGIN} … {END}", file=sys.stderr)
        return 1
    file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
