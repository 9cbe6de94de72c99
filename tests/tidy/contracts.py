"""Rules thread-contract and no-header: what a file's opening comment promises.

thread-contract: a header of a production folder says in its opening comment what may be called from which thread, with
"Thread safety: ..." (or "Threads: ...", "Thread: ..."). A header of plain values or pure functions says just that.

no-header: a production source has a header of its name, or its opening comment names the header that declares what it
defines: "Implements NewChaosCommand (cli/command_line/commands.h)." The path starts at the root, or at a folder that
holds the source. A main function needs no header.
"""
import pathlib
import re

from tree import HEADERS, Finding, is_production, opening_comment

PROMISE = re.compile(r"\b(?:Thread safety|Threads?):\s+\w")
HEADER_NAME = re.compile(r"(?<![\w./-])\w[\w./-]*\.(?:h|cuh)\b")


def check_thread_contract(path, text):
    if is_production(path) and path.endswith(HEADERS) and not PROMISE.search(opening_comment(text)):
        yield Finding(path, 1, "thread-contract", 'the opening comment states no "Thread safety: ..."')


def check_has_header(root, path, text):
    if not is_production(path) or path.endswith(HEADERS) or path.endswith(("/main.cc", "_main.cc")):
        return
    if any((root / path).with_suffix(suffix).exists() for suffix in HEADERS):
        return
    stated = HEADER_NAME.findall(opening_comment(text))
    folders = [root, *(root / folder for folder in pathlib.PurePosixPath(path).parents)]
    if not any((folder / header).is_file() for header in stated for folder in folders):
        yield Finding(path, 1, "no-header", "no header of its name, and its opening comment names none that exists: "
                                            'say "Implements ... (path/x.h)."')
        return
    for header in stated:
        if is_production(header) and not (root / header).is_file():
            yield Finding(path, 1, "no-header", f"its opening comment names {header}, which does not exist")
