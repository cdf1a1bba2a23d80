#!/usr/bin/env python3
"""llama.cpp through llama-cpp-python's low-level API, as a peer that other tools run.

Run it with the interpreter of tools/peers.sh's `llama_cpp` environment. One JSON document on
stdout; llama.cpp's own log goes nowhere.

  bench    -m F --test pp512|tg128|tg128@2048 --threads N [--reps N]   tokens per second
  logits   -m F --tokens 1,2,3 --out FILE        raw f32 [positions, vocabulary]
  teacher  -m F --windows FILE --window N --out-top1 FILE --out-nll FILE
           per window of N i32 tokens: the top-1 id after every token (i32, N a window) and the
           negative log-likelihood of the next token (f32, N - 1 a window)
  info                                           versions and what it was built with
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import re
import sys
import time

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as ll


@ll.llama_log_callback
def _silent(_level, _text, _data):
    """llama.cpp prints a page for every load; stdout here is JSON only."""


class Peer:
    """One loaded model with one context; sequence 0 only."""

    def __init__(self, path: str, threads: int, n_ctx: int, n_batch: int, flash: str = "auto",
                 f32_cache: bool = False):
        ll.llama_log_set(_silent, ctypes.c_void_p(0))
        ll.llama_backend_init()
        self.model = ll.llama_model_load_from_file(
            path.encode(), ll.llama_model_default_params()
        )
        if not self.model:
            raise SystemExit(f"llama.cpp could not load {path}")
        params = ll.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_batch, n_batch
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = {
            "auto": ll.LLAMA_FLASH_ATTN_TYPE_AUTO,
            "on": ll.LLAMA_FLASH_ATTN_TYPE_ENABLED,
            "off": ll.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        }[flash]
        if f32_cache:
            params.type_k = params.type_v = ll.GGML_TYPE_F32
        self.context = ll.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit("llama.cpp could not make a context")
        self.n_vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))
        self.n_batch = n_batch
        self.batch = ll.llama_batch_init(n_batch, 0, 1)
        self.position = 0

    def clear(self) -> None:
        ll.llama_memory_clear(ll.llama_get_memory(self.context), True)
        self.position = 0

    def decode(self, tokens, all_logits: bool = False) -> None:
        """Appends at most n_batch tokens; logits of the last one, or of all."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = self.position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = all_logits or i == len(tokens) - 1
        if (status := ll.llama_decode(self.context, batch)) != 0:
            raise SystemExit(f"llama_decode returned {status}")
        ll.llama_synchronize(self.context)
        self.position += len(tokens)

    def logits(self, rows: int) -> np.ndarray:
        """The rows of the last decode, copied."""
        pointer = ll.llama_get_logits(self.context)
        return np.ctypeslib.as_array(pointer, shape=(rows, self.n_vocab)).copy()

    def all_logits(self, tokens) -> np.ndarray:
        self.clear()
        parts = []
        for start in range(0, len(tokens), self.n_batch):
            chunk = tokens[start : start + self.n_batch]
            self.decode(chunk, all_logits=True)
            parts.append(self.logits(len(chunk)))
        return np.concatenate(parts)


def parse_test(test: str) -> tuple[str, int, int]:
    """`tg128@2048` -> ("tg", 128, 2048)."""
    match = re.fullmatch(r"(pp|tg)([1-9]\d*)(?:@(\d+))?", test)
    if not match:
        raise SystemExit(f"--test {test!r}: expected pp512, tg128 or tg128@2048")
    return match[1], int(match[2]), int(match[3] or 0)


def run_bench(args) -> dict:
    kind, count, depth = parse_test(args.test)
    peer = Peer(args.model, args.threads, depth + count + 64, 512, args.flash_attn)
    rng = random.Random(1)
    ids = lambda n: [rng.randrange(peer.n_vocab) for _ in range(n)]

    def prefill(n: int) -> None:
        for start in range(0, n, 512):
            peer.decode(ids(min(512, n - start)))

    def once(n: int) -> float:
        peer.clear()
        prefill(depth)
        tokens = ids(n)
        start = time.perf_counter()
        if kind == "pp":
            for first in range(0, n, 512):
                peer.decode(tokens[first : first + 512])
        else:
            for token in tokens:
                peer.decode([token])
        return n / (time.perf_counter() - start)

    once(count if kind == "pp" else min(count, 8))  # warm-up: pages, caches, buffers
    tps = [once(count) for _ in range(args.reps)]
    return {"test": args.test, "threads": args.threads, "tps": tps}


def run_logits(args) -> dict:
    tokens = [int(t) for t in args.tokens.split(",")]
    peer = Peer(args.model, args.threads, max(64, len(tokens)), 512, "off", args.f32_cache)
    values = peer.all_logits(tokens)
    values.astype("<f4").tofile(args.out)
    return {"shape": list(values.shape)}


def run_teacher(args) -> dict:
    windows = np.fromfile(args.windows, dtype="<i4").reshape(-1, args.window)
    peer = Peer(args.model, args.threads, args.window, 512, args.flash_attn)
    top1 = np.empty(windows.shape, dtype="<i4")
    nll = np.empty((len(windows), args.window - 1), dtype="<f4")
    for i, window in enumerate(windows):
        values = peer.all_logits(window.tolist()).astype(np.float64)
        top1[i] = values.argmax(axis=1)
        peak = values.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(values - peak).sum(axis=1)) + peak[:, 0]
        rows = np.arange(args.window - 1)
        nll[i] = log_sum[:-1] - values[rows, window[1:]]
    top1.tofile(args.out_top1)
    nll.tofile(args.out_nll)
    return {"windows": len(windows), "window": args.window}


def run_info(_args) -> dict:
    return {
        "version": llama_cpp.__version__,
        "system_info": ll.llama_print_system_info().decode().strip(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = {"bench": run_bench, "logits": run_logits, "teacher": run_teacher, "info": run_info}
    for name in run:
        sub = commands.add_parser(name)
        if name == "info":
            continue
        sub.add_argument("-m", "--model", required=True)
        sub.add_argument("-t", "--threads", type=int, default=2)
        sub.add_argument("--flash-attn", choices=["auto", "on", "off"], default="auto")
        if name == "bench":
            sub.add_argument("--test", required=True)
            sub.add_argument("--reps", type=int, default=1)
        if name == "logits":
            sub.add_argument("--tokens", required=True)
            sub.add_argument("--out", required=True)
            sub.add_argument("--f32-cache", action="store_true")
        if name == "teacher":
            sub.add_argument("--windows", required=True)
            sub.add_argument("--window", type=int, required=True)
            sub.add_argument("--out-top1", required=True)
            sub.add_argument("--out-nll", required=True)
    args = parser.parse_args()
    print(json.dumps(run[args.command](args)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
