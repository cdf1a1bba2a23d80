"""Hugging Face `tokenizers` for tokenize.py: one thread, its cache of words as it is or of no size.

Requests are those of tokenize_worker.cc, with "json" (a tokenizer.json) beside "vocabulary", "cache"
(may words be remembered?) and "fast": `encode_batch_fast`, which does not say where in the text a token
is; else `encode`, which does, as Cutaway does. With "pieces" the answer is what each text is cut into.
"""

from __future__ import annotations

import json
import os
import sys
import time
from array import array
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from tokenizers import Tokenizer  # noqa: E402


def load(request: dict) -> Tokenizer:
    if request.get("json"):
        return Tokenizer.from_file(request["json"])
    from oracles import hf_tokenizer
    from oracles.gguf_keys import gguf_keys

    return hf_tokenizer.from_gguf(gguf_keys(request["vocabulary"]))


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    """What a text is cut into before merging."""
    if tokenizer.normalizer:
        text = tokenizer.normalizer.normalize_str(text)
    return [text[begin:end] for _, (begin, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def main() -> None:
    loaded: dict[str, Tokenizer] = {}
    for line in sys.stdin:
        request = json.loads(line)
        key = request["vocabulary"]
        if key not in loaded:
            loaded = {key: load(request)}
        tokenizer = loaded[key]
        # The getter hands out the tokenizer's own model.
        tokenizer.model._resize_cache(10_000 if request["cache"] else 0)
        tokenizer.model._clear_cache()
        with open(request["texts"], encoding="ascii") as file:
            texts = [json.loads(text) for text in file]
        if request.get("pieces"):
            print(json.dumps([pieces(tokenizer, text) for text in texts]), flush=True)
            continue
        if "warm" in request:
            with open(request["warm"], encoding="ascii") as file:
                for text in file:
                    tokenizer.encode(json.loads(text), add_special_tokens=False)
            tokenizer.model._clear_cache()
        begin = time.thread_time()
        if request["fast"]:
            for text in texts:
                tokenizer.encode_batch_fast([text], add_special_tokens=False)
        else:
            for text in texts:
                tokenizer.encode(text, add_special_tokens=False)
        seconds = time.thread_time() - begin
        if "ids" in request:
            ids = array("i")
            for text in texts:
                ids.extend(tokenizer.encode(text, add_special_tokens=False).ids)
            Path(request["ids"]).write_bytes(ids.tobytes())
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
