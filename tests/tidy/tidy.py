#!/usr/bin/env python3
"""The style rules that a machine can check, as a test. Prints `file:line: rule: message`, exits 1 if any.

    tidy.py ROOT [--compile-commands FILE]

Rules: include, file-size, function-size, banned-call, ifdef, guard, unfinished, bound, one-name, format, not-built.
"""
import argparse
import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import sys

import bounds

SOURCES = (".cc", ".h", ".cu", ".cuh")
FOLDERS = ("kernels", "common", "prefill_node", "decode_node", "router", "sim", "cli", "tests")
FILE_LINES = 500
FUNCTION_LINES = 60

COMMON = ("runtime", "telemetry", "config", "model", "kv", "request", "guided", "engine", "parallel", "rpc", "transfer",
          "lending", "node")
# Which folders each folder may include, besides itself and common/base.
ALLOWED = {
    "base": [],
    "runtime": [],
    "telemetry": ["runtime"],
    "config": ["runtime", "telemetry"],
    "model": ["runtime", "telemetry"],
    "kv": ["runtime", "telemetry"],
    "request": ["runtime", "telemetry", "kv"],
    "guided": ["runtime", "telemetry", "model", "request"],
    "engine": ["runtime", "telemetry", "request", "kv", "model", "parallel", "kernels/api"],
    "parallel": ["runtime", "telemetry", "kernels/api"],
    "rpc": ["runtime", "telemetry", "request", "proto"],
    "transfer": ["runtime", "telemetry", "rpc", "kv", "kernels/api", "proto"],
    "lending": ["runtime", "telemetry", "transfer", "kv"],
    # What both node types share.
    "node": [name for name in COMMON if name != "node"] + ["kernels/api", "proto"],
    "prefill_node": [*COMMON, "proto"],
    "decode_node": [*COMMON, "proto"],
    "router": ["config", "model", "kv", "request", "guided", "rpc", "telemetry", "runtime", "lending", "proto"],
    "kernels/api": [],
    "kernels/ref": ["kernels/api", "kernels"],
    "kernels/cpu": ["kernels/api", "kernels"],
    "kernels/cuda": ["kernels/api", "kernels"],
    "kernels": ["kernels/api", "kernels/ref", "kernels/cpu", "kernels/cuda"],
}
# These may include everything except the named.
EVERYTHING_BUT = {"sim": ["tests", "cli"], "cli": ["tests"], "tests": []}

# Shells that own one of a node's named threads (docs/ARCHITECTURE.md, "Threads of a node"), and what may hang.
THREAD_FILES = ("common/transfer/transfer_service.cc", "kernels/cuda/nccl/nccl_channels.cu")
BANNED = [
    (r"(?<![\w.>])(?:std::)?(?:secure_)?getenv\s*\(|\benviron\b", "read the environment through common/config",
     ("common/config/", "tests/")),
    (r"\bstd::rand\b|(?<![\w.>:])s?rand\s*\(|\bstd::random_device\b|\bstd::mt19937", "draw from common/runtime's Random",
     ("common/runtime/", "tests/")),
    (r"\bsleep_for\b|\bsleep_until\b|(?<![\w.>:])u?sleep\s*\(|(?<![\w.>:])nanosleep\s*\(|\babsl::SleepFor\b",
     "wait on a Timer or a condition", ("common/runtime/",)),
    (r"\bstd::j?thread\b(?!::id|::hardware)|\bpthread_create\b", "start threads through common/runtime",
     ("common/runtime/", "tests/", *THREAD_FILES)),
    (r"\busing\s+namespace\b", "name what is used", ()),
    (r"(?<![\w.])new\s+(?:\([^)]*\)\s*)?[A-Za-z_:]", "own through unique_ptr", ()),
    (r"(?<![\w.])delete\s*(?:\[\s*\])?\s+?[A-Za-z_*(]", "own through unique_ptr", ()),
    (r"(?<![\w.>:])(?:absl::Now|std::chrono::(?:system|steady|high_resolution)_clock::now|time|gettimeofday)\s*\(\s*"
     r"(?:\)|NULL|nullptr|0\s*\))", "take `now` or a Clock",
     ("common/runtime/", "common/telemetry/", "common/rpc/", "cli/", "tests/")),
]
# A `new` that is owned at once (a constructor that make_unique cannot reach), or that lives for ever.
OWNED_NEW = re.compile(r"(?:unique_ptr|shared_ptr|WrapUnique)\b\s*(?:<[^;]*>)?\s*\w*\s*\(\s*new\b|"
                       r"\bstatic\b[^;]*=\s*\*?\s*new\b")
