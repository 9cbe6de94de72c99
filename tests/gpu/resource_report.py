#!/usr/bin/env python3
"""What the compiler made of the CUDA kernels, checked without a GPU.

    resource_report.py [--cuobjdump PATH] [--table] OBJECT...

For every kernel and architecture in the object files: registers, stack and local memory (spills), and the
instructions its speed rests on. Fails when a kernel spills, uses a stack, lacks what KERNELS expects of it, has what
FORBIDDEN forbids or more than AT_MOST allows, or has too little between two instructions (BETWEEN); a kernel that no rule names fails too. Prints
`SKIPPED: ...` and exits 77 without cuobjdump (PyPI: nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm; found in PATH or
among Python's packages); under CI=true that fails.
"""
import argparse
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys

SKIPPED = 77
REGISTERS_MAX = 255
# A kernel's name as its mangled symbol holds it, and the SASS instructions it must have: matrix products on bf16
# tensor cores, operands by asynchronous 16-byte copies and matrix loads.
TENSOR = ("HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS.128")
# Hopper's: products by warpgroups, operands by bulk tensor copies that barriers count. Code for sm_90a alone has
# them; elsewhere the kernel is a trap.
HOPPER = ("HGMMA.64x", "SYNCS")
HOPPER_FP8 = ("QGMMA.64x", "SYNCS")
# A gate's values leave by the copy engine.
STRIPS = ("UTMASTG.2D", "UTMACMDFLUSH")
HOPPER_ARCHITECTURE = "sm_90a"
TRAP = ("BPT.TRAP",)
# From Hopper on every kernel waits for its predecessor itself, and lets the next one start.
EARLY_START = ("ACQBULK", "PREEXIT")
# Asked about and never launched, so nothing runs before or behind it.
NEVER_LAUNCHED = {"ProbeKernel"}
HOPPER_KERNELS = {"WgmmaGemmKernel", "WgmmaFp8GemmKernel", "WgmmaAttentionKernel", "ClusterSampleKernel"}
KERNELS = {
    "GemmKernel": TENSOR,
    "GroupedGemmKernel": TENSOR,
    "GemmInt8Kernel": ("IMMA.16832.S8.S8", "LDSM.16.M88.4", "LDGSTS.E.BYPASS.128"),
    "GemmInt4Kernel": (*TENSOR, "HFMA2.BF16", "F2FP.BF16"),
    "GemmFp8Kernel": (*TENSOR, "LDS.64", "LOP3.LUT"),
    "QuantiseKernel": ("SHFL.BFLY", "LDG.E.128", "STG.E.64"),
    "WgmmaGemmKernel": (*HOPPER, *STRIPS, "REDG.E.ADD.F32", "UTMALDG.2D"),
    "WgmmaFp8GemmKernel": (*HOPPER_FP8, *STRIPS, "REDG.E.ADD.F32", "UTMALDG.2D", "WARPGROUP.DEPBAR", "LDS.64", "FFMA"),
    "WgmmaAttentionKernel": (*HOPPER, "UTMALDG.4D", "MUFU.EX2", "WARPGROUP.DEPBAR"),
    "AttentionKernel": (*TENSOR, "LDSM.16.MT88.4", "MUFU.EX2", "SHFL.BFLY"),
    "AttentionMergeKernel": ("MUFU.EX2", "SHFL.IDX"),
    "SampleKernel": ("ATOMS", "SHFL.BFLY"),
    "ClusterSampleKernel": ("ATOMS", "SHFL.BFLY", "LD.E.64", "UCGABAR_ARV", "UCGABAR_WAIT"),
    "RmsNormKernel": ("SHFL.BFLY",),
    "RopeKvKernel": ("SHFL.BFLY", "F2FP.BF16"),
    "ChecksumKernel": ("LDG.E.64", "SHFL.BFLY", "IMAD.WIDE.U32"),
    "CopyBlocksKernel": ("LDG.E.128", "STG.E.128"),
    "MoveCellsKernel": ("LDG.E.128", "STG.E.128"),
    "GatedKernel": ("MUFU.EX2",),
    "EmbedKernel": (),
    "RouteExpertsKernel": ("SHFL.BFLY",),
    "SortByExpertKernel": (),
    "CombineExpertsKernel": (),
    "ProbeKernel": (),
}
# More for some of a template's kernels on Hopper, by their arguments as symbols hold them: where two warpgroups multiply,
# registers move to them (attention's second argument says whether tiles are narrow); attention's product with V is as
# wide as head_dim.
EXCHANGE = ("USETMAXREG.TRY_ALLOC", "USETMAXREG.DEALLOC")
# Blocks of a cluster: one copy to all, arrivals at others' barriers, and a barrier at both ends.
CLUSTER = ("UTMALDG.2D.MULTICAST", "SYNCS.ARRIVE.TRANS64.RED", "UCGABAR_ARV", "UCGABAR_WAIT")
VARIANTS = {
    "WgmmaGemmKernelILi5E": EXCHANGE,
    "WgmmaGemmKernelILi6E": (*EXCHANGE, *CLUSTER),
    "WgmmaGemmKernelILi7E": (*EXCHANGE, "HGMMA.64x256x16"),
    "WgmmaGemmKernelILi8E": (*EXCHANGE, *CLUSTER, "HGMMA.64x256x16"),
    "WgmmaFp8GemmKernelILi0E": ("QGMMA.64x8x32.F32.E4M3.E4M3",),
    "WgmmaFp8GemmKernelILi4E": ("QGMMA.64x128x32.F32.E4M3.E4M3",),
    "WgmmaFp8GemmKernelILi5E": (*EXCHANGE, "QGMMA.64x128x32.F32.E4M3.E4M3"),
    "WgmmaFp8GemmKernelILi6E": (*EXCHANGE, *CLUSTER, "QGMMA.64x128x32.F32.E4M3.E4M3"),
    "WgmmaAttentionKernelILi64ELb0E": EXCHANGE,
    "WgmmaAttentionKernelILi128ELb0E": (*EXCHANGE, "HGMMA.64x128x16"),
    "WgmmaAttentionKernelILi128ELb1E": ("HGMMA.64x128x16",),
    "WgmmaAttentionKernelILi256ELb0E": ("HGMMA.64x256x16",),
    "WgmmaAttentionKernelILi256ELb1E": ("HGMMA.64x256x16",),
}
# What kernels must not have, by name: a pattern of instructions with operands, and why.
FORBIDDEN = {
    **{name: (r"ATOMS\.\S*CAST\.SPIN", "64-bit atomics in shared memory are loops of compare-and-swap")
       for name in ("SampleKernel", "ClusterSampleKernel")},
    "WgmmaAttentionKernel": (r"BAR\.\S+ R\d", "a barrier number in a register reserves all sixteen barriers"),
}
# What kernels may have only so often, by name: a pattern of instructions, how often, and why.
AT_MOST = {
    name: (r"MEMBAR\.\S*(GPU|SYS)", 2, "only the cluster's barriers at both ends may wait for all stores")
    for name in ("WgmmaGemmKernel", "WgmmaFp8GemmKernel")
}
# Hopper's wide attention turns one sub-tile's 32 scores of a thread and two factors into exponentials while the product
# with V of the sub-tile before is under way: between the wait that leaves one product and the wait for all.
OVERLAP = (r"WARPGROUP\.DEPBAR\.LE gsb0, 0x1\b", "MUFU.EX2", 34, r"WARPGROUP\.DEPBAR\.LE gsb0, 0x0\b")
# Their scale is multiplied in where the maximum is subtracted.
FOLDED_SCALE = (OVERLAP[0], "FFMA", 32, OVERLAP[3])
# Loads in flight before the first exponential of a merge: of a short one, those of 16 partitions; of a long one, which
# comes behind the short one's stores, those of 64.
SHORT_MERGE = ("", "LDG.E", 16, r"MUFU\.EX2")
LONG_MERGE = (r"STG\.", "LDG.E", 64, r"MUFU\.EX2")
# Weights are on their way before the copying thread waits for the predecessor.
EARLY_WEIGHTS = (r"UTMALDG", "UTMALDG", 1, r"ACQBULK")
BETWEEN = [
    *((f"{name}GemmKernelILi", EARLY_WEIGHTS) for name in ("Wgmma", "WgmmaFp8")),
    *((f"WgmmaAttentionKernelILi{head_dim}ELb0E", rule) for head_dim in (64, 128, 256) for rule in (OVERLAP, FOLDED_SCALE)),
    ("AttentionMergeKernelILi", SHORT_MERGE),
    ("AttentionMergeKernelILi", LONG_MERGE),
]


