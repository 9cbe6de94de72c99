"""Rules thread-contract and no-header: what a file's opening comment promises.

thread-contract: a header of a production folder says in its opening comment what may be called from which thread, with
"Thread safety: ..." (or "Threads: ...", "Thread: ..."). A header of plain values or pure functions says just that.

no-header: a production source has a header of its name, or its opening comment begins "Implements ... (path/x.h)",
which tells a reader the header whose declarations it defines. A main function needs no header.
"""
import re

from tree import HEADERS, Finding, is_production, opening_comment

PROMISE = re.compile(r"\b(?:Thread safety|Threads?):\s+\w")
IMPLEMENTS = re.compile(r"Implements\b[^()]*\(([\w./-]+\.(?:h|cuh))\)")


def check_thread_contract(path, text):
    if is_production(path) and path.endswith(HEADERS) and not PROMISE.search(opening_comment(text)):
        yield Finding(path, 1, "thread-contract", 'the opening comment states no "Thread safety: ..."')


def check_has_header(root, path, text):
    if not is_production(path) or path.endswith(HEADERS) or path.endswith(("/main.cc", "_main.cc")):
        return
    if any((root / path).with_suffix(suffix).exists() for suffix in HEADERS):
        return
    stated = IMPLEMENTS.match(opening_comment(text))
    if stated is None:
        yield Finding(path, 1, "no-header",
                      'no header of its name: begin with "// Implements ... (path/x.h)." or give it one')
    elif not (root / stated.group(1)).is_file():
        yield Finding(path, 1, "no-header", f"implements {stated.group(1)}, which does not exist")
