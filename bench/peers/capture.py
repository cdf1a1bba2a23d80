#!/usr/bin/env python3
"""What captures cost: Cutaway beside TransformerLens (every tap) and transformers (attention and hidden states).

Run by a Python that has transformer_lens 4 (`pip install transformer-lens`), after `cmake -DCUTAWAY_BENCH=ON` and `ninja capture_bench`:
    python bench/peers/capture.py -m smollm2-135m --file smollm2-135m.gguf [--build build/release] [--tokens 512] [--threads 2] [--reps 7]

Both are timed warm, in one process each: `capture_bench` keeps the values in memory, as run_with_cache does. TransformerLens and
transformers run the shape with random weights (their speed does not depend on them) in f32, attention eager. Prints JSON; times
are medians in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time

from lens import bridged, info_of, model_of


def theirs(args, info: dict) -> dict:
    import torch

    model = model_of(info, args.threads, attn_implementation="eager")
    hooked = bridged(model)
    ids = torch.tensor([[(i * 7919 + 13) % 30000 for i in range(args.tokens)]])
    kinds = {
        "transformers_prefill": lambda: model(ids),
        "transformers_attention_hidden": lambda: model(ids, output_attentions=True, output_hidden_states=True),
        "transformer_lens_prefill": lambda: hooked(ids),
        "transformer_lens_all": lambda: hooked.run_with_cache(ids),
    }
    times = {name: [] for name in kinds}
    for rep in range(args.reps + 1):
        for name, run in kinds.items():
            start = time.perf_counter()
            kept = run()
            took = 1e3 * (time.perf_counter() - start)
            del kept
            if rep > 0:  # the first one warms up
                times[name].append(took)
    return {name: {"ms": statistics.median(values)} for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("--file", required=True, help="the model's GGUF")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=7)
    args = parser.parse_args()
    info = info_of(f"{args.build}/cutaway", args.model)
    ours = json.loads(subprocess.run(
        [f"{args.build}/bench/capture_bench", args.file, str(args.tokens), str(args.threads), str(args.reps)],
        capture_output=True, check=True, text=True).stdout)
    peers = theirs(args, info)
    pairs = {"every tap beside transformer_lens": ("all", "transformer_lens_all"),
             "attention and hidden states beside transformers": ("attention_hidden", "transformers_attention_hidden")}
    print(json.dumps({"tokens": args.tokens, "threads": args.threads, "cutaway": ours, "peers": peers,
                      "times as fast": {name: round(peers[b]["ms"] / ours[a]["ms"], 2) for name, (a, b) in pairs.items()},
                      "every tap, per prefill with all logits": round(
                          ours["all"]["ms"] / ours["prefill_all_logits"]["ms"], 2)}, indent=1))


if __name__ == "__main__":
    main()