@dataclasses.dataclass
class Kernel:
    arch: str
    symbol: str
    registers: int
    stack: int
    local: int
    instructions: list  # with operands, in order

    @property
    def name(self):
        """The longest known name in the symbol: one name may end in another."""
        known = [name for name in KERNELS if f"{len(name)}{name}" in self.symbol]
        return max(known, key=len) if known else None


def find_tool(given):
    """cuobjdump's path, or None."""
    candidates = [given, shutil.which("cuobjdump")]
    candidates += [path for folder in sys.path for path in pathlib.Path(folder or ".").glob("nvidia/*/bin/cuobjdump")]
    # Tests run under the interpreter that CMake found; its virtual environment may be another one's.
    pythons = (os.environ.get("TANDEM_TEST_PYTHON"), shutil.which("python"), shutil.which("python3"))
    candidates += [path for python in pythons if python
                   for path in pathlib.Path(python).parent.parent.glob("lib/*/site-packages/nvidia/*/bin/cuobjdump")]
    found = next((str(path) for path in candidates if path), None)
    if found:
        # Packages unpack without the executable bit; nvdisasm lies beside cuobjdump, which looks for it in PATH.
        for tool in pathlib.Path(found).parent.glob("*"):
            if tool.name in ("cuobjdump", "nvdisasm") and not os.access(tool, os.X_OK):
                tool.chmod(0o755)
        os.environ["PATH"] = f"{pathlib.Path(found).parent}:{os.environ.get('PATH', '')}"
    return found


