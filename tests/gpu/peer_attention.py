#!/usr/bin/env python3
"""Times PyTorch's attention on a GPU, for the rows of gpu_bench's tables: causal prompts, by cuDNN and by
FlashAttention 2. Prints JSON. Needs torch. A call's time is the median over launches of a graph of 20 calls."""
import json
import statistics

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ModuleNotFoundError:
    raise SystemExit("peer_attention: needs torch (python3 -m pip install torch) and a GPU") from None

CALLS, RUNS = 20, 5
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention 2": SDPBackend.FLASH_ATTENTION}
SHAPES = [(2048, 128), (4096, 128), (8192, 128), (16384, 128), (8192, 64), (8192, 256)]


def time_in_graph(call):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    times = []
    for _ in range(RUNS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / CALLS)
    return statistics.median(times[1:])


def main():
    if not torch.cuda.is_available():
        raise SystemExit("peer_attention: PyTorch finds no GPU")
    rows = []
    for length, head_dim in SHAPES:
        heads, kv_heads = 32 * 128 // head_dim, 8 * 128 // head_dim
        q = torch.randn(1, heads, length, head_dim, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(1, kv_heads, length, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        for name, backend in BACKENDS.items():
            def call():
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            try:
                with sdpa_kernel(backend), torch.no_grad():
                    ms = time_in_graph(call)
            except RuntimeError as error:
                rows.append({"name": f"prefill {length} x {head_dim}", "by": name, "error": str(error)[:200]})
                continue
            operations = 2 * heads * length * length * head_dim
            rows.append({"name": f"prefill {length} x {head_dim}", "by": name, "us": round(ms * 1e3, 1),
                         "tflops": round(operations / ms / 1e9, 1)})
    print(json.dumps({"torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
