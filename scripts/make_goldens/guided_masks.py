#!/usr/bin/env python3
"""Token masks by another implementation, for tests/golden/guided/masks.jsonl.

    guided_masks.py SmolLM2-135M-Instruct.Q4_1.gguf > tests/golden/guided/masks.jsonl

Needs the packages gguf, numpy and xgrammar. A line is one place in one constraint: how many tokens
are allowed there and the CRC-32 of their ids (ascending, 32-bit little-endian), by xgrammar 0.2.8.
"""
import json
import sys
import zlib

import gguf
import numpy as np
import xgrammar

CONTROL = 3

REGEXES = [
    ("[a-z]+( [a-z]+)*", ["", "a", "hello ", "hello w"]),
    ("[0-9]{4}-[0-9]{2}-[0-9]{2}", ["", "2", "2024", "2024-", "2024-01-0"]),
    ("(foo|bar|foobar)+", ["", "f", "fo", "foo", "foob", "foobar"]),
    ("[A-Z][a-z]{2,8}(, [A-Z][a-z]{2,8}){0,3}\\.", ["", "P", "Pa", "Paris", "Paris,", "Paris, Rome"]),
    ("https?://[a-z0-9.]+(/[a-z]*)?", ["", "http", "https", "http://", "https://a.b", "https://a.b/c"]),
    ("(yes|no|maybe) (sir|madam)", ["", "y", "yes", "yes ", "maybe s"]),
    ("[^a-z]{1,12}", ["", "A", "12", "\u00e9\u00e8"]),
    ("\u00e9[\u4e00-\u9fff]{2,3}", ["", "\u00e9", "\u00e9\u4e2d", "\u00e9\u4e2d\u6587"]),
    ("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?", ["", "-", "0", "12", "12.", "1e", "1e-5"]),
]
GRAMMARS = [
    ('root ::= "(" root* ")" | [a-z]{1,3}', ["", "(", "((a", "((a)", "(abc", "(abcd"]),
    ('root ::= item ("," " "? item)*\nitem ::= [A-Z] [a-z]* | "[" root "]"', ["", "A", "Ab,", "[A", "[A]", "[Ab, [C"]),
    ('root ::= "{" pair ("," pair)* "}"\npair ::= "\\"" [a-z]+ "\\":" value\nvalue ::= [0-9]+ | root | "true"',
     ["", "{", "{\"", "{\"a", "{\"a\":", "{\"a\":{\"b\":1", "{\"a\":tr"]),
]


def vocabulary(path):
    fields = gguf.GGUFReader(path).fields
    parts = lambda key: [fields[key].parts[i] for i in fields[key].data]
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = {chr(b): b for b in printable}
    symbols.update({chr(256 + n): b for n, b in enumerate(b for b in range(256) if b not in printable)})
    tokens = [bytes(part).decode() for part in parts("tokenizer.ggml.tokens")]
    kinds = [int(part[0]) for part in parts("tokenizer.ggml.token_type")]
    return [b"" if kind == CONTROL else bytes(symbols[c] for c in token) for token, kind in zip(tokens, kinds)]


def digest(ids):
    return {"count": len(ids), "crc32": zlib.crc32(np.array(sorted(ids), dtype="<i4").tobytes())}


def accepted(compiled, prefix, tokens):
    """The ids xgrammar takes next. Asked one by one: its bit masks leave out tokens that end several rules at once."""
    matcher = xgrammar.GrammarMatcher(compiled)
    if prefix and not matcher.accept_string(prefix):
        return None
    ids = []
    for i, token in enumerate(tokens):
        if token and matcher.accept_token(i):
            ids.append(i)
            matcher.rollback(1)
    return ids


def main():
    tokens = vocabulary(sys.argv[1])
    # A token without bytes would be allowed everywhere there: it gets bytes that no constraint has.
    padded = [token or b"\xff\xff%d" % i for i, token in enumerate(tokens)]
    info = xgrammar.TokenizerInfo(padded, vocab_type=xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[2])
    compiler = xgrammar.GrammarCompiler(info)
    for kind, cases in (("regex", REGEXES), ("grammar", GRAMMARS)):
        for text, prefixes in cases:
            compiled = compiler.compile_regex(text) if kind == "regex" else compiler.compile_grammar(text)
            for prefix in prefixes:
                ids = accepted(compiled, prefix, tokens)
                if ids is None:
                    print(kind, text, prefix, "is refused", file=sys.stderr)
                    continue
                print(json.dumps({"kind": kind, "text": text, "prefix": prefix, **digest(ids)}))


if __name__ == "__main__":
    main()
