#!/usr/bin/env python3
"""The style rules that a machine can check, as a test. Prints `file:line: rule: message`.

Exit status 0: no finding; 1: some; 77: none, but a rule was not checked, as its tool is missing (1 when CI=true).

    tidy.py ROOT [--compile-commands FILE] [--shrink-baseline]

Rules, by the module that checks them:
    folders     include, include-cycle, folder
    sizes       file-size, function-size
    calls       banned-call, ifdef, guard, unfinished
    names       one-name, retired-word, actor, stale-path
    contracts   thread-contract, no-header
    bounds      bound
    documents   document-line, document-size, recipe
    build       format, not-built
    baseline    baseline
"""
import argparse
import os
import pathlib
import sys

import baseline
import bounds
import build
import calls
import contracts
import documents
import folders
import names
import sizes
from tree import Finding, blank_out, find_sources, find_tracked

SKIPPED = 77


def check_bounds(path, text):
    for number, member, bound in bounds.containers(path, text):
        if bound is None:
            yield Finding(path, number, "bound", f"{member} states no bound: say `// Bound: ...` above it")


def check_limits(root):
    """The document's table is that of the sources."""
    document = root / bounds.TABLE_FILE
    if document.exists():
        text = document.read_text(encoding="utf-8")
        if bounds.with_table(text, bounds.table(root)) != text:
            yield Finding(bounds.TABLE_FILE, 1, "bound", "write its table again: tests/tidy/bounds.py ROOT --write")


def check_source(root, path, text, code, layout):
    """Findings of the rules that look at one source alone; `code` is `text` without comments and literals."""
    yield from folders.check_includes(path, text, layout)
    yield from sizes.check_size(path, text)
    yield from sizes.check_functions(path, code)
    yield from calls.check_calls(path, code)
    yield from calls.check_ifdefs(path, code)
    yield from calls.check_guard(path, code)
    yield from calls.check_unfinished(path, text)
    yield from names.check_actor(path, text)
    yield from contracts.check_thread_contract(path, text)
    yield from contracts.check_has_header(root, path, text)
    yield from check_bounds(path, text)


def check_texts(root):
    """Findings of the rules that look at every text file that git tracks."""
    glossary = root / names.GLOSSARY
    words = names.retired_words(glossary.read_text(encoding="utf-8")) if glossary.exists() else []
    pattern = names.retired_pattern(words)
    for path in find_tracked(root):
        content = (root / path).read_bytes()
        if b"\0" in content[:8192]:
            continue
        text = content.decode("utf-8", errors="replace")
        yield from names.check_retired(path, text, pattern)
        yield from names.check_named_files(root, path, text)
        yield from documents.check_document(path, text)
        yield from documents.check_recipes(root, path, text)


def check_all(root, compile_commands, layout):
    """All findings under `root`, those that baseline.txt lists too, and why rules were not checked."""
    skipped = []
    paths = find_sources(root)
    findings, texts, codes = [], {}, {}
    for path in paths:
        text = texts[path] = (root / path).read_text(encoding="utf-8", errors="replace")
        code = codes[path] = blank_out(text)
        findings += check_source(root, path, text, code, layout)
    findings += folders.check_folders(root, paths, layout)
    findings += folders.check_cycles(texts)
    findings += names.check_one_name(codes)
    findings += check_limits(root)
    findings += check_texts(root)
    formatted = build.check_format(root, paths) if paths else []
    if formatted is None:
        skipped.append("format: clang-format-14 is not installed")
    else:
        findings += formatted
    if compile_commands is not None:
        if compile_commands.exists():
            findings += build.check_built(root, paths, compile_commands)
        else:
            skipped.append(f"not-built: {compile_commands} does not exist")
    return findings, skipped


def check_tree(root, compile_commands=None, layout=None):
    """What is to be reported of the tree under `root`, sorted."""
    root = pathlib.Path(root).resolve()
    findings, _ = check_all(root, compile_commands, layout or folders.Layout())
    return sorted(baseline.apply(root, findings))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--compile-commands", type=pathlib.Path)
    parser.add_argument("--shrink-baseline", action="store_true", help=f"remove unneeded lines of {baseline.FILE}")
    options = parser.parse_args()
    root = options.root.resolve()
    findings, skipped = check_all(root, options.compile_commands, folders.Layout())
    if options.shrink_baseline:
        baseline.shrink(root, findings)
    findings = sorted(baseline.apply(root, findings))
    for finding in findings:
        print(finding)
    listed = len(baseline.read(root))
    print(f"tidy: {len(find_sources(root))} files, {len(findings)} findings, {listed} in the baseline")
    for why in skipped:
        print(f"SKIPPED: {why}")
    if findings or (skipped and os.environ.get("CI") == "true"):
        return 1
    return SKIPPED if skipped else 0


if __name__ == "__main__":
    sys.exit(main())
