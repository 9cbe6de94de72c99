"""Checks the Debian package and the commands that containers run."""

import json
import re
import subprocess
from pathlib import Path

import image_packages
import tools

# What an operator expects where, besides the shells' completions.
FILES = (
    "etc/tandem/decode-node.yaml",
    "etc/tandem/prefill-node.yaml",
    "etc/tandem/router.yaml",
    "usr/bin/tandem",
    "usr/bin/tandem-decode-node",
    "usr/bin/tandem-prefill-node",
    "usr/bin/tandem-router",
    "usr/lib/systemd/system/tandem-decode-node@.service",
    "usr/lib/systemd/system/tandem-prefill-node@.service",
    "usr/lib/systemd/system/tandem-router.service",
    "usr/lib/sysusers.d/tandem.conf",
    "usr/share/bash-completion/completions/tandem",
    "usr/share/doc/tandem/copyright",
    "usr/share/fish/vendor_completions.d/tandem.fish",
    "usr/share/zsh/vendor-completions/_tandem",
)


def output_of(command):
    """(exit status, output) of a command."""
    result = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout


# What makes the package. CPack asks `file` which files are programs.
MAKERS = ("cpack", "dpkg-deb", "dpkg-shlibdeps", "file")


def uninstalled(listed):
    """One line for each program that makes the package and that scripts/packages.txt, whose text is
    `listed`, does not install."""
    # Not those of tests, which a machine may lack.
    installed = image_packages.with_dependencies(re.findall(r"^([a-z0-9]\S*)$", listed, re.MULTILINE))
    return [
        f"scripts/packages.txt installs no {name}"
        for name in MAKERS
        if image_packages.owner_of(tools.program(name)) not in installed
    ]


def make(build, folder):
    """Makes the Debian package in `folder`; returns its path."""
    for tool in MAKERS:
        tools.program(tool)
    status, said = output_of(["cpack", "--config", build / "CPackConfig.cmake", "-B", folder])
    packages = list(Path(folder).glob("*.deb"))
    if status != 0 or len(packages) != 1:
        raise SystemExit(f"cpack made {len(packages)} packages:\n{said}")
    return packages[0]


def mistakes(package, folder, libraries):
    """One line for each mistake in a package. It is unpacked into `folder`. `libraries`: the Debian
    packages that the programs' shared libraries come from."""
    found = []
    root, control = Path(folder) / "root", Path(folder) / "control"
    for flag, target in (("-x", root), ("-e", control)):
        status, said = output_of(["dpkg-deb", flag, package, target])
        if status != 0:
            return [said]
    found += [f"{name} is missing" for name in FILES if not (root / name).is_file()]
    listed = (control / "conffiles").read_text(encoding="utf-8").split()
    there = sorted(f"/{path.relative_to(root)}" for path in (root / "etc").rglob("*") if path.is_file())
    if sorted(listed) != there:
        found.append(f"conffiles lists {listed}, the package has {there}")
    for script in ("postinst", "prerm", "postrm"):
        status, said = output_of([tools.program("shellcheck"), "--shell=sh", control / script])
        if status != 0:
            found.append(said)
    depends = re.search(r"^Depends: (.*)$", (control / "control").read_text(encoding="utf-8"), re.MULTILINE)
    named = {entry.split()[0] for entry in depends[1].split(",")} if depends else set()
    installed = image_packages.with_dependencies(named)
    found += [f"Depends lacks {name}" for name in sorted(libraries - installed)]
    for unit in sorted((root / "usr/lib/systemd/system").glob("*.service")):
        found += lost_programs(unit, root)
    status, said = output_of([root / "usr/bin/tandem", "version"])
    if status != 0 or not said.startswith("tandem "):
        found.append(f"the packed tandem version: {said}")
    return found


