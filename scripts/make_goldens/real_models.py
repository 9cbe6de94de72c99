#!/usr/bin/env python3
"""Writes what transformers answers, in fp32 on the dequantised checkpoint, for the real models.

  real_models.py corpus               tests/golden/real_models/documents.json.gz from this checkout
  real_models.py smollm2 MODEL.gguf   tests/golden/real_models/smollm2.golden.gz
  real_models.py gemma3 MODEL.gguf    tests/golden/real_models/gemma3.golden.gz

Needs torch, transformers, accelerate, gguf and tokenizers, and some minutes for each model.
A golden is gzip over little-endian words of 32 bits:
  MAGIC
  number of prompts;   each: tokens, their ids; answer's tokens, their ids, and as fp32 the gap between
                       the two largest logits where each was chosen
  number of documents; each: tokens, their ids; for every position TOP ids, then for every position
                       their natural log-probabilities as fp32, most likely first
Log-probabilities keep 16 bits of mantissa, so that they compress. Answers are greedy, lowest id first
among equals, and end with the end token or after ANSWER_TOKENS. The gaps come from one pass over
prompt and answer, not from the batched generation; where the two disagree the gap is 0.
"""
import gzip
import importlib.util
import json
import pathlib
import subprocess
import sys

import numpy as np
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "golden" / "real_models"
MAGIC = 0x31474454
POSITIONS = 20000
TOP = 8
ANSWER_TOKENS = 64
BATCH = 24
# Characters of a document, in turn: from one KV partition of 256 tokens to beyond a window of 512.
DOCUMENT_CHARACTERS = (500, 1000, 1600, 2400, 4200)
LICENSES = ("Apache-2.0", "GPL-3", "MPL-2.0")
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def read_texts():
    return json.loads((OUT / "texts.json").read_text())


def repository_text(patterns, limit):
    files = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split()
    return "\n".join((ROOT / name).read_text() for name in files)[:limit]


def cut(text):
    """Cuts a text into documents of varied length."""
    documents = []
    while text:
        size = DOCUMENT_CHARACTERS[len(documents) % len(DOCUMENT_CHARACTERS)]
        documents.append(text[:size])
        text = text[size:]
    return documents


def make_corpus():
    """Documents of all kinds in turn, so that every beginning of the list is varied."""
    licenses = [(pathlib.Path("/usr/share/common-licenses") / name).read_text() for name in LICENSES]
    kinds = [
        list(read_texts()["prose"].values()),
        cut(repository_text(["docs/*.md", "README.md"], 30000)),
        cut(repository_text(["common/kv/*", "common/engine/*.cc", "proto/*"], 30000)),
        cut("\n".join(text[1000:8000] for text in licenses)),
        cut(repository_text(["scripts/*.py", "scripts/*.sh"], 14000)),
    ]
    documents = []
    while any(kinds):
        documents += [kind.pop(0) for kind in kinds if kind]
    write_gzip("documents.json.gz", json.dumps(documents, ensure_ascii=False).encode())


def write_gzip(name, data):
    packed = gzip.compress(data, 9, mtime=0)
    (OUT / name).write_bytes(packed)
    print(f"{name}: {len(packed)} bytes")


