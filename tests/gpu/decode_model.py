#!/usr/bin/env python3
"""What decode attention should take on an H100, from its schedule and a few figures, before one was measured.

    decode_model.py            prints the table of docs/kernels/decode_attention.md
    decode_model.py --check    fails if that page holds another table
"""
import pathlib
import sys

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/kernels/decode_attention.md"
BEGIN, END = "<!-- model -->", "<!-- end of model -->"
ROWS = [(256, 256), (128, 512), (64, 1024), (32, 2048), (16, 4096), (8, 8192), (4, 16384), (2, 32768), (1, 65536),
        (1, 131072), (8, 65536)]
HEADS, KV_HEADS, HEAD_DIM = 16, 2, 128
PARTITION = 256             # tokens
MULTIPROCESSORS = 132       # H100 SXM
ITEMS_AT_ONCE = 2           # narrow blocks on a multiprocessor (kernels/cuda/ops/attention_wgmma.cu)
CLOCK = 1.755               # GHz
COPY = 3000.0               # bytes a ns that a copy reads and writes together: 90 % of the data sheet's 3.35 TB/s
BLOCK = 56.0                # bytes a ns that one of two blocks gets at most: 64 bytes a cycle into a multiprocessor
FIRST, LAST = 1.0, 1.0      # us from the launch until the first bytes arrive, and from the last ones to the end
LAUNCH = 1.0                # us between two kernels of a graph
LATENCY = 0.6               # us of a load from the L2 that is busy
FOLD_CYCLES = 4             # one dependent operation for each partition
TURN_CYCLES = 100           # from one warp of a team to the next
OF_WARP = 64                # partitions that a warp folds in its turn
# us of bandwidth that the product behind attention fills while the merge runs: 64 blocks ask for 128 KB of weights each
# before they wait.
EARLY_WEIGHTS = 64 * 128 * 1024 / COPY / 1e3


def model(batch, length):
    partitions = -(-length // PARTITION)
    wanted = MULTIPROCESSORS * ITEMS_AT_ONCE // KV_HEADS
    longest = -(-batch * partitions // wanted)
    pieces = -(-partitions // longest)
    works = batch * pieces * KV_HEADS
    slots = MULTIPROCESSORS * ITEMS_AT_ONCE
    kv_bytes = batch * length * KV_HEADS * HEAD_DIM * 2 * 2
    record_bytes = batch * partitions * HEADS * (HEAD_DIM + 2) * 4 if pieces > 1 else 0
    busiest = -(-works // slots) * -(-partitions // pieces) * PARTITION * HEAD_DIM * 2 * 2
    busy = max((kv_bytes + record_bytes) / COPY, busiest / BLOCK) / 1e3
    attend = FIRST + busy + LAST
    merge = 0.0
    if pieces > 1:
        # Warps of 32 columns; each multiprocessor runs eight at a time, which share its port to the L2.
        warps = batch * HEADS * HEAD_DIM // 32
        rounds = -(-warps // (MULTIPROCESSORS * 8))
        fold = (partitions * FOLD_CYCLES + -(-partitions // OF_WARP) * TURN_CYCLES) / CLOCK / 1e3
        # The schedule is looked up before the wait for the records.
        merge = LAUNCH + LATENCY + rounds * max(fold, record_bytes / MULTIPROCESSORS / 2 / BLOCK / 1e3)
    # Behind the kernel that writes K and V, attention has asked for its first bytes before that one ends.
    in_step = busy + LAST + max(0.0, merge - EARLY_WEIGHTS)
    copy = kv_bytes / COPY / 1e3
    return {"works": works, "rounds": works / slots, "pieces": pieces, "kv": kv_bytes, "records": record_bytes,
            "attend": attend, "merge": merge, "of_copy": copy / (attend + merge), "in_step": copy / in_step}


def table():
    lines = ["| Sequences x tokens | works | rounds | pieces of a row | KV, MB | records, MB | attention, µs | merge, µs | "
             "alone, % of copy | in a step, % |", "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for batch, length in ROWS:
        row = model(batch, length)
        lines.append(f"| {batch} x {length} | {row['works']} | {row['rounds']:.2f} | {row['pieces']} | "
                     f"{row['kv'] / 1e6:.1f} | {row['records'] / 1e6:.1f} | {row['attend']:.1f} | {row['merge']:.1f} | "
                     f"{100 * row['of_copy']:.0f} | {100 * row['in_step']:.0f} |")
    return "\n".join(lines)


def main():
    if sys.argv[1:] != ["--check"]:
        print(table())
        return 0
    held = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()
    if held == table():
        return 0
    print(f"{PAGE} holds another table than decode_model.py prints")
    return 1


if __name__ == "__main__":
    sys.exit(main())
