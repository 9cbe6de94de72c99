#!/usr/bin/env python3
"""Writes the fuzz seeds of checkpoint parsers: small valid files for mutations to start from.

Needs numpy, gguf and safetensors, and the folder that tiny_checkpoints.py writes.
  python3 scripts/make_goldens/fuzz_corpus.py
"""
import json
import pathlib
import shutil

import gguf
import numpy as np
import safetensors.numpy

TESTS = pathlib.Path(__file__).resolve().parents[2] / "tests"
CORPUS = TESTS / "fuzz" / "corpus"
HIDDEN, FFN, VOCABULARY = 32, 32, 8
TYPES = ["F32", "F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "BF16"]


def write_gguf(architecture: str, random: np.random.Generator) -> None:
    path = CORPUS / "gguf_fuzz" / f"{architecture}.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("seed")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    if architecture == "gemma3":
        writer.add_sliding_window(16)
    if architecture == "qwen2":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(2.0)
        writer.add_rope_scaling_orig_ctx_len(32)
    writer.add_tokenizer_model("gpt2" if architecture.startswith("qwen") else "llama")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(["<unk>", "<s>", "</s>", "<|im_end|>", "a", "b", "ab", "<0x0A>"])
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types([2, 3, 3, 3, 1, 1, 1, 6])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    count = 0

    def add(name: str, rows: int, columns: int) -> None:
        nonlocal count
        values = random.normal(size=(rows, columns) if rows else (columns,)).astype(np.float32)
        kind = gguf.GGMLQuantizationType[TYPES[count % len(TYPES)] if rows else "F32"]
        count += 1
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", VOCABULARY, HIDDEN)
    add("output_norm.weight", 0, HIDDEN)
    for name, rows, columns in [
        ("attn_norm.weight", 0, HIDDEN), ("attn_q.weight", 32, HIDDEN), ("attn_k.weight", 16, HIDDEN),
        ("attn_v.weight", 16, HIDDEN), ("attn_output.weight", HIDDEN, 32), ("ffn_norm.weight", 0, HIDDEN),
        ("ffn_gate.weight", FFN, HIDDEN), ("ffn_up.weight", FFN, HIDDEN), ("ffn_down.weight", HIDDEN, FFN),
    ]:
        add(f"blk.0.{name}", rows, columns)
    extra = {
        "llama": [],
        "qwen2": [("attn_q.bias", 32), ("attn_k.bias", 16), ("attn_v.bias", 16)],
        "qwen3": [("attn_q_norm.weight", 16), ("attn_k_norm.weight", 16)],
        "gemma3": [("attn_q_norm.weight", 16), ("attn_k_norm.weight", 16), ("post_attention_norm.weight", HIDDEN), ("post_ffw_norm.weight", HIDDEN)],
    }[architecture]
    for name, columns in extra:
        add(f"blk.0.{name}", 0, columns)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_fp8(path: pathlib.Path) -> None:
    """Matrices with scales of every shape, by hand: safetensors.numpy has no fp8."""
    tensors = {
        "a.weight": ("F8_E4M3", [2, 3], bytes(range(6))), "a.weight_scale": ("F32", [], np.float32(0.5).tobytes()),
        "b.weight": ("F8_E4M3", [3, 2], bytes(range(0x38, 0x3e))), "b.weight_scale": ("BF16", [3, 1], b"\x80\x3f" * 3),
        "c.weight": ("F8_E4M3", [3, 5], bytes(range(0x70, 0x7f))),
        "c.weight_scale_inv": ("F32", [2, 3], np.ones(6, np.float32).tobytes()), "c.input_scale": ("F32", [1], b"\0\0\0\x3f"),
    }
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def main() -> None:
    random = np.random.default_rng(7)
    for architecture in ("llama", "qwen2", "qwen3", "gemma3"):
        write_gguf(architecture, random)
    folder = CORPUS / "safetensors_fuzz"
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {"a": np.ones((2, 3), np.float32), "b": np.zeros(5, np.float16), "c.weight": np.ones((1, 2, 2), np.float32)}
    safetensors.numpy.save_file(tensors, folder / "three.safetensors", metadata={"format": "pt"})
    write_fp8(folder / "fp8.safetensors")
    folder = CORPUS / "hf_config_fuzz"
    folder.mkdir(parents=True, exist_ok=True)
    for source in sorted((TESTS / "golden" / "tiny").glob("*/config.json")):
        shutil.copy(source, folder / f"{source.parent.name}.json")
    shutil.copy(TESTS / "golden" / "tiny" / "llama3" / "model.safetensors.index.json", folder / "index.json")


if __name__ == "__main__":
    main()
