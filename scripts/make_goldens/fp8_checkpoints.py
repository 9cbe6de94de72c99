#!/usr/bin/env python3
"""Writes tests/golden/tiny/*_fp8_*: tiny checkpoints of tests/golden/tiny with matrices in fp8, and their logits.

Torch rounds the matrices to float8_e4m3fn, with scales as published checkpoints have them:
  llama_fp8_channel  compressed-tensors: one bf16 scale a row; the output matrix stays bf16
  llama_fp8_tensor   fp8 (AutoFP8): one fp32 scale a tensor, scales of activations and of the cache; lm_head too
  qwen3_fp8_block    fp8 (DeepSeek-V3, Qwen3-FP8): fp32 scales of blocks, weight_scale_inv
logits.f32 and golden.json are as tiny_checkpoints.py writes them: transformers' answer in fp32 with the weights that
element times scale gives. Those of blocks are dequantised by transformers itself, the others here by torch.
Needs torch, transformers and safetensors; a second run changes nothing.
  python3 scripts/make_goldens/fp8_checkpoints.py
"""
import json
import pathlib
import shutil

import numpy as np
import safetensors.torch
import torch
import transformers

TINY = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "tiny"
E4M3_MAX = 448.0
BLOCK = (16, 16)

COMPRESSED_TENSORS = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "kv_cache_scheme": None,
    "ignore": ["lm_head"],
    "config_groups": {"group_0": {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False,
                    "group_size": None, "block_structure": None, "observer": "minmax"},
        "input_activations": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True},
        "output_activations": None,
    }},
}
FP8_TENSOR = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": []}
FP8_BLOCK = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": list(BLOCK),
             "modules_to_not_convert": ["lm_head"]}


def quantise(weight: torch.Tensor, largest: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Elements, and scales of the shape of `largest`, whose elements serve equal parts of the matrix."""
    scales = (largest / E4M3_MAX).to(dtype)
    spread = scales.float()
    for axis in range(spread.dim()):
        spread = spread.repeat_interleave(weight.shape[axis] // spread.shape[axis], axis)
    return (weight / spread).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn), scales


def by_channel(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return quantise(weight, weight.abs().amax(1, keepdim=True), torch.bfloat16)


def by_tensor(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return quantise(weight, weight.abs().amax(), torch.float32)


def by_block(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = weight.shape
    blocks = weight.reshape(rows // BLOCK[0], BLOCK[0], columns // BLOCK[1], BLOCK[1])
    return quantise(weight, blocks.abs().amax((1, 3)), torch.float32)


# Folder → (checkpoint it is made of, quantiser, what the scale's name adds to the weight's, configuration).
CHECKPOINTS = {
    "llama_fp8_channel": ("llama", by_channel, "_scale", COMPRESSED_TENSORS),
    "llama_fp8_tensor": ("llama", by_tensor, "_scale", FP8_TENSOR),
    "qwen3_fp8_block": ("qwen3", by_block, "_scale_inv", FP8_BLOCK),
}


def convert(source: dict, quantiser, suffix: str, keep_output: bool) -> tuple[dict, dict]:
    """The file's tensors, and the fp32 weights they stand for."""
    stored, meant = {}, {}
    for name, tensor in source.items():
        if tensor.dim() != 2 or "embed" in name or (keep_output and name.startswith("lm_head")):
            stored[name], meant[name] = tensor, tensor.float()
            continue
        codes, scales = quantiser(tensor.float())
        stored[name], stored[name + suffix] = codes, scales
        if scales.dim() < 2 or scales.shape[1] == 1:
            meant[name] = codes.float() * scales.float()
        if quantiser is by_tensor:
            stem = name.removesuffix(".weight")
            stored[stem + ".input_scale"] = torch.tensor(0.05)
            if stem.endswith(("k_proj", "v_proj")):
                stored[f"{stem}.{stem[-6]}_scale"] = torch.tensor(1.0)
    return stored, meant


def load(folder: pathlib.Path, meant: dict, in_blocks: bool):
    arguments = dict(dtype=torch.float32, attn_implementation="eager")
    if in_blocks:
        dequantised = transformers.FineGrainedFP8Config(weight_block_size=BLOCK, dequantize=True,
                                                        modules_to_not_convert=["lm_head"])
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=dequantised, **arguments)
        # What is bf16 in the file is so still; dequantised matrices must not have been rounded to it.
        assert all(p.dtype == torch.float32 for n, p in model.named_parameters() if "_proj.weight" in n)
        return model.float()
    config = transformers.AutoConfig.from_pretrained(folder)
    del config.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(config, **arguments)
    model.load_state_dict(meant)
    return model


def make(name: str) -> None:
    base, quantiser, suffix, quantization = CHECKPOINTS[name]
    folder = TINY / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    source = safetensors.torch.load_file(TINY / base / "model.safetensors")
    stored, meant = convert(source, quantiser, suffix, "lm_head" in json.dumps(quantization))
    safetensors.torch.save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    config = json.loads((TINY / base / "config.json").read_text())
    config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for file in ("generation_config.json", "golden.json"):
        shutil.copy(TINY / base / file, folder / file)
    golden = json.loads((folder / "golden.json").read_text())
    model = load(folder, meant, quantiser is by_block).eval()
    with torch.no_grad():
        logits = model(torch.tensor([golden["tokens"]]), use_cache=False).logits[0, golden["positions"]].float().numpy()
    (folder / "logits.f32").write_bytes(logits.astype("<f4").tobytes())
    before = np.frombuffer((TINY / base / "logits.f32").read_bytes(), "<f4").reshape(logits.shape)
    print(name, "rms from", base, float(np.sqrt(np.mean((logits - before) ** 2))), "of", float(before.std()))


def main() -> None:
    for name in CHECKPOINTS:
        make(name)


if __name__ == "__main__":
    main()