IFDEF = r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b.*\b"
BACKEND_IFDEF = re.compile(IFDEF + r"(?:TANDEM_(?:HAVE_|USE_|WITH_)?(?:CUDA|NCCL|AMX|AVX\w*)|__CUDACC__|__CUDA_ARCH__)\b")
IFDEF_FILES = ("kernels/dispatch/dispatch.cc",)
# kernels/cpu is compiled once for each class of instruction sets and asks the compiler which one it is.
ISA_IFDEF = re.compile(IFDEF + r"(?:__AVX\w*|__AMX\w*|__FMA__)\b")


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    path: str
    line: int
    rule: str
    message: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


def blank_out(text):
    """`text` with comments and the insides of literals as spaces; newlines stay where they are."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|(?:u8|[uUL])?R"(?P<tag>[^()\\\s]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"'
        r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.S)

    def spaces(match):
        token = match.group(0)
        blanked = re.sub(r"[^\n]", " ", token)
        return f'"{blanked[1:-1]}"' if token[-1] == '"' and len(token) > 1 and "\n" not in token else blanked
    return pattern.sub(spaces, text)


def folder_of(path):
    """The name that ALLOWED knows a file's folder by."""
    parts = pathlib.PurePosixPath(path).parts
    if parts[0] == "kernels":
        return "/".join(parts[:2]) if len(parts) > 2 else "kernels"
    return parts[1] if parts[0] == "common" and len(parts) > 2 else parts[0]


def check_includes(path, text):
    own = folder_of(path)
    roots = (*FOLDERS, "proto")
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if not match or match.group(1).split("/")[0] not in roots:
            continue
        target = folder_of(match.group(1))
        if target == own or target == "base" and not own.startswith("kernels"):
            continue
        if own in EVERYTHING_BUT:
            allowed = target not in EVERYTHING_BUT[own]
        else:
            allowed = target in ALLOWED.get(own, [])
        if not allowed:
            yield Finding(path, number, "include", f"{own} may not include {target} ({match.group(1)})")


def check_size(path, text):
    lines = text.count("\n")
    if lines > FILE_LINES:
        yield Finding(path, lines, "file-size", f"{lines} lines, expected at most {FILE_LINES}")


NOT_FUNCTIONS = re.compile(r"\b(?:namespace|class|struct|union|enum|extern)\b(?![^{]*\)\s*(?:const|noexcept|override|final|\s)*$)")


