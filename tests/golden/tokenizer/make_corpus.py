#!/usr/bin/env python3
"""Writes the golden data of the tokenizer tests: a corpus of varied lines, small vocabularies, and
the ids that Hugging Face's `tokenizers` gives, for the vocabularies trained here and for those of
the real models where their GGUF files are given.

usage: make_corpus.py OUT_DIR [NAME=MODEL.gguf ...]     needs: tokenizers, gguf, numpy
  corpus.bin.gz           every line: its length in bytes (uint32, little endian), its bytes
  tiny_<name>.json.gz     tokenizer.json of a small vocabulary with that family's components
  <name>.golden.gz        text: per 100 lines the crc32 over the ids of Encode and over those of
                          Encode with neither special tokens added nor parsed; then full ids of every
                          50th line; then ids with the crc32 of their decoding, with special tokens
                          and without
The lines follow from SEED. Training may break ties differently from run to run, so a vocabulary and its
golden file are always replaced together. Lines are bytes: some are not UTF-8; the oracle sees them with U+FFFD in
place of what is ill-formed (errors="replace").
"""
import gzip
import io
import json
import random
import struct
import sys
import zlib

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

SEED = 20240607
NUM_LINES = 20800
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
MARK = "\u2581"

WORDS = {
    "english": """the of and to in is was he for it with as his on be at by had not are but from or have an they
        which one you were her all she there would their we him been has when who will more no if out so said what
        up its about into than them can only other new some could time these two may then do first any my now such
        like our over man me even most made after also did many before must through back years where much your way
        well down should because each just those people how too little state good very make world still own see men
        work long get here between both life being under never day same another know while last might us great old
        year off come since against go came right used take three distributed prefill decode attention throughput
        tokenization internationalization don't it's I'm they've we'll you're he'd WON'T IT'S""",
    "german": "der die und in den von zu das mit sich des auf für ist im dem nicht ein Straße Übermaß größer Äpfel",
    "french": "le la les des est été où être garçon déjà l'eau aujourd'hui cœur naïve Noël à ça",
    "spanish": "el niño mañana ¿qué? ¡hola! corazón señor año pingüino también",
    "vietnamese": "không có gì quý hơn độc lập tự do Việt Nam Nguyễn phở được người",
    "turkish": "İstanbul ışık öğretmen çocuk güzel şehir IĞDIR değil",
    "russian": "в на и не что он как это всё ещё москва Россия человек время жизнь",
    "greek": "και το να είναι άνθρωπος Ελλάδα ὁ ἄνθρωπος λόγος",
    "hebrew": "שלום עולם של את לא ירושלים בְּרֵאשִׁית",
    "arabic": "السلام عليكم من في على هذا مُحَمَّد العربية ٱللَّٰه ۱۲۳ ٤٥٦",
    "hindi": "नमस्ते दुनिया है में के का हिन्दी क्षत्रिय १२३",
    "bengali": "আমি বাংলায় গান গাই ধন্যবাদ", "tamil": "வணக்கம் உலகம் தமிழ்",
    "thai": "สวัสดีครับ ภาษาไทย กรุงเทพมหานคร ๑๒๓", "tibetan": "བོད་སྐད་ བཀྲ་ཤིས་བདེ་ལེགས།",
    "georgian": "გამარჯობა საქართველო", "armenian": "Բարեւ աշխարհ", "amharic": "ሰላም ለዓለም",
    "chinese": "你好世界 中华人民共和国 人工智能正在改变世界 我们 的 是 在 不 了 有 和 人 這個 臺灣",
    "japanese": "こんにちは世界 東京都 カタカナ ひらがな 人工知能 ﾊﾝｶｸ がぎぐ が",
    "korean": "안녕하세요 세계 대한민국 한국어 각",
}
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇯🇵🇫🇷", "❤️", "1️⃣", "🧑🏿‍🚀", "👩‍❤️‍💋‍👨", "🫠", "☃", "✈︎",
         "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"]
