"""Interventions against the same ones made by TransformerLens's own hooks (`run_with_hooks`), on the
default model with --precise.

Every operation at every tap of three layers: the logits of `cutaway capture --intervene` are within
1e-3 of their spread of what TransformerLens gives, and farther than that from what it gives without
the hook. Patches come from each side's own run of another text. Then an answer is generated with
interventions in its prompt and in its steps, and a recording of it holds the logits that
TransformerLens gives for the same tokens.

Runs in the environment of tools/peers.sh lens, which it makes. CUTAWAY_BINARY names the program; the
default model is installed (`cutaway pull smollm2-135m`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from oracles.packages import peers_home  # noqa: E402

BINARY = os.environ.get("CUTAWAY_BINARY", str(ROOT / "build" / "release" / "cutaway"))
MODEL = peers_home().parent / "models" / "smollm2-135m.gguf"
TEXT = "When Mary and John went to the store, John gave a drink to"
OTHER = "The capital of Italy is Rome and the capital of Spain is Madrid, but"
BOUND = 1e-3  # of the logits' spread

if os.environ.get("CUTAWAY_LENS") != "1":
    if not MODEL.is_file():
        sys.exit(f"{MODEL} is missing: cutaway pull smollm2-135m")
    subprocess.run([str(ROOT / "tools" / "peers.sh"), "lens"], check=True)
    python = peers_home() / "lens" / "bin" / "python"
    sys.exit(subprocess.run([python, __file__], env={**os.environ, "CUTAWAY_LENS": "1"}).returncode)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from oracles.gguf_model import load_f32  # noqa: E402
from oracles.lens import bridge_of  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

# Taps that have heads, and how many numbers each head has.
HEADS = {"attn.hook_q": 9, "attn.hook_k": 3, "attn.hook_v": 3, "attn.hook_rot_q": 9, "attn.hook_rot_k": 3,
         "attn.hook_z": 9, "attn.hook_result": 9}
MAPS = {"attn.hook_attn_scores", "attn.hook_pattern"}
ROWS = {"hook_resid_pre", "hook_resid_mid", "hook_resid_post", "hook_attn_out", "hook_mlp_out",
        "mlp.hook_pre", "mlp.hook_pre_linear", "mlp.hook_post", "ln1.hook_normalized", "ln2.hook_normalized"}
OPS = ("zero", "scale", "add", "replace", "patch")
LAYERS = (0, 13, 29)


def site_of(tap: str) -> str:
    return tap.split(".", 2)[2] if tap.startswith("blocks.") else tap


def indices(written, n: int) -> list[int]:
    """What `positions`, `heads`, … of a specification mean."""
    if written is None:
        return list(range(n))
    out = []
    for part in written if isinstance(written, list) else [written]:
        if isinstance(part, int):
            out.append(part % n)
        else:
            begin, end = part.split(":")
            out += list(range(n))[slice(int(begin) if begin else None, int(end) if end else None)]
    return out


def hook_of(item: dict, prompt: int, source):
    """TransformerLens's hook that does what the item says: it is given the whole tensor, and gives it back."""
    op, value = item["op"], item.get("value")
    site = site_of(item["tap"])

    def combine(old, given):
        by = given if op == "patch" else None if value is None else torch.tensor(value, dtype=torch.float32)
        return {"zero": lambda: old * 0, "scale": lambda: old * by, "add": lambda: old + by,
                "replace": lambda: by.expand_as(old), "patch": lambda: given}[op]()

    def hook(tensor, hook):
        out = tensor.clone()
        positions = [p for p in indices(item.get("positions"), prompt)]
        if item.get("positions") is None:
            positions = list(range(tensor.shape[2 if site in MAPS else 1]))
        if "steps" in item:
            steps = [prompt - 1 + s for s in item["steps"] if s != "prompt"]
            positions = [p for p in range(tensor.shape[1])
                         if p in steps or ("prompt" in item["steps"] and p < prompt and p in positions)]
        if site in MAPS:
            for head in indices(item.get("heads"), tensor.shape[1]):
                for q in positions:
                    seen = [k for k in indices(item.get("keys"), prompt) if k <= q]
                    if seen:
                        old = tensor[0, head, q, seen]
                        out[0, head, q, seen] = combine(old, None if source is None else source[0, head, q, seen])
            return out
        for p in positions:
            if site in HEADS:
                for head in indices(item.get("heads"), tensor.shape[2]):
                    out[0, p, head] = combine(tensor[0, p, head], None if source is None else source[0, p, head])
            else:
                features = indices(item.get("features"), tensor.shape[2])
                given = None if source is None else source[0, p, features]
                out[0, p, features] = combine(tensor[0, p, features], given)
        return out

    return hook


