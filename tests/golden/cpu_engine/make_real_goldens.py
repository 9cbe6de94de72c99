#!/usr/bin/env python3
"""Makes tests/golden/cpu_engine/real/NAME.json: what transformers, in fp32 on the dequantised checkpoint,
says of prompts of random tokens. Needs torch, transformers, accelerate and gguf; run once, output committed.

    make_real_goldens.py MODEL_FOLDER GGUF_FILE OUTPUT_JSON
"""
import json
import sys

import torch
from transformers import AutoModelForCausalLM


def describe(model, ids, greedy_tokens):
    """Top-5 logprobs in the middle and at the end of `ids`, then greedy tokens with the margin of each."""
    with torch.no_grad():
        step = model(torch.tensor([ids]), use_cache=True)
        logprobs = torch.log_softmax(step.logits[0].double(), -1)
        top = []
        for position in (len(ids) // 2, len(ids) - 1):
            best = torch.topk(logprobs[position], 5)
            top.append({"position": position, "ids": best.indices.tolist(),
                        "logprobs": [round(x, 6) for x in best.values.tolist()]})
        answer, margins = [], []
        for _ in range(greedy_tokens):
            best = torch.topk(step.logits[0, -1], 2)
            answer.append(int(best.indices[0]))
            margins.append(round(float(best.values[0] - best.values[1]), 5))
            step = model(torch.tensor([[answer[-1]]]), past_key_values=step.past_key_values,
                         use_cache=True)
    return {"ids": ids, "top": top, "greedy": answer, "margins": margins}


def main():
    folder, gguf_file, output = sys.argv[1:]
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf_file,
                                                 dtype=torch.float32).eval()
    torch.manual_seed(1)
    cases = []
    for length in (5, 40, 700):
        ids = [2] + torch.randint(300, 40000, (length - 1,)).tolist()
        cases.append(describe(model, ids, 24))
    with open(output, "w", encoding="utf-8") as file:
        json.dump(cases, file)
        file.write("\n")


if __name__ == "__main__":
    main()