def installed_mistakes(build, folder):
    """One line for each mistake in what `cmake --install` leaves below a prefix of its own, in `folder`."""
    # As from a checkout whose path has a space.
    spaced = Path(folder) / "a checkout"
    spaced.symlink_to(build)
    script = Path(folder) / "install.cmake"
    text = (build / "cmake_install.cmake").read_text(encoding="utf-8")
    if f"{build}/" not in text:
        return [f"cmake_install.cmake does not name the build folder {build}"]
    script.write_text(text.replace(f"{build}/", f"{spaced}/"), encoding="utf-8")
    root, prefix = Path(folder) / "installed", "/opt/tandem"
    command = ["env", f"DESTDIR={root}", "cmake", f"-DCMAKE_INSTALL_PREFIX={prefix}", "-P", script]
    changed = root / "etc/tandem/router.yaml"
    for turn in ("first", "second"):
        status, said = output_of(command)
        if status != 0:
            return [f"the {turn} cmake --install:\n{said}"]
        if turn == "first":
            changed.write_text("# an operator's\n", encoding="utf-8")
    found = []
    if changed.read_text(encoding="utf-8") != "# an operator's\n":
        found.append("cmake --install overwrites /etc/tandem/router.yaml")
    units = sorted((root / prefix[1:] / "lib/systemd/system").glob("*.service"))
    found += [] if len(units) == 3 else [f"cmake --install leaves the units {units}"]
    return found + [said for unit in units for said in lost_programs(unit, root)]


def lost_programs(unit, root):
    """One line for each program that a unit starts and that is not below `root`."""
    for program in re.findall(r"^ExecStart=(.*?) --config ", unit.read_text(encoding="utf-8"), re.MULTILINE):
        if not (root / program.lstrip("/")).is_file():
            yield f"{unit.name} starts {program}, which is not installed"


def commands(dockerfile, compose):
    """(where, words) of each command of this project's programs in a Dockerfile and a compose file."""
    runtime = dockerfile[dockerfile.rindex("\nFROM ") :]
    for words in re.findall(r"^(?:HEALTHCHECK .*)?CMD (\[.*\])$", runtime, re.MULTILINE):
        yield "the image", json.loads(words)
    for name, service in compose["services"].items():
        if "command" in service:
            yield f"service {name}", service["command"]
        test = service.get("healthcheck", {}).get("test", [])
        if test:
            yield f"service {name}, healthcheck", test[1:]


def refused(where, words, binaries):
    """What a program says against its command; "" for nothing."""
    program = binaries / words[0]
    if not program.exists():
        return f"{where}: there is no program {words[0]}"
    status, said = output_of([program, *words[1:], "--print-config"])
    return "" if status == 0 else f"{where}: {said.strip().splitlines()[-1]}"


def references(compose):
    """One line for each service, volume and secret that a compose file names and does not define, and for each node
    that a stop of all ends too soon or that warns at its start."""
    found = []
    for name, service in compose["services"].items():
        for other in service.get("depends_on", {}):
            if other not in compose["services"]:
                found.append(f"{name} depends on {other}, which is no service")
        for volume in service.get("volumes", []):
            if volume.split(":")[0] not in compose["volumes"]:
                found.append(f"{name} mounts {volume}, which is no volume")
        words = service.get("command", [""])
        reads_only = "models:/models:ro" in service.get("volumes", [])
        if words[0].endswith("-node") and reads_only and "--weight-cache=off" not in words:
            found.append(f"{name} can keep packed weights nowhere and has no --weight-cache=off")
        for secret in service.get("secrets", []):
            if secret not in compose["secrets"]:
                found.append(f"{name} reads the secret {secret}, which is none")
        for word in service.get("command", []):
            host = re.match(r"--routers=([^:]+):", word)
            if host and host[1] not in compose["services"]:
                found.append(f"{name} joins {host[1]}, which is no service")
            # Compose stops a service before those that it depends on.
            elif host and name not in compose["services"][host[1]].get("depends_on", {}):
                found.append(f"{host[1]} does not depend on {name}, so a stop ends the node first")
    return found