def check_functions(path, code):
    """Bodies by brace matching: a brace at namespace or class level that follows a parameter list."""
    # Preprocessor lines may hold unbalanced braces.
    code = re.sub(r"(?m)^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", lambda m: re.sub(r"[^\n]", " ", m.group(0)), code)
    stack = []  # (is a scope that may hold functions, line)
    start = 0   # of the text since the last ; { or } at scope level
    line = 1
    function = None
    for i, c in enumerate(code):
        if c == "\n":
            line += 1
        elif c == "{":
            if function is None:
                head = re.sub(r"^\s*(?:public|private|protected)\s*:", "", code[start:i])
                is_scope = bool(NOT_FUNCTIONS.search(head)) or not head.strip()
                if not is_scope and ")" in head:
                    # The head's first line is where a reader sees the function begin.
                    first = line - head.lstrip().count("\n")
                    name = re.search(r"([\w:~]+|operator\S+)\s*\(", head)
                    has_initialisers = bool(re.search(r"\)\s*(?:noexcept\s*)?:(?!:)", head))
                    function = (len(stack), first, name.group(1) if name else "?", has_initialisers)
                stack.append(is_scope)
            else:
                stack.append(False)
            start = i + 1
        elif c == "}":
            if stack:
                stack.pop()
            # `b_{2} {` and `b_{2}, c_(3) {`: a member initialiser ended, not the function.
            initialiser = function is not None and function[3] and re.match(r"\s*[,{]", code[i + 1:i + 200])
            if function is not None and len(stack) == function[0] and not initialiser:
                length = line - function[1] + 1
                if length > FUNCTION_LINES:
                    yield Finding(path, function[1], "function-size",
                                  f"{function[2]} has {length} lines, expected at most {FUNCTION_LINES}")
                function = None
            start = i + 1
        elif c == ";" and function is None:
            start = i + 1


def check_calls(path, code):
    lines = code.splitlines()
    for number, line in enumerate(lines, 1):
        for pattern, advice, allowed_in in BANNED:
            if path.startswith(tuple(allowed_in)) if allowed_in else False:
                continue
            match = re.search(pattern, line)
            if not match:
                continue
            found = match.group(0).strip()
            around = (lines[number - 2] + " " if number > 1 else "") + line
            if found.startswith("new") and OWNED_NEW.search(around):
                continue
            yield Finding(path, number, "banned-call", f"`{found}`: {advice}")


def check_ifdefs(path, code):
    if path in IFDEF_FILES or path.startswith(("kernels/cuda/", "tests/")):
        return
    for number, line in enumerate(code.splitlines(), 1):
        if BACKEND_IFDEF.match(line) or (ISA_IFDEF.match(line) and not path.startswith("kernels/cpu/")):
            yield Finding(path, number, "ifdef", "choose backends in kernels/dispatch/dispatch.cc only")


def check_guard(path, code):
    if path.endswith((".h", ".cuh")) and not re.search(r"^\s*#\s*pragma\s+once\b", code, re.M) and not re.search(
            r"^\s*#\s*ifndef\s+(\w+)\s*\n\s*#\s*define\s+\1\b", code, re.M):
        yield Finding(path, 1, "guard", "expected #pragma once")


def check_unfinished(path, text):
    for number, line in enumerate(text.splitlines(), 1):
        match = re.search(r"\b(TO" r"DO|FIX" r"ME|XXX|HACK)\b", line)
        if match:
            yield Finding(path, number, "unfinished", f"`{match.group(1)}`: finish it or file it")


def check_bounds(path, text):
    for number, member, bound in bounds.containers(path, text):
        if bound is None:
            yield Finding(path, number, "bound", f"{member} states no bound: say `// Bound: ...` above it")


TYPE_HEAD = re.compile(r"\b(?:struct|class|enum(?:\s+class)?)\s+(?:ABSL_\w+\s+|alignas\([^)]*\)\s+)*(\w+)"
                       r"(?:\s+final)?\s*(?::(?!:).*)?$", re.S)
NAMESPACE_HEAD = re.compile(r"\bnamespace\b\s*([\w:]*)\s*$")


def types_defined(code):
    """The types that `code` defines in named namespaces, as (qualified name, line). A namespace whose
    name a macro gives is another one in each build of the file, and left out."""
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
    """Two types of one name in one namespace are one to the linker, which keeps either's functions."""
    first = {}
    for path, code in codes.items():
        for name, line in types_defined(code):
            if first.setdefault(name, path) != path:
                yield Finding(path, line, "one-name", f"{name} is a type of {first[name]} too")


def check_limits(root):
    """The document's table is that of the sources."""
    document = root / bounds.TABLE_FILE
    if document.exists():
        text = document.read_text(encoding="utf-8")
        if bounds.with_table(text, bounds.table(root)) != text:
            yield Finding(bounds.TABLE_FILE, 1, "bound", "write its table again: tests/tidy/bounds.py ROOT --write")