CODE = ["def f(x: int) -> str:\n    return f\"{x:>10}\"", "for (int i = 0; i < n; ++i) {\n\t\tsum += a[i];\n\t}",
        "SELECT * FROM t WHERE a != 'b' AND c >= 10;", "<div class=\"a\">&nbsp;<b>x</b></div>",
        "x = {'a': [1, 2, 3], \"b\": None}", "#include <vector>\r\n#define X(y) ((y)*2)\r\n", "$ ls -la | grep '^d' >> out.txt",
        "https://example.org/a/b?c=d&e=%20f#g", "\\frac{a}{b} \\sum_{i=0}^{n} x_i^2", "if __name__ == '__main__':",
        "\t\t\t\treturn;\n\n\n\n}", "0xDEADBEEF 1e-10 3.14159 1_000_000 0b1010", "user@example.com", "/* ** // -- ++ */",
        "fn main() { println!(\"{:?}\", v); }", "```python\nprint('hi')\n```", "| a | b |\n|---|---|\n| 1 | 2 |", "> </ > </div> >"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<unused7>",
           "<0x41>", "<0xFF>", "<unk>", "<pad>", "<s>", "</s>", "<table>", "</td>", "[multimodal]", "<|begin_of_text|>",
           "<|im_start", "im_end|>", "<|", "<mask>", "<tool>", "<repo_name>", "<|eot_id|>", "Ġ", MARK, MARK * 2, "<unused62419>"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", "\r", "\v", "\f", "\u00a0", "\u2003", "\u3000", "\u2028", "\u0085",
          "\u200b", "\u180e", "\u1680", " \n ", "\n  \n", " \t ", "\x1c", "\x1f", "\u2060", "\ufeff"]
MARKS = ["\u0301", "\u0300", "\u0323", "\u0327", "\u20dd", "\u093c", "\u0951", "\u05b0", "\u064b", "\u3099", "\u0e34", "\u302a"]
BAD_BYTES = [b"\xff", b"\xc0\xaf", b"\xe2\x82", b"\xf0\x9f\x98", b"\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x28\xa1",
             b"\xc3", b"\xfe\xff", b"\xf0\x80\x80\x80", b"\xe0\x80\xaf", b"\xf8\x88\x80\x80\x80"]


