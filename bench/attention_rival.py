"""Prints the rates of torch's attention, forward and backward, for documents of equal length, as bench/cuda_ops does
for snug's: FlashAttention-2, also with deterministic gradients, and cuDNN.

    python bench/attention_rival.py [tokens [length [head dims]]]        (16384, 2048, 64 128)

A query sees its document up to itself; 32 heads of queries. Operations are those of the pairs that are seen: four a
pair and element forward, ten backward."""

import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, ROUNDS = 32, 20


def seconds(run):
    for _ in range(3):
        run()
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return sorted(times)[len(times) // 2]


def measure(backend, tokens, length, dim, deterministic):
    torch.use_deterministic_algorithms(deterministic)
    shape = (tokens // length, HEADS, length, dim)
    q, k, v, dout = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    attention = torch.nn.functional.scaled_dot_product_attention
    with sdpa_kernel(backend):
        forward = seconds(lambda: attention(q, k, v, is_causal=True))
        out = attention(q, k, v, is_causal=True)
        backward = seconds(lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True))
    pairs = tokens // length * (length * (length + 1) / 2) * HEADS * dim
    return 4 * pairs / forward / 1e12, 10 * pairs / backward / 1e12


def main():
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 16384
    length = int(sys.argv[2]) if len(sys.argv) > 2 else 2048
    for dim in [int(x) for x in sys.argv[3:]] or [64, 128]:
        for name, backend, deterministic in [
            ("FlashAttention-2", SDPBackend.FLASH_ATTENTION, False),
            ("FlashAttention-2, deterministic", SDPBackend.FLASH_ATTENTION, True),
            ("cuDNN", SDPBackend.CUDNN_ATTENTION, False),
        ]:
            try:
                forward, backward = measure(backend, tokens, length, dim, deterministic)
                print(f"heads of {dim:3} {name:32} forward {forward:6.0f} backward {backward:6.0f} TFLOP/s", flush=True)
            except RuntimeError as error:
                print(f"heads of {dim:3} {name:32} {str(error).splitlines()[0][:80]}", flush=True)


if __name__ == "__main__":
    main()
