#!/usr/bin/env python3
"""Writes a checkpoint with random weights, so that a machine without a network measures speeds of real models.

  make_random_model.py FOLDER [--shape llama-8b|llama-1b|tiny] [--tokenizer TOKENIZER.json]

The shapes are those of Llama 3.1 8B and Llama 3.2 1B; answers mean nothing. Weights are normal with a deviation of
0.02 and repeat after 64 Mi values. Needs numpy. The tokenizer may know fewer tokens than the model.
"""
import argparse
import json
import pathlib
import shutil

try:
    import numpy
except ModuleNotFoundError:
    raise SystemExit("make_random_model: needs numpy (python3 -m pip install numpy)") from None

SHAPES = {  # layers, hidden, heads, KV heads, head size, feed-forward, vocabulary, tied output
    "llama-8b": (32, 4096, 32, 8, 128, 14336, 128256, False),
    "llama-1b": (16, 2048, 32, 8, 64, 8192, 128256, True),
    "tiny": (2, 256, 4, 2, 64, 512, 4096, True),
}
POOL_VALUES = 64 << 20


def config_of(shape):
    layers, hidden, heads, kv_heads, head_dim, ffn, vocabulary, tied = SHAPES[shape]
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_act": "silu",
        "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2, "head_dim": head_dim,
        "hidden_size": hidden, "intermediate_size": ffn, "max_position_embeddings": 131072,
        "num_attention_heads": heads, "num_hidden_layers": layers, "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
        "tie_word_embeddings": tied, "vocab_size": vocabulary,
    }


def tensors_of(shape):
    """Name and shape of each tensor."""
    layers, hidden, heads, kv_heads, head_dim, ffn, vocabulary, tied = SHAPES[shape]
    tensors = [("model.embed_tokens.weight", (vocabulary, hidden)), ("model.norm.weight", (hidden,))]
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name, rows, columns in (("self_attn.q_proj", heads * head_dim, hidden),
                                    ("self_attn.k_proj", kv_heads * head_dim, hidden),
                                    ("self_attn.v_proj", kv_heads * head_dim, hidden),
                                    ("self_attn.o_proj", hidden, heads * head_dim),
                                    ("mlp.gate_proj", ffn, hidden), ("mlp.up_proj", ffn, hidden),
                                    ("mlp.down_proj", hidden, ffn)):
            tensors.append((f"{prefix}{name}.weight", (rows, columns)))
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors.append((f"{prefix}{name}.weight", (hidden,)))
    if not tied:
        tensors.append(("lm_head.weight", (vocabulary, hidden)))
    return tensors


def bf16(values):
    return (values.astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16)


def write_weights(path, tensors):
    header, end = {}, 0
    for name, shape in tensors:
        begin, end = end, end + 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = numpy.random.default_rng(1)
    count = min(POOL_VALUES, end // 2)
    pool = bf16(generator.standard_normal(count, dtype=numpy.float32) * numpy.float32(0.02))
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, shape in tensors:
            left = int(numpy.prod(shape))
            if len(shape) == 1:
                file.write(bf16(numpy.ones(left)).tobytes())
                continue
            at = int(generator.integers(count))
            while left > 0:
                part = min(left, count - at)
                file.write(memoryview(pool[at:at + part]).cast("B"))
                left, at = left - part, 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-8b")
    parser.add_argument("--tokenizer", type=pathlib.Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "config.json").write_text(json.dumps(config_of(options.shape), indent=1), encoding="utf-8")
    write_weights(options.folder / "model.safetensors", tensors_of(options.shape))
    if options.tokenizer is not None:
        shutil.copy(options.tokenizer, options.folder / "tokenizer.json")


if __name__ == "__main__":
    main()