class Lines:
    """Draws lines of many kinds."""

    def __init__(self, rng):
        self.rng = rng
        self.words = {name: text.split() for name, text in WORDS.items()}
        # Assigned long ago, so that every library agrees on them.
        spans = ((0x21, 0x7E), (0xA1, 0x24F), (0x370, 0x37F), (0x391, 0x3C9), (0x400, 0x45F), (0x5D0, 0x5EA), (0x620, 0x64A),
                 (0x905, 0x939), (0xE01, 0xE30), (0x10D0, 0x10F0), (0x1E00, 0x1EFF), (0x2010, 0x2027), (0x2030, 0x205E),
                 (0x20A0, 0x20B0), (0x2100, 0x214F), (0x2150, 0x218B), (0x2190, 0x23FF), (0x2460, 0x27BF), (0x3041, 0x3096),
                 (0x30A1, 0x30FA), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xF900, 0xFA2D), (0xFF01, 0xFF5E), (0x10330, 0x1034A),
                 (0x1D400, 0x1D454), (0x1F300, 0x1F5FF), (0x1F600, 0x1F64F), (0x20000, 0x2A6D6))
        self.spans = spans

    def character(self):
        first, last = self.rng.choice(self.spans)
        return chr(self.rng.randint(first, last))

    def sentence(self):
        words = self.words[self.rng.choice(list(self.words)) if self.rng.random() < 0.7 else "english"]
        picked = [self.rng.choice(words) for _ in range(self.rng.randint(1, 25))]
        for i in range(len(picked)):
            roll = self.rng.random()
            if roll < 0.05:
                picked[i] = picked[i].upper()
            elif roll < 0.12:
                picked[i] = picked[i].capitalize()
            elif roll < 0.2:
                picked[i] += self.rng.choice([",", ".", "!", "?", ";", ":", "...", "…", ")", "\"", "'s", "’s", "'S", "'ſ"])
            elif roll < 0.22:
                picked[i] = "(" + picked[i]
        return " ".join(picked)

    def digits(self):
        rng = self.rng
        kinds = [lambda: str(rng.randint(0, 10 ** rng.randint(1, 20))), lambda: f"{rng.random() * 1000:.{rng.randint(1, 6)}f}",
                 lambda: f"{rng.randint(1, 31)}/{rng.randint(1, 12)}/{rng.randint(1900, 2030)}", lambda: "²³½⅓Ⅷ①",
                 lambda: "１２３", lambda: "٣٤٥", lambda: f"{rng.getrandbits(64):x}", lambda: f"-{rng.randint(1, 9)}%"]
        return rng.choice(["", " "]).join(rng.choice(kinds)() for _ in range(rng.randint(1, 6)))

    def whitespace(self):
        rng = self.rng
        out = []
        for _ in range(rng.randint(1, 8)):
            out.append(rng.choice(SPACES) * rng.choice([1, 1, 2, 3, 7, 16, 31]))
            if rng.random() < 0.6:
                out.append(rng.choice(["a", "word", "1", "é", "中", ".", "'s", "x=1"]))
        return "".join(out)

    def control(self):
        return "".join(chr(self.rng.randint(0, 0x9F)) for _ in range(self.rng.randint(1, 30)))

    def combining(self):
        rng = self.rng
        return "".join(rng.choice("aeioucnAEIO가कاが") + "".join(rng.choice(MARKS) for _ in range(rng.randint(0, 4)))
                       for _ in range(rng.randint(1, 12)))

    def repeated(self):
        unit = self.rng.choice(["a", "ab", "=", "-", "ha", "哈", "😀", "0", ".", "\n", " ", "é", "'s", "\t", "aA", "x "])
        return unit * self.rng.randint(2, 30)

    def random_text(self):
        return "".join(self.character() + (" " if self.rng.random() < 0.1 else "") for _ in range(self.rng.randint(1, 30)))

    def mixed(self):
        return "".join(self.part() for _ in range(self.rng.randint(2, 5)))

    def part(self):
        rng = self.rng
        kinds = ((30, self.sentence), (8, self.digits), (8, self.whitespace), (3, self.control), (6, self.combining),
                 (5, self.repeated), (12, self.random_text), (8, lambda: rng.choice(CODE)), (8, lambda: rng.choice(EMOJI)),
                 (10, lambda: rng.choice(SPECIAL)))
        return rng.choices([k for _, k in kinds], [w for w, _ in kinds])[0]()

    def line(self):
        text = (self.mixed() if self.rng.random() < 0.3 else self.part()).encode()
        if self.rng.random() < 0.04:
            at = self.rng.randint(0, len(text))
            text = text[:at] + self.rng.choice(BAD_BYTES) + text[at:]
        return text[:400] if self.rng.random() < 0.99 else text


def make_lines():
    lines = Lines(random.Random(SEED))
    out = [b"", b" ", b"  ", b"\n", b"a", b"'", b"''s", b" 's", b"What is the capital of France?", b"a  1", b"1  a", b"\xff",
           ("字" * 300).encode(), b"a" * 3000, b" " * 31 + b"x", b"\n" * 40, b" 1" * 50, b"x" * 29 + b" " + b"y" * 30]
    while len(out) < NUM_LINES:
        out.append(lines.line())
    return out


