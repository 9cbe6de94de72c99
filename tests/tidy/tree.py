"""What every rule reads: findings, the tree's files, and C++ text without its comments."""
import dataclasses
import pathlib
import re
import shutil
import subprocess

SOURCES = (".cc", ".h", ".cu", ".cuh")
HEADERS = (".h", ".cuh")
PRODUCTION = ("kernels", "common", "prefill_node", "decode_node", "router", "sim", "cli")
FOLDERS = (*PRODUCTION, "tests")


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


def includes(text):
    """(line number, target) of each quoted include."""
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if match:
            yield number, match.group(1)


def opening_comment(text):
    """The `//` comment that a file begins with, as one line; empty when it begins with something else."""
    words = []
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        words.append(line.lstrip("/").strip())
    return " ".join(words)


def folder_of(path):
    return pathlib.PurePosixPath(path).parent.as_posix()


def is_production(path):
    return path.startswith(tuple(f"{folder}/" for folder in PRODUCTION))


def find_sources(root):
    """Paths relative to `root` of all our sources, sorted."""
    paths = []
    for folder in FOLDERS:
        for path in (root / folder).rglob("*"):
            if path.suffix in SOURCES and path.is_file():
                paths.append(path.relative_to(root).as_posix())
    return sorted(paths)


def find_tracked(root):
    """Paths relative to `root` of all files that git tracks; outside a checkout, of all files but hidden ones."""
    if (root / ".git").exists() and shutil.which("git"):
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
        if listed.returncode == 0:
            return sorted(path for path in listed.stdout.split("\0") if path and (root / path).is_file())
    paths = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
    return sorted(path.as_posix() for path in paths if not any(part.startswith((".", "build")) for part in path.parts))
