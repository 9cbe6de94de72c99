"""Rules banned-call, ifdef, guard, unfinished: what no source may say."""
import re

from tree import Finding

# Shells that own one of a node's named threads (docs/ARCHITECTURE.md, "Threads of a node"), and what may hang.
THREAD_FILES = ("common/transfer/transfer_service.cc", "kernels/cuda/nccl/nccl_channels.cu")
# gRPC takes deadlines by the wall clock.
WALL_CLOCK_FILES = ("cli/client/client.cc",)
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
     ("common/runtime/", "common/telemetry/", "common/rpc/", *WALL_CLOCK_FILES, "tests/")),
]
# A `new` that is owned at once (a constructor that make_unique cannot reach), or that lives for ever.
OWNED_NEW = re.compile(r"(?:unique_ptr|shared_ptr|WrapUnique)\b\s*(?:<[^;]*>)?\s*\w*\s*\(\s*new\b|"
                       r"\bstatic\b[^;]*=\s*\*?\s*new\b")
IFDEF = r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b.*\b"
BACKEND_IFDEF = re.compile(IFDEF + r"(?:TANDEM_(?:HAVE_|USE_|WITH_)?(?:CUDA|NCCL|AMX|AVX\w*)|__CUDACC__|__CUDA_ARCH__)\b")
IFDEF_FILES = ("kernels/dispatch/dispatch.cc",)
# kernels/cpu is compiled once for each class of instruction sets and asks the compiler which one it is.
ISA_IFDEF = re.compile(IFDEF + r"(?:__AVX\w*|__AMX\w*|__FMA__)\b")


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