def byte_level(tokenizer, use_regex=True):
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def make_tiny(name, lines):
    """Trains a small vocabulary with the components of one family."""
    tokenizer = Tokenizer(models.BPE())
    specials = [AddedToken("<|endoftext|>", special=True), AddedToken("<|im_start|>", special=True),
                AddedToken("<|im_end|>", special=True)]
    split = {"llama3": LLAMA3, "qwen2": QWEN2}.get(name)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if split:
        last = byte_level(tokenizer, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), last])
    elif name == "gpt2":
        tokenizer.pre_tokenizer = byte_level(tokenizer)
    elif name == "split":  # a pattern of no family, merged matches, a prefix space
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex(r"[.,;:]+\s?|[\p{Lu}]"), "merged_with_next"),
            pre_tokenizers.Split("=", "merged_with_previous"), byte_level(tokenizer)])
    elif name == "llama2":
        alphabet = []
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
        tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                               decoders.Strip(" ", 1, 0)])
        specials = ([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")] +
                    [AddedToken(f"<0x{b:02X}>", special=True) for b in range(256)])
    elif name == "metaspace":
        alphabet = []
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme="first", split=True)
        tokenizer.decoder = decoders.Metaspace(MARK, prepend_scheme="first", split=True)
        specials = [AddedToken("<unk>", special=True)]
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(vocab_size={"llama3": 3000, "qwen2": 3000}.get(name, 1500), special_tokens=specials,
                                  initial_alphabet=sorted(alphabet), limit_alphabet=400, show_progress=False)
    text = [line.decode("utf-8", "replace") for line in lines[:6000]]
    if not alphabet:  # learn whole words only, as SentencePiece does
        text = [word for line in text for word in line.replace(" ", " \x00").split("\x00")]
        keep = tokenizer.normalizer
        tokenizer.normalizer = normalizers.Replace(" ", MARK)
        tokenizer.train_from_iterator(text, trainer)
        tokenizer.normalizer = keep
    else:
        tokenizer.train_from_iterator(text, trainer)
    spec = json.loads(tokenizer.to_str())
    finish_spec(name, spec)
    return json.dumps(spec, ensure_ascii=False, separators=(",", ":"))


def finish_spec(name, spec):
    model = spec["model"]
    added = spec["added_tokens"]
    next_id = max(model["vocab"].values()) + 1
    def add(content, **flags):
        added.append({"id": next_id + sum(1 for t in added if t["id"] >= next_id), "content": content, "single_word": False,
                      "lstrip": False, "rstrip": False, "normalized": False, "special": False} | flags)
    if name == "llama3":
        model["ignore_merges"] = True
        add("<|begin_of_text|>", special=True)
        add("<|eot_id|>", special=True)
        add("<tool>", rstrip=True)
        bos = added[-3]["id"]
        spec["post_processor"] = {"type": "Sequence", "processors": [spec["post_processor"], {
            "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}},
                                                     {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [bos], "tokens": ["<|begin_of_text|>"]}}}]}
    elif name == "qwen2":
        model["merges"] = [" ".join(pair) for pair in model["merges"]]  # the older spelling
        add("<tool>", lstrip=True, rstrip=True)
        add("naïve", normalized=True, single_word=True)
        add("  ")
    elif name == "llama2":
        added[:] = [t for t in added if not t["content"].startswith("<0x")]
        model.update(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
        spec["post_processor"] = {
            "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                                     {"Sequence": {"id": "A", "type_id": 0}},
                                                     {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in (("<s>", 1), ("</s>", 2))}}
    elif name == "metaspace":
        model.update(unk_token="<unk>", fuse_unk=True)


def gguf_fields(path):
    import gguf
    reader = gguf.GGUFReader(path)
    return {key[len("tokenizer.ggml."):]: field.contents() for key, field in reader.fields.items()
            if key.startswith("tokenizer.ggml.")}


def smollm_from_gguf(path):
    fields = gguf_fields(path)
    vocab = {token: i for i, token in enumerate(fields["tokens"])}
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(m.split(" ")) for m in fields["merges"]]))
    last = byte_level(tokenizer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), last])
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t, kind in zip(fields["tokens"], fields["token_type"])
                                  if kind == 3])
    return tokenizer


