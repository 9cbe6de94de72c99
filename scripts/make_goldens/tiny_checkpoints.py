#!/usr/bin/env python3
"""Writes tests/golden/tiny/: a random checkpoint of every supported architecture and its logits.

Each folder is a Hugging Face checkpoint with bf16 weights, and beside it lie
  logits.f32   little-endian fp32 [positions, vocabulary]: transformers' answer, computed in fp32
  golden.json  the prompt's token ids, the positions stored and the vocabulary size
and for one checkpoint of each family NAME.gguf, the same weights in GGUF's conventions.
Needs torch, transformers, safetensors and gguf; seeds are fixed, so a second run changes nothing.
Without names it writes all of them.
  python3 scripts/make_goldens/tiny_checkpoints.py [NAME...]
"""
import json
import pathlib
import shutil
import sys

import gguf
import numpy as np
import torch
import transformers

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "tiny"
PROMPT_TOKENS = 80
POSITIONS = list(range(0, PROMPT_TOKENS, 5)) + [PROMPT_TOKENS - 1]
VOCABULARY = 144

# What all share. Larger than usual initial weights make attention and logits sharp enough to tell right from wrong.
COMMON = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
    initializer_range=0.15,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
    tie_word_embeddings=False,
    attn_implementation="eager",
)
LLAMA3_ROPE = dict(
    rope_type="llama3",
    rope_theta=500000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
GEMMA_ROPE = dict(
    sliding_attention=dict(rope_type="default", rope_theta=10000.0),
    full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1000000.0),
)
YARN_ROPE = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, rope_theta=10000.0)

# Folder → (configuration class, what differs from COMMON, GGUF architecture or None, shards).
CHECKPOINTS = {
    "llama": (transformers.LlamaConfig, dict(hidden_size=64), "llama", False),
    "llama3": (transformers.LlamaConfig, dict(rope_parameters=LLAMA3_ROPE, num_key_value_heads=1), "llama", True),
    "smollm2": (transformers.LlamaConfig, dict(tie_word_embeddings=True, num_attention_heads=3, num_key_value_heads=1, hidden_size=48), None, False),
    "mistral": (transformers.MistralConfig, dict(sliding_window=24), None, False),
    "qwen2": (transformers.Qwen2Config, dict(hidden_size=64, tie_word_embeddings=True), "qwen2", False),
    "qwen3": (transformers.Qwen3Config, dict(head_dim=32), "qwen3", False),
    "qwen3_yarn": (transformers.Qwen3Config, dict(rope_parameters=YARN_ROPE, num_hidden_layers=1), None, False),
    "gemma3": (
        transformers.Gemma3TextConfig,
        dict(num_hidden_layers=7, sliding_window=32, query_pre_attn_scalar=16, tie_word_embeddings=True,
             rope_parameters=GEMMA_ROPE, rms_norm_eps=1e-6, num_key_value_heads=1, intermediate_size=32),
        "gemma3", False),
}

# transformers' names → GGUF's, within a layer and outside.
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
TOP_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def randomise(model: torch.nn.Module) -> None:
    """Norm weights and biases start as constants, which would hide a missing or swapped one."""
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.data += 0.2 * torch.randn_like(parameter)


def gguf_name(name: str, architecture: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    if stem in TOP_NAMES:
        return f"{TOP_NAMES[stem]}.{suffix}"
    layer, rest = stem.removeprefix("model.layers.").split(".", 1)
    names = dict(LAYER_NAMES)
    names["post_attention_layernorm"] = "post_attention_norm" if architecture == "gemma3" else "ffn_norm"
    return f"blk.{layer}.{names[rest]}.{suffix}"


def interleave(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q or k from the half-split rotary order to the interleaved one of llama GGUF files."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def llama3_factors(rope: dict, head_dim: int) -> np.ndarray:
    """Divisors of the rotary frequencies, as Llama 3 GGUF files carry them."""
    config = transformers.LlamaConfig(**{**COMMON, "head_dim": head_dim, "rope_parameters": dict(rope)})
    scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config)
    plain = 1.0 / rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    return (plain / scaled.double().numpy()).astype(np.float32)


def write_gguf(path: pathlib.Path, model, architecture: str) -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"tiny {path.stem}")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    if architecture == "gemma3":
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["full_attention"]["factor"])
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(rope, config.head_dim))
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if architecture == "llama" and ".q_proj." in name:
            tensor = interleave(tensor, config.num_attention_heads)
        if architecture == "llama" and ".k_proj." in name:
            tensor = interleave(tensor, config.num_key_value_heads)
        if architecture == "gemma3" and "norm" in name:
            tensor = tensor + 1
        values = tensor.detach().numpy().astype(np.float32)
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name, architecture), values)
        else:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(gguf_name(name, architecture), gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(name: str, seed: int) -> None:
    config_class, differences, architecture, is_sharded = CHECKPOINTS[name]
    torch.manual_seed(seed)
    if name in ("llama", "smollm2", "qwen2"):
        # Written without head_dim, as these families' published configurations are.
        settings = {k: v for k, v in {**COMMON, **differences}.items() if k != "head_dim"}
    else:
        settings = {**COMMON, **differences}
    model = transformers.AutoModelForCausalLM.from_config(config_class(**settings), dtype=torch.float32)
    randomise(model)
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="20KB" if is_sharded else "5GB")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = torch.randint(3, VOCABULARY, (1, PROMPT_TOKENS), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits[0, POSITIONS].float().numpy()
    (folder / "logits.f32").write_bytes(logits.astype("<f4").tobytes())
    golden = dict(tokens=tokens[0].tolist(), positions=POSITIONS, vocab_size=VOCABULARY)
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    if architecture is not None:
        config = model.config
        if getattr(config, "head_dim", None) is None:
            config.head_dim = config.hidden_size // config.num_attention_heads
        write_gguf(folder / f"{name}.gguf", model, architecture)
    print(name, "largest logit", float(np.abs(logits).max()), "mean top-two margin",
          float(np.mean(np.diff(np.sort(logits, axis=1)[:, -2:], axis=1))))


def main() -> None:
    chosen = sys.argv[1:] or list(CHECKPOINTS)
    unknown = [name for name in chosen if name not in CHECKPOINTS]
    if unknown:
        sys.exit(f"no checkpoint is named {', '.join(unknown)}, expected some of {', '.join(CHECKPOINTS)}")
    for index, name in enumerate(CHECKPOINTS):
        if name in chosen:
            make(name, 100 + index)
    size_bytes = sum(file.stat().st_size for file in OUT.rglob("*") if file.is_file())
    print("all:", size_bytes, "bytes")
    assert size_bytes < 2_000_000


if __name__ == "__main__":
    main()
