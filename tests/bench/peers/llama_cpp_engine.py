"""Measures llama.cpp's CPU engine in this process and prints its figures as JSON.

Uses the C interface that the Python package llama-cpp-python carries, so that what is timed is llama_decode alone:
prompts of given lengths in one batch, and steps of one token for each of some sequences with caches of their own.
Weights are made from the given GGUF file by llama.cpp's own quantiser, or taken as the file has them.
"""

import argparse
import ctypes
import json
import pathlib
import statistics
import time

import llama_cpp

FILE_TYPES = {
    "BF16": llama_cpp.LLAMA_FTYPE_MOSTLY_BF16,
    "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
}
# Any token but a special one does: no engine's speed depends on which.
TOKEN = 1000


def with_weights(model: pathlib.Path, weights: str, folder: pathlib.Path) -> pathlib.Path:
    """The model's file in which matrices are stored as `weights`; made once."""
    if weights == "as-stored":
        return model
    path = folder / f"{model.stem}.{weights}.gguf"
    if not path.exists():
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = FILE_TYPES[weights]
        params.allow_requantize = True
        part = path.with_suffix(".part")
        if llama_cpp.llama_model_quantize(str(model).encode(), str(part).encode(), ctypes.byref(params)) != 0:
            raise SystemExit(f"llama.cpp could not write {path} as {weights}")
        part.rename(path)
    return path


class Engine:
    """One model and one context: `sequences` caches of `context` tokens each."""

    def __init__(self, path: pathlib.Path, threads: int, sequences: int, context: int, rows: int):
        self._model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise SystemExit(f"llama.cpp could not load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = sequences * context
        params.n_batch = params.n_ubatch = rows
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = False
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise SystemExit(f"llama.cpp could not make a context of {sequences} x {context} tokens")
        self._batch = llama_cpp.llama_batch_init(rows, 0, 1)

    def close(self):
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def step(self, rows):
        """Decodes `rows`: (sequence, position, wants logits) each."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (sequence, position, logits) in enumerate(rows):
            batch.token[i] = TOKEN + i
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = logits
        if llama_cpp.llama_decode(self._context, batch) != 0:
            raise SystemExit(f"llama_decode failed on {len(rows)} rows")
        llama_cpp.llama_synchronize(self._context)


def seconds_of(run, at_least: float) -> float:
    """The median time of `run`, repeated for `at_least` seconds and thrice at least, after one that warms up."""
    run()
    times: list[float] = []
    while len(times) < 3 or sum(times) < at_least:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure_prefill(path: pathlib.Path, args, tokens: int) -> dict:
    engine = Engine(path, args.threads, 1, tokens, min(tokens, args.chunk))

    def run():
        engine.clear()
        for begin in range(0, tokens, args.chunk):
            end = min(tokens, begin + args.chunk)
            engine.step([(0, i, i + 1 == tokens) for i in range(begin, end)])

    seconds = seconds_of(run, args.time)
    engine.close()
    return {"kind": "prefill", "tokens": tokens, "tokens_per_second": tokens / seconds}


def measure_decode(path: pathlib.Path, args, sequences: int, context: int) -> dict:
    steps = 16
    engine = Engine(path, args.threads, sequences, context + steps, max(context, sequences))
    position = context

    def run():
        nonlocal position
        if position == context + steps:
            memory = llama_cpp.llama_get_memory(engine._context)
            for sequence in range(sequences):
                llama_cpp.llama_memory_seq_rm(memory, sequence, context, -1)
            position = context
        engine.step([(sequence, position, True) for sequence in range(sequences)])
        position += 1

    for sequence in range(sequences):
        engine.step([(sequence, i, False) for i in range(context)])
    seconds = seconds_of(run, args.time)
    engine.close()
    return {
        "kind": "decode",
        "sequences": sequences,
        "context": context,
        "tokens_per_second": sequences / seconds,
    }


def integers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="a GGUF file")
    parser.add_argument("--weights", choices=[*FILE_TYPES, "as-stored"], default="as-stored")
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="where made files are kept")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prefill", type=integers, default=[512])
    parser.add_argument("--decode", type=integers, default=[1, 8, 32])
    parser.add_argument("--contexts", type=integers, default=[512])
    parser.add_argument("--chunk", type=int, default=512, help="rows of a prefill step")
    parser.add_argument("--time", type=float, default=1.0, help="seconds for each shape")
    args = parser.parse_args()
    llama_cpp.llama_log_set(_SILENT, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    path = with_weights(args.model, args.weights, args.folder)
    results = [measure_prefill(path, args, tokens) for tokens in args.prefill]
    for context in args.contexts:
        results += [measure_decode(path, args, sequences, context) for sequences in args.decode]
    features = llama_cpp.llama_print_system_info().decode().strip()
    engine = f"llama-cpp-python {llama_cpp.__version__} ({features})"
    print(json.dumps({"engine": engine, "results": results}))


@llama_cpp.llama_log_callback
def _SILENT(level, text, user_data):
    del level, text, user_data


if __name__ == "__main__":
    main()