class Lens:
    """TransformerLens's bridge on the default model's weights in f32."""

    def __init__(self):
        model, _ = load_f32(MODEL)
        model.config._attn_implementation = "eager"
        self.bridge = bridge_of(model)

    def cache(self, tokens):
        with torch.no_grad():
            return self.bridge.run_with_cache(torch.tensor([tokens]))[1]

    def logits(self, tokens, items=(), sources=None, prompt=None):
        hooks = []
        for item in items:
            name = item["tap"]
            source = None if sources is None else sources[name]
            if name.endswith("hook_resid_mid"):
                # The bridge's tap is what ln2 reads, and the stream passes by it: what the stream gains before
                # it is changed by as much.
                own = hook_of(item, prompt or len(tokens), source)
                layer = int(name.split(".")[1])
                seen = {}
                hooks.append((f"blocks.{layer}.hook_resid_pre", lambda t, hook, seen=seen: seen.update(pre=t)))
                hooks.append((f"blocks.{layer}.hook_attn_out",
                              lambda t, hook, own=own, seen=seen: own(seen["pre"] + t, None) - seen["pre"]))
                continue
            hooks.append((name, hook_of(item, prompt or len(tokens), source)))
        self.bridge.set_use_attn_result(any("hook_result" in item["tap"] for item in items))
        with torch.no_grad():
            return self.bridge.run_with_hooks(torch.tensor([tokens]), fwd_hooks=hooks)[0].numpy()


def cutaway(*args) -> dict:
    precise = [] if args[0] == "tokenize" else ["--precise"]
    done = subprocess.run([BINARY, *map(str, args), "-m", str(MODEL), *precise, "--json"],
                          capture_output=True, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr.decode())
    return json.loads(done.stdout)


def ids_of(text: str) -> list[int]:
    return [token["id"] for token in cutaway("tokenize", text)["tokens"]]


def captured(folder: Path, tokens, items, taps="logits"):
    (folder / "spec.json").write_text(json.dumps({"interventions": items}))
    options = ["--intervene", folder / "spec.json"] if items else []
    cutaway("capture", "--tokens", ",".join(map(str, tokens)), "--taps", taps, "-o", folder / "out.safetensors",
            *options)
    return load_file(folder / "out.safetensors")


def cases(rng, n: int):
    """One item for each operation at each tap."""
    yield from ({"tap": "hook_embed", **c} for c in row_cases(rng, 576, n))
    for layer in LAYERS:
        for site in sorted(ROWS):
            width = 1536 if site.startswith("mlp.") else 576
            yield from ({"tap": f"blocks.{layer}.{site}", **c} for c in row_cases(rng, width, n))
        for site, heads in HEADS.items():
            width = 576 if site.endswith("result") else 64
            vector = rng.standard_normal(width).round(3).tolist()
            few, tap = [1, heads - 1], f"blocks.{layer}.{site}"
            yield {"tap": tap, "op": "zero", "heads": few}
            yield {"tap": tap, "op": "scale", "value": -1.5, "heads": "0:2", "positions": "3:-2"}
            yield {"tap": tap, "op": "add", "value": vector, "heads": [heads - 1]}
            yield {"tap": tap, "op": "replace", "value": vector, "heads": [0], "positions": [1, -1]}
            yield {"tap": tap, "op": "patch", "from": True, "heads": few}
        for site in sorted(MAPS):
            tap = f"blocks.{layer}.{site}"
            yield {"tap": tap, "op": "zero", "heads": [0, 8], "keys": [0, "2:5"]}
            yield {"tap": tap, "op": "scale", "value": 0.25, "positions": "2:"}
            yield {"tap": tap, "op": "add", "value": 0.75, "heads": "3:6", "keys": "1:4"}
            yield {"tap": tap, "op": "replace", "value": 0.2, "heads": [2, 7], "keys": [0, 1], "positions": "4:"}
            yield {"tap": tap, "op": "patch", "from": True, "heads": "1:4"}
        for norm in ("ln1", "ln2"):
            yield from ({"tap": f"blocks.{layer}.{norm}.hook_scale", **c} for c in scale_cases())
    yield from ({"tap": "ln_final.hook_normalized", **c} for c in row_cases(rng, 576, n))
    yield from ({"tap": "ln_final.hook_scale", **c} for c in scale_cases())


def row_cases(rng, width: int, n: int):
    vector = rng.standard_normal(width).round(3).tolist()
    yield {"op": "zero", "positions": [1, n - 2]}
    yield {"op": "scale", "value": -0.5, "positions": "2:"}
    yield {"op": "add", "value": vector, "positions": [0, "-2:"]}
    yield {"op": "replace", "value": [2.5, -3, 4], "features": [1, 3, width - 1]}
    yield {"op": "patch", "from": True, "positions": [-1, "3:6"]}


def scale_cases():
    """A denominator: one number a position, which is not zeroed."""
    yield {"op": "scale", "value": 1.75, "positions": "2:"}
    yield {"op": "add", "value": 0.5}
    yield {"op": "replace", "value": 0.75, "positions": [-1, 3]}
    yield {"op": "patch", "from": True, "positions": "1:"}


