#!/usr/bin/env python3
"""Writes tests/golden/generation/: what transformers makes of the tiny checkpoint tests/golden/tiny/smollm2.

  beams.json       beam searches: prompt, parameters, the sequences returned and their scores
  processors.json  one row of logits and, for each set of logits processors, which tokens are left, their
                   probabilities, and the likeliest one
Needs torch and transformers; seeds are fixed, so a second run changes nothing.
  python3 scripts/make_goldens/generation.py
"""
import json
import pathlib

import torch
import transformers
from transformers.generation import logits_process as lp

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
OUT = ROOT / "generation"

BEAMS = [
    dict(width=1, tokens=12),
    dict(width=2, tokens=12),
    dict(width=4, tokens=16),
    dict(width=4, tokens=16, length_penalty=0.0),
    dict(width=4, tokens=16, length_penalty=2.0),
    dict(width=4, tokens=16, early_stopping=True),
    dict(width=5, tokens=20, length_penalty=-0.5),
    dict(width=6, tokens=1),
]


def make_beams(model):
    """Some stop tokens are ones the model likes, so that beams do end early."""
    generator = torch.Generator().manual_seed(3)
    cases = []
    for index, case in enumerate(BEAMS * 3):
        prompt = torch.randint(3, 144, (1, 8 + index), generator=generator)
        with torch.no_grad():
            liked = model(prompt).logits[0, -1].topk(4).indices[2:].tolist()
        stops = [2] if index % 3 == 0 else liked[: index % 3]
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            num_beams=case["width"],
            num_return_sequences=case["width"],
            max_new_tokens=case["tokens"],
            length_penalty=case.get("length_penalty", 1.0),
            early_stopping=case.get("early_stopping", False),
            eos_token_id=stops,
            pad_token_id=0,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
        sequences = []
        if case["width"] == 1:  # transformers decodes greedily then and gives no score
            sequences = [dict(tokens=out.sequences[0, prompt.shape[1] :].tolist())]
        else:
            for tokens, score in zip(out.sequences, out.sequences_scores):
                answer = tokens[prompt.shape[1] :].tolist()
                for at, token in enumerate(answer):
                    if token in stops:
                        answer = answer[: at + 1]
                        break
                sequences.append(dict(tokens=answer, score=round(score.item(), 6)))
        cases.append(dict(case, prompt=prompt[0].tolist(), stops=sorted(stops), sequences=sequences))
    return cases


def make_processors():
    generator = torch.Generator().manual_seed(7)
    vocabulary, prompt, output = 128, [5, 9, 9, 33], [70, 71, 5, 71]
    logits = torch.randn(vocabulary, generator=generator) * 3
    logits = (logits * 256).round() / 256  # short to write, exact to read
    ids = torch.tensor([prompt + output])
    sets = [
        dict(temperature=0.7),
        dict(temperature=1.6),
        dict(repetition_penalty=1.3),
        dict(repetition_penalty=0.8),
        dict(top_k=7),
        dict(top_p=0.6),
        dict(top_p=0.95),
        dict(min_p=0.1),
        dict(bad_words=[[3], [71, 40], [12, 13]]),
        dict(min_tokens=9, stop_token_ids=[2, 11]),
        dict(min_tokens=4, stop_token_ids=[2, 11]),
        dict(allowed_token_ids=[1, 4, 64, 100]),
        dict(logit_bias={"4": 6.5, "90": -30.0}),
        dict(repetition_penalty=1.3, temperature=0.7, min_p=0.02, top_k=40, top_p=0.9),
    ]
    rows = []
    for params in sets:
        chain = lp.LogitsProcessorList()
        # NUMERICS.md's order.
        if "logit_bias" in params:
            bias = {(int(token),): value for token, value in params["logit_bias"].items()}
            chain.append(lp.SequenceBiasLogitsProcessor(bias))
        if "bad_words" in params:
            chain.append(lp.NoBadWordsLogitsProcessor(params["bad_words"]))
        if "min_tokens" in params:
            chain.append(
                lp.MinNewTokensLengthLogitsProcessor(
                    len(prompt), params["min_tokens"], torch.tensor(params["stop_token_ids"])
                )
            )
        if "allowed_token_ids" in params:
            banned = [t for t in range(vocabulary) if t not in params["allowed_token_ids"]]
            chain.append(lp.SuppressTokensLogitsProcessor(banned))
        if "repetition_penalty" in params:
            chain.append(lp.RepetitionPenaltyLogitsProcessor(params["repetition_penalty"]))
        if "temperature" in params:
            chain.append(lp.TemperatureLogitsWarper(params["temperature"]))
        if "min_p" in params:
            chain.append(lp.MinPLogitsWarper(params["min_p"]))
        if "top_k" in params:
            chain.append(lp.TopKLogitsWarper(params["top_k"]))
        if "top_p" in params:
            chain.append(lp.TopPLogitsWarper(params["top_p"]))
        scores = chain(ids, logits[None].clone())[0]
        left = [t for t in range(vocabulary) if scores[t] > -1e30]
        p = torch.softmax(scores.double(), 0)
        rows.append(
            dict(
                params=params,
                left=left,
                probabilities=[round(p[t].item(), 9) for t in left],
                likeliest=int(scores.argmax()),
            )
        )
    return dict(prompt=prompt, output=output, logits=logits.tolist(), sets=rows)


def main():
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(ROOT / "tiny" / "smollm2", dtype=torch.float32)
    model.eval()
    for name, golden in (("beams.json", make_beams(model)), ("processors.json", make_processors())):
        (OUT / name).write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