def parse_resources(text):
    """{(arch, symbol): (registers, stack, local)} of cuobjdump --dump-resource-usage."""
    found, arch, symbol = {}, None, None
    for line in text.splitlines():
        if match := re.match(r"\s*arch = (\S+)", line):
            arch = match.group(1)
        elif match := re.match(r"\s*Function (\S+):", line):
            symbol = match.group(1)
        elif match := re.match(r"\s*REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", line):
            found[arch, symbol] = tuple(int(number) for number in match.groups())
    return found


def parse_instructions(text):
    """{(arch, symbol): [instruction with operands, ...]} of cuobjdump --dump-sass."""
    found, arch, current = {}, None, None
    for line in text.splitlines():
        if match := re.match(r"\s*arch = (\S+)", line):
            arch = match.group(1)
        elif match := re.match(r"\s*Function : (\S+)", line):
            current = found.setdefault((arch, match.group(1)), [])
        elif current is not None and (match := re.match(
                r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.x]*[^;]*?)\s*;", line)):
            current.append(match.group(1))
    return found


def between(instructions, rule):
    """How many instructions of the rule's kind stand between its first and its last; None: one of them is missing."""
    first, wanted, _, last = rule
    begin = next((i for i, text in enumerate(instructions) if re.match(first, text)), None)
    if begin is None:
        return None
    end = next((i for i in range(begin, len(instructions)) if re.match(last, instructions[i])), None)
    return None if end is None else sum(text.startswith(wanted) for text in instructions[begin:end])