def difference(expected: np.ndarray, actual: np.ndarray) -> float:
    assert expected.shape == actual.shape, (expected.shape, actual.shape)
    return float(np.abs(expected - actual).max() / (expected.max() - expected.min()))


def compare(lens: Lens, folder: Path) -> None:
    tokens, other = ids_of(TEXT), ids_of(OTHER)
    n = len(tokens)
    assert len(other) >= n
    other = other[:n]
    # What each side patches from: its own run of the other text.
    theirs = dict(lens.cache(other).items())
    theirs = {name: theirs[name] for name in theirs if not name.endswith("hook_result")}
    lens.bridge.set_use_attn_result(True)
    results = {name: value for name, value in lens.cache(other).items() if name.endswith("hook_result")}
    theirs.update(results)
    for layer in LAYERS:
        theirs[f"blocks.{layer}.hook_resid_mid"] = (theirs[f"blocks.{layer}.hook_resid_pre"]
                                                    + theirs[f"blocks.{layer}.hook_attn_out"])
    cutaway("capture", "--tokens", ",".join(map(str, other)), "--taps", "all", "-o", folder / "other.safetensors")
    plain = lens.logits(tokens)
    worst, every, idle, by_op, done = {}, [], [], {op: 0 for op in OPS}, 0
    for item in cases(np.random.default_rng(5), n):
        written = dict(item)
        if item["op"] == "patch":
            written["from"] = {"file": "other.safetensors"}
        expected = lens.logits(tokens, [item], theirs if item["op"] == "patch" else None)
        actual = captured(folder, tokens, [written])["logits"][0]
        found = difference(expected, actual)
        every.append(found)
        site = site_of(item["tap"])
        worst[site] = max(worst.get(site, 0), found)
        if not found < BOUND:
            raise AssertionError(f"{json.dumps(written)[:200]}: {found:.2e} of the spread")
        if difference(plain, expected) <= 2 * BOUND:
            idle.append(f"{item['tap']} {item['op']}")
        by_op[item["op"]] += 1
        done += 1
    for site, value in sorted(worst.items()):
        print(f"{site:28} {value:.2e}")
    print(", ".join(f"{n} {op}" for op, n in by_op.items()))
    # The last layer's scores may hardly matter; almost all must, or the comparison proves nothing.
    assert len(idle) <= done // 20, f"these change nothing: {idle}"
    print(f"{done} interventions within {BOUND} of the spread, at most {max(every):.1e}, "
          f"{np.median(every):.1e} in the median; "
          f"{done - len(idle)} of them move the logits by more than {2 * BOUND}")


def generate(lens: Lens, folder: Path) -> None:
    """Several at once, in prefill and in decode, by steps; patched from a recording."""
    first = cutaway("run", "--raw", "-n", 3, OTHER, "--record", folder / "other")
    items = [
        {"tap": "blocks.5.attn.hook_z", "op": "zero", "heads": [3, 4]},
        {"tap": "blocks.9.hook_resid_post", "op": "scale", "value": 1.3, "steps": ["prompt", 2, 4]},
        {"tap": "blocks.20.hook_mlp_out", "op": "scale", "value": 0.25, "steps": [0, 3, 4]},
        {"tap": "blocks.12.hook_resid_pre", "op": "patch", "from": {"run": "other"}, "positions": [-1, "4:6"]},
    ]
    (folder / "spec.json").write_text(json.dumps({"interventions": items}))
    answer = cutaway("run", "--raw", "-n", 6, "--temperature", 0, TEXT, "--intervene", folder / "spec.json", "--record",
                     folder / "changed", "--record-taps", "logits")
    prompt, chosen = answer["prompt_tokens"], [token["id"] for token in answer["tokens"]]
    tokens = prompt + chosen[:-1]
    other = first["prompt_tokens"] + [token["id"] for token in first["tokens"]]
    sources = {items[3]["tap"]: lens.cache(other)[items[3]["tap"]]}
    expected = lens.logits(tokens, items, {item["tap"]: sources.get(item["tap"]) for item in items}, len(prompt))
    actual = load_file(folder / "changed" / "tensors.safetensors")["logits"][0]
    found = difference(expected[len(prompt) - 1:], actual[-len(chosen):])
    assert found < BOUND, f"an answer with interventions: {found:.2e} of the spread"
    assert expected[len(prompt) - 1:].argmax(-1).tolist() == chosen
    plain = difference(lens.logits(tokens)[len(prompt) - 1:], expected[len(prompt) - 1:])
    assert plain > 2 * BOUND
    print(f"an answer of {len(chosen)} tokens with {len(items)} interventions: {found:.1e} of the spread, "
          "the same choices")


def main() -> None:
    lens = Lens()
    with tempfile.TemporaryDirectory() as folder:
        generate(lens, Path(folder))
        compare(lens, Path(folder))


main()
