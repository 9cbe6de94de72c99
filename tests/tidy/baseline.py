"""Rule baseline: files that broke a rule when the rule came, and still do.

baseline.txt holds one `rule path` a line. A listed file's findings of that rule are not reported. A line whose file
complies, or is gone, is a finding: tidy.py ROOT --shrink-baseline removes it. The list only gets shorter: nothing adds
to it but an editor, and a reviewer refuses that.
"""
from tree import Finding

FILE = "tests/tidy/baseline.txt"


def read(root):
    """{(rule, path): line number}"""
    file = root / FILE
    if not file.exists():
        return {}
    lines = file.read_text(encoding="utf-8").splitlines()
    return {tuple(line.split(maxsplit=1)): number for number, line in enumerate(lines, 1)
            if line.strip() and not line.startswith("#")}


def apply(root, findings):
    """`findings` without those that the baseline lists, and one for each of its lines that is not needed."""
    listed = read(root)
    broken = {(finding.rule, finding.path) for finding in findings}
    rest = [finding for finding in findings if (finding.rule, finding.path) not in listed]
    for (rule, path), number in listed.items():
        if (rule, path) not in broken:
            rest.append(Finding(FILE, number, "baseline", f"{path} keeps the rule {rule}: remove this line"))
    return rest


def shrink(root, findings):
    """Removes the lines that apply() finds unneeded."""
    broken = {(finding.rule, finding.path) for finding in findings}
    unneeded = {number for entry, number in read(root).items() if entry not in broken}
    file = root / FILE
    if unneeded:
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        file.write_text("".join(line for number, line in enumerate(lines, 1) if number not in unneeded),
                        encoding="utf-8")
