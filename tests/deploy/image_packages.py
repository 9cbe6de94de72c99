"""Which Debian packages a program's shared libraries come from, and which the image installs."""

import functools
import os
import re
import subprocess

import tools

# In every Debian image, whatever is asked for.
ESSENTIAL = {"libc6", "libgcc-s1", "libstdc++6"}


def output_of(command):
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return result.stdout if result.returncode == 0 else ""


def require_debian_12():
    release = ""
    if os.path.exists("/etc/os-release"):
        with open("/etc/os-release", encoding="utf-8") as file:
            release = file.read()
    if not re.search(r"^VERSION_CODENAME=bookworm$", release, re.MULTILINE):
        raise tools.Missing("Debian 12, whose packages the image is made of, is not this system")


def installed_by(dockerfile):
    """Packages that the last stage's apt-get names, and all that they depend on."""
    stage = dockerfile[dockerfile.rindex("\nFROM ") :]
    # The words after the flag, up to the next command.
    command = stage.split("--no-install-recommends", 1)[1].split("&&", 1)[0]
    return with_dependencies({word for word in command.replace("\\", " ").split() if not word.startswith("-")})


def with_dependencies(names):
    """These packages, all that they depend on, and what every image has."""
    require_debian_12()
    waiting = set(names)
    closure = set(ESSENTIAL)
    while waiting:
        closure |= waiting
        depends = output_of(["dpkg-query", "-W", "-f=${Depends}\\n", *sorted(waiting)])
        waiting = set(re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]*)", depends, re.MULTILINE)) - closure
    return closure


@functools.lru_cache(maxsize=None)
def owner_of(where):
    # Debian's merged /usr: dpkg may know the file under /lib or /usr/lib.
    tail = "/".join(where.rsplit("/", 2)[-2:])
    owner = output_of(["dpkg-query", "-S", f"*/{tail}"]).split("\n")[0]
    return owner.split(":")[0].split(",")[0] or f"no package ({where})"


def needed_by(path):
    """(library, package) of every shared library that a program loads."""
    found = re.findall(r"^\s*(\S+) => (\S+)", output_of(["ldd", str(path)]), re.MULTILINE)
    if not found:
        raise SystemExit(f"ldd {path}: no shared library")
    for library, where in found:
        yield library, owner_of(where)
