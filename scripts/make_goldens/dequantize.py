#!/usr/bin/env python3
"""Writes tests/golden/dequantize/: random blocks of every quantised type and their fp32 values.

The reference is the `gguf` package's dequantiser. Needs numpy and gguf; run it again only to add types.
  python3 scripts/make_goldens/dequantize.py
"""
import pathlib

import gguf
import numpy as np

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "dequantize"
# Elements of each golden row: eight super-blocks.
COLUMNS = 2048
# Byte offsets of the half-precision scales in a block of each type.
SCALES = {
    "Q8_0": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(20240)
    for name, scale_offsets in SCALES.items():
        kind = gguf.GGMLQuantizationType[name]
        block_elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (COLUMNS // block_elements, block_bytes), dtype=np.uint8)
        for offset in scale_offsets:
            # Scales of all magnitudes, subnormal halves and zero included, but finite.
            scales = (random.normal(size=len(blocks)) * 10.0 ** random.integers(-7, 3, len(blocks))).astype(np.float16)
            scales[0] = 0.0
            blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
        values = gguf.quants.dequantize(blocks.reshape(1, -1), kind).astype("<f4")
        assert values.size == COLUMNS and np.isfinite(values).all()
        (OUT / f"{name}.blocks").write_bytes(blocks.tobytes())
        (OUT / f"{name}.f32").write_bytes(values.tobytes())


if __name__ == "__main__":
    main()