def check_format(root, paths):
    """Findings of clang-format, or None when there is none to run."""
    tool = shutil.which("clang-format-14")
    if tool is None:
        return None
    findings = []
    for begin in range(0, len(paths), 50):
        result = subprocess.run([tool, "--dry-run", "-Werror", *paths[begin:begin + 50]], cwd=root,
                                capture_output=True, text=True, check=False)
        seen = set()
        for match in re.finditer(r"^([^:\n]+):(\d+):\d+: error: ", result.stderr, re.M):
            if match.group(1) not in seen:
                seen.add(match.group(1))
                findings.append(Finding(match.group(1), int(match.group(2)), "format", "run clang-format-14 -i"))
        if result.returncode != 0 and not seen:
            findings.append(Finding(paths[begin], 1, "format", result.stderr.strip() or "clang-format-14 failed"))
    return findings


def check_built(root, paths, compile_commands):
    """Every .cc is compiled by some target; every header is included by some file or stands beside its .cc."""
    compiled = set()
    for entry in json.loads(compile_commands.read_text()):
        file = pathlib.Path(entry["directory"], entry["file"]).resolve()
        files = [file]
        if file.name.startswith("unity_") and file.exists():  # includes several sources (cmake/Tandem.cmake)
            files = [root / path for path in re.findall(r'#include "([^"]+)"', file.read_text(encoding="utf-8"))]
        for source in files:
            if source.is_relative_to(root):
                compiled.add(source.relative_to(root).as_posix())
    included = set()
    for path in paths:
        text = (root / path).read_text(encoding="utf-8", errors="replace")
        for target in re.findall(r'#\s*include\s+"([^"]+)"', text):
            included.update((target, (pathlib.PurePosixPath(path).parent / target).as_posix()))
    for path in paths:
        if path.endswith(".cc") and path not in compiled and not path.startswith("tests/fuzz/"):
            yield Finding(path, 1, "not-built", "no target compiles this file")
        if path.endswith(".h") and path not in included:
            yield Finding(path, 1, "not-built", "no file includes this header")


def find_sources(root):
    """Paths relative to `root` of all our sources, sorted."""
    paths = []
    for folder in FOLDERS:
        for path in (root / folder).rglob("*"):
            if path.suffix in SOURCES and path.is_file():
                paths.append(path.relative_to(root).as_posix())
    return sorted(paths)


def check_tree(root, compile_commands=None, out=sys.stdout):
    """All findings under `root`."""
    root = pathlib.Path(root).resolve()
    paths = find_sources(root)
    findings = []
    codes = {}
    for path in paths:
        text = (root / path).read_text(encoding="utf-8", errors="replace")
        code = codes[path] = blank_out(text)
        findings += check_includes(path, text)
        findings += check_size(path, text)
        findings += check_functions(path, code)
        findings += check_calls(path, code)
        findings += check_ifdefs(path, code)
        findings += check_guard(path, code)
        findings += check_unfinished(path, text)
        findings += check_bounds(path, text)
    findings += check_one_name(codes)
    findings += check_limits(root)
    formatted = check_format(root, paths) if paths else []
    if formatted is None:
        print("SKIPPED: format: clang-format-14 is not installed", file=out)
    else:
        findings += formatted
    if compile_commands is not None:
        if compile_commands.exists():
            findings += check_built(root, paths, compile_commands)
        else:
            print(f"SKIPPED: not-built: {compile_commands} does not exist", file=out)
    return sorted(findings)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root")
    parser.add_argument("--compile-commands", type=pathlib.Path)
    options = parser.parse_args()
    findings = check_tree(options.root, options.compile_commands)
    for finding in findings:
        print(finding)
    print(f"tidy: {len(find_sources(pathlib.Path(options.root)))} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
