#!/usr/bin/env python3
"""llama.cpp through llama-cpp-python's low-level API, as a peer that other tools run.

Run it with the interpreter of tools/peers.sh's `llama_cpp` environment. One JSON document on
stdout; llama.cpp's own log goes nowhere.

  bench    -m F --test pp512|tg128|tg128@2048|tg32b16 --threads N [--reps N]   tokens per second
  start    -m F --threads N    from the load call to the first token's logits after 16 tokens of
           prompt, in ms, in this process (the library is there already), and the peak memory
  logits   -m F --tokens 1,2,3 --out FILE        raw f32 [positions, vocabulary]
  teacher  -m F --windows FILE --window N --out-top1 FILE --out-nll FILE
           per window of N i32 tokens: the top-1 id after every token (i32, N a window) and the
           negative log-likelihood of the next token (f32, N - 1 a window)
  quantize -m F --type F16|Q8_0|Q4_0|… --out FILE     the file in another type, by llama.cpp's own
           quantiser; --embedding-type for the token embedding (as a tied head needs); --pure: every
           matrix in that type
  info                                           versions and what it was built with
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import re
import sys
import time
from typing import NamedTuple

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as ll

CHUNK = 512  # tokens of a prompt per call
START_PROMPT, START_CONTEXT = 16, 512


@ll.llama_log_callback
def _silent(_level, _text, _data):
    """llama.cpp prints a page for every load; stdout here is JSON only."""


class Test(NamedTuple):
    kind: str  # "pp" or "tg"
    count: int
    batch: int
    depth: int


def parse_test(test: str) -> Test:
    """`tg32b16@2048` -> ("tg", 32, 16, 2048)."""
    match = re.fullmatch(r"pp([1-9]\d*)|tg([1-9]\d*)(?:b([1-9]\d*))?(?:@(\d+))?", test)
    if not match:
        raise SystemExit(f"--test {test!r}: expected pp512, tg128, tg128@2048, tg32b16 or tg32b16@512")
    if match[1]:
        return Test("pp", int(match[1]), 1, 0)
    return Test("tg", int(match[2]), int(match[3] or 1), int(match[4] or 0))


class Peer:
    """One loaded model with one context of n_seq sequences; n_ctx tokens each."""

    def __init__(self, path: str, threads: int, n_ctx: int, n_batch: int, flash: str = "auto",
                 f32_cache: bool = False, n_seq: int = 1, fill_threads: int | None = None):
        """fill_threads: for prompts, where these are not what is measured."""
        ll.llama_log_set(_silent, ctypes.c_void_p(0))
        ll.llama_backend_init()
        self.model = ll.llama_model_load_from_file(
            path.encode(), ll.llama_model_default_params()
        )
        if not self.model:
            raise SystemExit(f"llama.cpp could not load {path}")
        params = ll.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx * n_seq, n_batch, n_batch
        params.n_seq_max = n_seq
        params.n_threads = threads
        params.n_threads_batch = fill_threads or threads
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
        self.batch = ll.llama_batch_init(max(n_batch, n_seq), 0, 1)
        self.positions = [0] * n_seq

    def clear(self) -> None:
        ll.llama_memory_clear(ll.llama_get_memory(self.context), True)
        self.positions = [0] * len(self.positions)

    def cut(self, n: int) -> None:
        """Forgets the positions from n on, of every sequence."""
        memory = ll.llama_get_memory(self.context)
        for seq in range(len(self.positions)):
            if not ll.llama_memory_seq_rm(memory, seq, n, -1):
                raise SystemExit(f"llama.cpp cannot cut a sequence back to {n} tokens")
        self.positions = [n] * len(self.positions)

    def _put(self, i: int, token: int, seq: int, logits: bool) -> None:
        batch = self.batch
        batch.token[i] = token
        batch.pos[i] = self.positions[seq]
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = seq
        batch.logits[i] = logits
        self.positions[seq] += 1

    def _run(self, n: int) -> None:
        self.batch.n_tokens = n
        if (status := ll.llama_decode(self.context, self.batch)) != 0:
            raise SystemExit(f"llama_decode returned {status}")
        ll.llama_synchronize(self.context)

    def decode(self, tokens, all_logits: bool = False, seq: int = 0) -> None:
        """Appends at most n_batch tokens to a sequence; logits of the last one, or of all."""
        for i, token in enumerate(tokens):
            self._put(i, token, seq, all_logits or i == len(tokens) - 1)
        self._run(len(tokens))

    def step(self, tokens) -> None:
        """One token to each sequence, in one call."""
        for seq, token in enumerate(tokens):
            self._put(seq, token, seq, True)
        self._run(len(tokens))

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


def peak_rss_mb() -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def run_bench(args) -> dict:
    test = parse_test(args.test)
    peer = Peer(args.model, args.threads, test.depth + test.count + 64, CHUNK, args.flash_attn,
                n_seq=test.batch, fill_threads=os.cpu_count() if test.depth else None)
    rng = random.Random(1)
    ids = lambda n: [rng.randrange(peer.n_vocab) for _ in range(n)]

    for seq in range(test.batch if test.depth else 0):
        for start in range(0, test.depth, CHUNK):
            peer.decode(ids(min(CHUNK, test.depth - start)), seq=seq)

    def once(n: int) -> float:
        peer.cut(test.depth) if test.depth else peer.clear()
        steps = [ids(test.batch) for _ in range(n)]
        start = time.perf_counter()
        if test.kind == "pp":
            tokens = [step[0] for step in steps]
            for first in range(0, n, CHUNK):
                peer.decode(tokens[first : first + CHUNK])
        else:
            for step in steps:
                peer.step(step)
        return n * test.batch / (time.perf_counter() - start)

    once(test.count if test.kind == "pp" else min(test.count, 8))  # warm-up: pages, caches, buffers
    tps = [once(test.count) for _ in range(args.reps)]
    return {"test": args.test, "threads": args.threads, "tps": tps}


def run_start(args) -> dict:
    before = peak_rss_mb()
    start = time.perf_counter()
    peer = Peer(args.model, args.threads, START_CONTEXT, START_CONTEXT, args.flash_attn)
    loaded = time.perf_counter()
    peer.decode([(i * 37 + 11) % peer.n_vocab for i in range(START_PROMPT)])
    int(peer.logits(1).argmax())
    done = time.perf_counter()
    return {"load_ms": (loaded - start) * 1e3, "first_token_ms": (done - loaded) * 1e3,
            "total_ms": (done - start) * 1e3, "peak_rss_mb": peak_rss_mb(),
            "peak_rss_before_load_mb": before}


def run_logits(args) -> dict:
    tokens = [int(t) for t in args.tokens.split(",")]
    peer = Peer(args.model, args.threads, max(64, len(tokens)), CHUNK, "off", args.f32_cache)
    values = peer.all_logits(tokens)
    values.astype("<f4").tofile(args.out)
    return {"shape": list(values.shape)}


def run_teacher(args) -> dict:
    windows = np.fromfile(args.windows, dtype="<i4").reshape(-1, args.window)
    peer = Peer(args.model, args.threads, args.window, CHUNK, args.flash_attn)
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


def run_quantize(args) -> dict:
    ll.llama_log_set(_silent, ctypes.c_void_p(0))
    ll.llama_backend_init()
    params = ll.llama_model_quantize_default_params()
    params.nthread = args.threads
    params.allow_requantize = True
    params.pure = args.pure
    file_type = getattr(ll, f"LLAMA_FTYPE_MOSTLY_{args.type}", None)
    if file_type is None:
        raise SystemExit(f"--type {args.type}: llama.cpp has no such file type")
    params.ftype = file_type
    if args.embedding_type:
        tensor_type = getattr(ll, f"GGML_TYPE_{args.embedding_type}", None)
        if tensor_type is None:
            raise SystemExit(f"--embedding-type {args.embedding_type}: no such tensor type")
        params.token_embedding_type = params.output_tensor_type = tensor_type
    status = ll.llama_model_quantize(args.model.encode(), args.out.encode(), ctypes.byref(params))
    if status != 0:
        raise SystemExit(f"llama_model_quantize returned {status}")
    return {"file": args.out, "type": args.type}


def run_info(_args) -> dict:
    return {
        "version": llama_cpp.__version__,
        "system_info": ll.llama_print_system_info().decode().strip(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = {"bench": run_bench, "start": run_start, "logits": run_logits, "teacher": run_teacher,
           "quantize": run_quantize, "info": run_info}
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
        if name == "quantize":
            sub.add_argument("--type", required=True)
            sub.add_argument("--embedding-type")
            sub.add_argument("--pure", action="store_true")
            sub.add_argument("--out", required=True)
    args = parser.parse_args()
    print(json.dumps(run[args.command](args)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
