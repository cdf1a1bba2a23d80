"""Interventions against the same ones made by hooks on transformers' models, which compute in f32.

Every tiny golden of every architecture, and the default model: the logits of `cutaway capture
--precise --intervene` are within 1e-3 of their spread of what the hooked reference gives, and
farther than that from what it gives without hooks. CUTAWAY_BINARY names the program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from oracles import gguf_model  # noqa: E402
from oracles.golden_specs import SPECS  # noqa: E402
from oracles.hf_modules import Parts, of_golden  # noqa: E402
from oracles.packages import peers_home  # noqa: E402

BINARY = os.environ.get("CUTAWAY_BINARY", str(ROOT / "build" / "release" / "cutaway"))
TOLERANCE = 1e-3
PROMPT = [504, 3575, 282, 4649, 314, 260, 3535, 282, 1195, 30]


def on_output(module, change):
    def hook(_module, _args, output):
        if isinstance(output, tuple):
            return (change(output[0]), *output[1:])
        return change(output)

    return module.register_forward_hook(hook)


def on_input(module, change):
    return module.register_forward_pre_hook(lambda _module, args: (change(args[0]), *args[1:]))


def at(index, by):
    """A function that changes x[index], out of place."""
    def change(x):
        x = x.clone()
        x[index] = by(x[index])
        return x

    return change


class EditedAttention:
    """Attention written out, with a change of the scores or of the pattern of one layer."""

    def __init__(self, model, layer, scores=None, pattern=None):
        self.module = sys.modules[type(model).__module__]
        self.own = self.module.eager_attention_forward
        self.layer, self.scores, self.pattern = layer, scores, pattern
        self.module.eager_attention_forward = self.forward

    def forward(self, module, query, key, value, attention_mask, scaling, dropout=0.0, **options):
        if module.layer_idx != self.layer:
            return self.own(module, query, key, value, attention_mask, scaling=scaling,
                            dropout=dropout, **options)
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, 1) for x in (key, value))
        scores = query @ key.transpose(2, 3) * scaling
        if options.get("softcap") is not None:
            scores = torch.tanh(scores / options["softcap"]) * options["softcap"]
        n = query.shape[2]
        unseen = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)
        if attention_mask is not None:
            unseen = unseen | (attention_mask[0, 0, :, :n] < -1)
        if self.scores:
            scores = self.scores(scores)
        pattern = scores.masked_fill(unseen, float("-inf")).softmax(-1)
        if self.pattern:
            pattern = self.pattern(pattern).masked_fill(unseen, 0)
        return (pattern @ value).transpose(1, 2).contiguous(), pattern

    def remove(self):
        self.module.eager_attention_forward = self.own


def cases(parts: Parts, layer: int, n: int, folder: Path):
    """(name, items of a specification, what makes the same hooks)."""
    block = f"blocks.{layer}."
    rng = np.random.default_rng(3)
    vector = rng.standard_normal(parts.d_model).round(3).tolist()
    patch = rng.standard_normal((1, n, parts.d_model)).astype(np.float32)
    save_file({"theirs": patch}, folder / "patch.safetensors")
    d, last = parts.d_head, parts.heads - 1
    head = slice(last * d, (last + 1) * d)
    torch_vector, torch_patch = torch.tensor(vector), torch.from_numpy(patch)

    yield ("z zeroed", {"tap": block + "attn.hook_z", "op": "zero", "heads": [last]},
           lambda: on_input(parts.output(layer), at((0, slice(None), head), lambda x: x * 0)))
    yield ("result scaled", {"tap": block + "attn.hook_result", "op": "scale", "value": 3, "heads": [last]},
           lambda: on_input(parts.output(layer), at((0, slice(None), head), lambda x: x * 3)))
    yield ("resid_post added to", {"tap": block + "hook_resid_post", "op": "add", "value": vector,
                                   "positions": [2, "-2:"]},
           lambda: on_output(parts.layers[layer], at((0, [2, n - 2, n - 1]), lambda x: x + torch_vector)))
    yield ("resid_pre replaced", {"tap": block + "hook_resid_pre", "op": "replace", "value": vector,
                                  "positions": 1},
           lambda: on_input(parts.layers[layer], at((0, 1), lambda x: torch_vector)))
    yield ("resid_post patched", {"tap": block + "hook_resid_post", "op": "patch", "positions": [-1, 3],
                                  "from": {"file": "patch.safetensors", "tensor": "theirs",
                                           "positions": [0, 3]}},
           lambda: on_output(parts.layers[layer], at((0, [n - 1, 3]), lambda x: torch_patch[0, [0, 3]])))
    for what in ("attn", "mlp"):
        yield (f"{what}_out scaled", {"tap": f"{block}hook_{what}_out", "op": "scale", "value": -0.5,
                                      "positions": "2:"},
               lambda what=what: on_output(parts.written(layer, what),
                                           at((0, slice(2, None)), lambda x: x * -0.5)))
    module, part = parts.value_slice(layer)
    yield ("v replaced", {"tap": block + "attn.hook_v", "op": "replace", "value": 0.25, "heads": 0,
                          "positions": [0, 3]},
           lambda: on_output(module, at((0, [[0], [3]], list(range(part.start, part.start + d))),
                                        lambda x: x * 0 + 0.25)))
    if parts.down(layer) is not None:
        yield ("mlp.post features", {"tap": block + "mlp.hook_post", "op": "replace", "value": [2, -3],
                                     "features": [1, 3], "positions": ":-1"},
               lambda: on_input(parts.down(layer), at((0, slice(0, n - 1), [1, 3]),
                                                      lambda x: torch.tensor([2.0, -3.0]).expand_as(x))))
    if not parts.gpt2:
        yield ("pattern without key 1", {"tap": block + "attn.hook_pattern", "op": "zero", "heads": [0, last],
                                         "keys": 1},
               lambda: EditedAttention(parts.model, layer,
                                       pattern=at((0, [0, last], slice(None), 1), lambda x: x * 0)))
        yield ("scores added to", {"tap": block + "attn.hook_attn_scores", "op": "add", "value": 1.5,
                                   "heads": [last], "keys": "1:3"},
               lambda: EditedAttention(parts.model, layer,
                                       scores=at((0, last, slice(None), slice(1, 3)), lambda x: x + 1.5)))


def forward(model, tokens):
    with torch.no_grad():
        return model(torch.tensor(tokens)[None], use_cache=False).logits[0].numpy()


def check(name: str, model, path: Path, tokens: list[int], folder: Path) -> tuple[int, float]:
    """How many cases were compared, and the largest difference in parts of the spread."""
    parts = Parts(model)
    plain = forward(model, tokens)
    done, worst, idle = 0, 0.0, []
    for layer in sorted({0, len(parts.layers) // 2}):
        for what, item, hooked in cases(parts, layer, len(tokens), folder):
            handle = hooked()
            expected = forward(model, tokens)
            handle.remove()
            (folder / "spec.json").write_text(json.dumps({"interventions": [item]}))
            # LongRoPE's factors follow the context: it is what transformers sees, the text.
            subprocess.run([BINARY, "capture", "-m", path, "-c", str(len(tokens)), "--tokens", ",".join(map(str, tokens)), "--taps",
                            "logits", "-o", folder / "out.safetensors", "--precise", "--intervene",
                            folder / "spec.json"], check=True, stdout=subprocess.DEVNULL)
            got = load_file(folder / "out.safetensors")["logits"][0]
            spread = float(expected.max() - expected.min())
            difference = float(np.abs(got - expected).max()) / spread
            worst, done = max(worst, difference), done + 1
            if not difference <= TOLERANCE:
                raise AssertionError(f"{name}, layer {layer}, {what}: {difference:.2e} of the spread")
            if float(np.abs(plain - expected).max()) / spread <= 2 * TOLERANCE:
                idle.append(f"layer {layer}, {what}")
    # A window of one key leaves nothing to a change of its scores; most must change the logits.
    if len(idle) > done // 3:
        raise AssertionError(f"{name}: these change nothing, so they prove nothing: {idle}")
    return done, worst


def main() -> int:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    passed = failed = 0
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        tiny = lambda spec: of_golden(spec, folder, lambda *golden: check(spec.name, *golden, folder))
        runs = [(spec.name, lambda spec=spec: tiny(spec)) for spec in SPECS if spec.positions >= 8]
        real = peers_home().parent / "models" / "smollm2-135m.gguf"
        runs.append(("smollm2-135m", lambda: check("smollm2-135m", gguf_model.load_f32(real)[0], real, PROMPT,
                                                   folder)))
        for name, run in runs:
            if wanted not in name:
                continue
            try:
                done, worst = run()
                passed += 1
                print(f"{name}: {done} interventions, at most {worst:.1e} of the spread", flush=True)
            except (AssertionError, subprocess.CalledProcessError) as error:
                failed += 1
                print(f"{name}: {error}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