def check(kernel):
    """What is wrong with one kernel."""
    if kernel.name is None:
        return [f"{kernel.symbol} ({kernel.arch}): no rule names this kernel: add it to KERNELS"]
    where = f"{kernel.name} ({kernel.arch})"
    problems = []
    if kernel.stack or kernel.local:
        problems.append(f"{where}: {kernel.stack} bytes of stack, {kernel.local} of local memory, expected 0: an array "
                        "is indexed at run time or registers spill")
    if kernel.registers > REGISTERS_MAX:
        problems.append(f"{where}: {kernel.registers} registers, expected at most {REGISTERS_MAX}")
    trap = kernel.name in HOPPER_KERNELS and kernel.arch != HOPPER_ARCHITECTURE
    expected = TRAP if trap else KERNELS[kernel.name]
    if not trap:
        expected = (*expected, *(more for variant, all_more in VARIANTS.items() if variant in kernel.symbol
                                 for more in all_more))
        if int(re.match(r"sm_(\d+)", kernel.arch).group(1)) >= 90 and kernel.name not in NEVER_LAUNCHED:
            expected = (*expected, *EARLY_START)
    for wanted in expected:
        if not any(instruction.startswith(wanted) for instruction in kernel.instructions):
            problems.append(f"{where}: has no {wanted}")
    if trap:
        return problems
    pattern, why = FORBIDDEN.get(kernel.name, (None, None))
    found = [text for text in kernel.instructions if pattern and re.match(pattern, text)]
    if found:
        problems.append(f"{where}: has {len(found)} times {found[0]}: {why}")
    pattern, most, why = AT_MOST.get(kernel.name, (None, 0, None))
    found = [text for text in kernel.instructions if pattern and re.match(pattern, text)]
    if len(found) > most:
        problems.append(f"{where}: has {len(found)} times {found[0]}, expected at most {most}: {why}")
    for variant, rule in BETWEEN:
        count = between(kernel.instructions, rule) if variant in kernel.symbol else rule[2]
        if count is None or count < rule[2]:
            problems.append(f"{where}: has {count} {rule[1]} between `{rule[0]}` and `{rule[3]}`, expected at least {rule[2]}")
    return problems


def read_kernels(tool, objects):
    kernels = []
    for path in objects:
        def dump(flag, path=path):
            result = subprocess.run([tool, flag, path], capture_output=True, text=True, check=False)
            if result.returncode != 0:
                sys.exit(f"{tool} {flag} {path}: {result.stderr.strip()}")
            return result.stdout
        resources, instructions = parse_resources(dump("--dump-resource-usage")), parse_instructions(dump("--dump-sass"))
        for (arch, symbol), numbers in resources.items():
            kernels.append(Kernel(arch, symbol, *numbers, instructions.get((arch, symbol), [])))
    return kernels


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("objects", nargs="+")
    parser.add_argument("--cuobjdump")
    parser.add_argument("--table", action="store_true", help="print every kernel")
    options = parser.parse_args()
    tool = find_tool(options.cuobjdump)
    if tool is None:
        print("SKIPPED: cuobjdump is not installed (PyPI: nvidia-cuda-cuobjdump)")
        return 1 if os.environ.get("CI") == "true" else SKIPPED
    kernels = read_kernels(tool, options.objects)
    problems = [problem for kernel in kernels for problem in check(kernel)]
    missing = set(KERNELS) - {kernel.name for kernel in kernels}
    problems += [f"{name}: no object file holds this kernel" for name in sorted(missing)]
    if options.table:
        for kernel in sorted(kernels, key=lambda k: (k.arch, k.symbol)):
            print(f"{kernel.arch:8} {kernel.registers:4} registers {kernel.stack:3} stack {kernel.local:3} local  "
                  f"{kernel.name or kernel.symbol}")
    for problem in problems:
        print(problem)
    print(f"resource report: {len(kernels)} kernels, {len(problems)} problems")
    return 1 if problems or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