def load_tokenizer(name, path):
    """The tokenizer that the tokenizer goldens were made with."""
    source = ROOT / "tests" / "golden" / "tokenizer" / "make_corpus.py"
    spec = importlib.util.spec_from_file_location("make_corpus", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {"smollm2": module.smollm_from_gguf, "gemma3": module.gemma_from_gguf}[name](path)


def chat(question):
    return (f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"
            "<|im_start|>assistant\n")


def make_prompts(name, encode, documents):
    """48 short prompts, and two that are longer than a KV partition and than a window."""
    texts = read_texts()
    wrap = chat if name == "smollm2" else (lambda question: f"Question: {question}\nAnswer:")
    prompts = [encode(wrap(question)) for question in texts["questions"]]
    prompts += [encode(text) for text in texts["beginnings"]]
    whole = encode("\n".join(documents[1:12]))
    return prompts + [whole[:300], whole[:700]]


class Reference:
    def __init__(self, path):
        path = pathlib.Path(path)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager").eval()
        self.eos = self.model.config.eos_token_id

    def logits(self, ids):
        """Yields (first position, logits) in pieces of one unpadded pass over `ids`."""
        hidden = self.model.model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        for begin in range(0, len(ids), 256):
            yield begin, self.model.lm_head(hidden[begin:begin + 256])

    def generate(self, prompts):
        """Greedy answers to a batch, padded on the left."""
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        cache = transformers.DynamicCache(config=self.model.config)
        answers = [[] for _ in prompts]
        for _ in range(ANSWER_TOKENS):
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1]:]
            hidden = self.model.model(input_ids=ids, attention_mask=mask, position_ids=positions,
                                      past_key_values=cache, use_cache=True).last_hidden_state
            logits = self.model.lm_head(hidden[:, -1])
            # The first of equal maxima, whatever argmax promises.
            ids = (logits == logits.max(1, keepdim=True).values).int().argmax(1, keepdim=True)
            for answer, token in zip(answers, ids[:, 0].tolist()):
                if not answer or answer[-1] != self.eos:
                    answer.append(token)
            if all(answer[-1] == self.eos for answer in answers):
                break
            mask = torch.cat([mask, torch.ones(len(prompts), 1, dtype=mask.dtype)], 1)
        return answers

    def gaps(self, prompt, answer):
        """The top-two gap at each token of the answer; 0 where another token is the largest."""
        gaps = []
        for begin, logits in self.logits(prompt + answer[:-1]):
            values, tokens = logits.topk(2)
            for row in range(len(values)):
                index = begin + row - len(prompt) + 1
                if index >= 0:
                    agrees = tokens[row, 0] == answer[index]
                    gaps.append(float(values[row, 0] - values[row, 1]) if agrees else 0.0)
        return gaps

    def top(self, ids):
        tokens, logprobs = [], []
        for _, logits in self.logits(ids):
            values, indices = torch.log_softmax(logits.double(), -1).topk(TOP)
            tokens.append(indices.numpy())
            logprobs.append(values.float().numpy())
        return np.concatenate(tokens), np.concatenate(logprobs)


def words(values):
    return np.asarray(values, dtype="<u4").tobytes()


def round_mantissa(values):
    """Rounds fp32 to 16 explicit bits of mantissa."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    return ((bits + 0x40) & 0xFFFFFF80).tobytes()


def answer_prompts(reference, prompts):
    answers = [None] * len(prompts)
    by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for begin in range(0, len(prompts), BATCH):
        batch = by_length[begin:begin + BATCH]
        for index, answer in zip(batch, reference.generate([prompts[i] for i in batch])):
            answers[index] = answer
        print(f"answered {begin + len(batch)}", flush=True)
    out = words([len(prompts)])
    for prompt, answer in zip(prompts, answers):
        gaps = np.asarray(reference.gaps(prompt, answer), dtype="<f4")
        out += words([len(prompt)]) + words(prompt) + words([len(answer)]) + words(answer)
        out += gaps.tobytes()
    return out


def force_documents(reference, documents):
    out, count, positions = b"", 0, 0
    for ids in documents:
        ids = ids[:POSITIONS - positions]
        if not ids:
            break
        tokens, logprobs = reference.top(ids)
        out += words([len(ids)]) + words(ids) + words(tokens) + round_mantissa(logprobs)
        count, positions = count + 1, positions + len(ids)
        print(f"{positions} positions", flush=True)
    if positions < POSITIONS:
        sys.exit(f"the documents have {positions} positions, expected {POSITIONS}")
    return words([count]) + out


@torch.inference_mode()
def main():
    if sys.argv[1] == "corpus":
        make_corpus()
        return
    name, path = sys.argv[1:]
    tokenizer = load_tokenizer(name, path)
    documents = json.loads(gzip.decompress((OUT / "documents.json.gz").read_bytes()))
    encode = lambda text: tokenizer.encode(text).ids
    reference = Reference(path)
    data = words([MAGIC]) + answer_prompts(reference, make_prompts(name, encode, documents))
    data += force_documents(reference, [encode(text) for text in documents])
    write_gzip(f"{name}.golden.gz", data)


if __name__ == "__main__":
    main()
