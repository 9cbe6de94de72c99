"""Checks the units of deploy/systemd: systemd reads them, and the programs read what they name."""

import re
import subprocess

# What `systemd-analyze verify` may not say anything about: the programs lie in /usr/bin only once installed.
INSTALLED = "/usr/bin/"


def commands(unit_text):
    """(program, arguments) of each ExecStart."""
    for line in re.findall(r"^ExecStart=(.*)$", unit_text, re.MULTILINE):
        words = line.split()
        yield words[0].removeprefix(INSTALLED), words[1:]


def output_of(command):
    result = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout


def verify(systemd_analyze, unit, binaries, folder):
    """What systemd finds wrong with the file `unit`, whose programs are taken from `binaries`; "" for nothing.

    A copy is read from `folder`, for systemd asks that the programs exist."""
    copy = folder / unit.name
    copy.write_text(unit.read_text(encoding="utf-8").replace(INSTALLED, f"{binaries}/"), encoding="utf-8")
    status, said = output_of([systemd_analyze, "verify", "--man=no", copy])
    # systemd warns of unknown keys and goes on: everything it says of the unit counts.
    own = [line for line in said.splitlines() if unit.stem.rstrip("@") in line]
    return "\n".join(own) or ("" if status == 0 else said)


def refused_command(unit, binaries):
    """The first complaint of a program about the flags and the file that `unit` gives it; "" for none."""
    for program, words in commands(unit.read_text(encoding="utf-8")):
        local = [word.replace("/etc/tandem/", f"{unit.parent}/") for word in words]
        status, said = output_of([binaries / program, *local, "--print-config"])
        if status != 0:
            return f"{program}: {said.strip().splitlines()[-1]}"
    return ""


def gives_up(unit_text):
    """Why systemd would stop starting the unit again; "" if it never does.

    By default it stops after five starts in ten seconds, for good."""
    restarts = re.search(r"^Restart=", unit_text, re.MULTILINE)
    unlimited = re.search(r"^StartLimitIntervalSec=0$", unit_text, re.MULTILINE)
    return "Restart= without StartLimitIntervalSec=0" if restarts and not unlimited else ""


def stops_too_soon(unit_name, unit_text):
    """Why a stop of all units would end a node while a router's answers need it; "" if it does not.

    systemd stops units in the reverse of the order in which it starts them."""
    is_node = "-node@" in unit_name
    before = re.search(r"^Before=tandem-router.service$", unit_text, re.MULTILINE)
    return "a node without Before=tandem-router.service" if is_node and not before else ""


def mistakes(systemd_analyze, units, binaries, folder):
    """One line for each mistake in the files `units`."""
    found = []
    for unit in units:
        text = unit.read_text(encoding="utf-8")
        for said in (
            verify(systemd_analyze, unit, binaries, folder),
            refused_command(unit, binaries),
            gives_up(text),
            stops_too_soon(unit.name, text),
        ):
            if said:
                found.append(f"{unit.name}: {said}")
    return found