def merges_from_scores(vocab, scores, normal):
    """All pairs of normal tokens that make a normal token, ordered as transformers' converter orders them."""
    merges = []
    for token in normal:
        local = [(token[:i], token[i:], scores[token]) for i in range(1, len(token))
                 if token[:i] in normal and token[i:] in normal]
        merges += sorted(local, key=lambda m: (vocab[m[0]], vocab[m[1]]))
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    return [(left, right) for left, right, _ in merges]


def gemma_from_gguf(path):
    fields = gguf_fields(path)
    tokens, kinds = fields["tokens"], fields["token_type"]
    vocab = {token: i for i, token in enumerate(tokens)}
    normal = {t: None for t, kind in zip(tokens, kinds) if kind == 1}
    merges = merges_from_scores(vocab, dict(zip(tokens, fields["scores"])), normal)
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", MARK)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=kind == 3) for t, kind in zip(tokens, kinds) if kind in (3, 4)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", vocab["<bos>"])])
    return tokenizer


def ids_bytes(ids):
    return struct.pack(f"<I{len(ids)}I", len(ids), *ids)


def write_golden(path, tokenizer, lines):
    texts = [line.decode("utf-8", "replace") for line in lines]
    tokenizer.encode_special_tokens = False
    full = [tokenizer.encode(text).ids for text in texts]
    tokenizer.encode_special_tokens = True
    plain = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    rng = random.Random(SEED + 1)
    with io.TextIOWrapper(gzip.GzipFile(path + ".gz", "wb", 9, mtime=0), newline="\n") as out:
        for begin in range(0, len(lines), 100):
            both = [zlib.crc32(b"".join(ids_bytes(ids) for ids in kind[begin:begin + 100])) for kind in (full, plain)]
            out.write(f"hash {begin} {both[0]} {both[1]}\n")
        for i in range(0, len(lines), 50):
            out.write(f"line {i} {' '.join(map(str, full[i]))}\n")
        size = tokenizer.get_vocab_size()
        for i in range(400):
            # Every fourth: early ids, which hold bytes and control tokens.
            ids = [rng.randrange(size) if rng.random() < 0.5 or i % 4 else rng.randrange(min(size, 500))
                   for _ in range(rng.randint(1, 12))]
            if i % 3 == 0:  # runs of whole lines' ids decode to real text
                ids = full[rng.randrange(len(full))][:60]
            kept = tokenizer.decode(ids, skip_special_tokens=False).encode()
            skipped = tokenizer.decode(ids, skip_special_tokens=True).encode()
            out.write(f"decode {zlib.crc32(kept)} {zlib.crc32(skipped)} {' '.join(map(str, ids))}\n")


def gzip_bytes(data):
    return gzip.compress(data, 9, mtime=0)


def main():
    out = sys.argv[1]
    lines = make_lines()
    with open(f"{out}/corpus.bin.gz", "wb") as file:
        file.write(gzip_bytes(b"".join(struct.pack("<I", len(line)) + line for line in lines)))
    for name in ("gpt2", "llama3", "qwen2", "split", "llama2", "metaspace"):
        spec = make_tiny(name, lines)
        with open(f"{out}/tiny_{name}.json.gz", "wb") as file:
            file.write(gzip_bytes(spec.encode()))
        write_golden(f"{out}/tiny_{name}.golden", Tokenizer.from_str(spec), lines)
    loaders = {"smollm2": smollm_from_gguf, "gemma3": gemma_from_gguf}
    for argument in sys.argv[2:]:
        name, path = argument.split("=", 1)
        write_golden(f"{out}/{name}.golden", loaders[name](path), lines)


if __name__ == "__main__":
    main()
