"""Every tap of every tiny golden against transformers, which computes in f32 (what its modules take and
give, and what its attention is called with), and against TransformerLens, where it has the tap.

`cutaway capture --precise --taps all` on each golden; every tap is within 1e-3 of its spread, and none is left
out. Runs in the environment of tools/peers.sh lens, which it makes. CUTAWAY_BINARY names the program; an
argument, a part of the goldens' names.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from oracles.packages import peers_home  # noqa: E402

if os.environ.get("CUTAWAY_LENS") != "1":
    subprocess.run([str(ROOT / "tools" / "peers.sh"), "lens"], check=True)
    python = peers_home() / "lens" / "bin" / "python"
    sys.exit(subprocess.run([python, __file__, *sys.argv[1:]], env={**os.environ, "CUTAWAY_LENS": "1"}).returncode)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from oracles.golden_specs import SPECS  # noqa: E402
from oracles.hf_modules import Parts, of_golden  # noqa: E402
from oracles.lens import bridge_of  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

BINARY = os.environ.get("CUTAWAY_BINARY", str(ROOT / "build" / "release" / "cutaway"))
BOUND = 1e-3  # of a tap's spread
# What TransformerLens's bridge does not have, or has of something else: the ids; logits (they are no hook); what a
# head writes; q and k where its attention is transformers' own; the norms after a block; an expert's own values (it
# has those of the shared expert, or of all tokens without an order).
NOT_IN_LENS = {
    "": {"hook_tokens", "logits", "attn.hook_result"},
    "gpt2": {"attn.hook_rot_q", "attn.hook_rot_k"},
    "phi3": {"attn.hook_rot_q", "attn.hook_rot_k"},
    "olmo2": {"ln1.hook_scale", "ln1.hook_normalized", "ln2.hook_scale", "ln2.hook_normalized"},
    **dict.fromkeys(("mixtral", "qwen2moe", "qwen3moe"),
                    {f"mlp.hook_{name}" for name in ("router_logits", "expert_indices", "expert_weights", "pre",
                                                     "pre_linear", "post")}),
}


class Watched:
    """What passes through a model: of each module that was asked for, its input and its output."""

    def __init__(self, model):
        self.model, self.handles = model, []
        self.taken: dict[str, torch.Tensor] = {}
        self.given: dict[str, torch.Tensor] = {}
        self.attention: dict[int, dict[str, torch.Tensor]] = {}
        self.module = sys.modules[type(model).__module__]
        self.own = self.module.eager_attention_forward
        self.module.eager_attention_forward = self.attend

    def watch(self, name: str, module) -> None:
        def hook(_module, args, options, output):
            self.taken[name] = args[0] if args else options["hidden_states"]
            self.given[name] = output

        self.handles.append(module.register_forward_hook(hook, with_kwargs=True))

    def attend(self, module, query, key, value, attention_mask, scaling=None, **options):
        out, pattern = self.own(module, query, key, value, attention_mask, scaling=scaling, **options)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        group = query.shape[1] // key.shape[1]
        scores = query @ key.repeat_interleave(group, 1).transpose(2, 3) * scale
        if options.get("softcap") is not None:
            scores = torch.tanh(scores / options["softcap"]) * options["softcap"]
        n = query.shape[2]
        unseen = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)
        if attention_mask is not None:
            unseen = unseen | (attention_mask[0, 0, :, :n] < -1)
        self.attention[module.layer_idx] = {
            "rot_q": query.transpose(1, 2), "rot_k": key.transpose(1, 2), "v": value.transpose(1, 2),
            "attn_scores": scores.masked_fill(unseen, float("-inf")), "pattern": pattern}
        return out, pattern

    def close(self) -> None:
        self.module.eager_attention_forward = self.own
        for handle in self.handles:
            handle.remove()


def norms(parts: Parts, layer: int) -> tuple:
    """The norms of attention and MLP: those before them, or after them where there are no others."""
    block = parts.layers[layer]
    if parts.gpt2:
        return block.ln_1, block.ln_2
    before = getattr(block, "pre_feedforward_layernorm", None)
    if before is not None:
        return block.input_layernorm, before
    if hasattr(block, "post_feedforward_layernorm"):
        return block.post_attention_layernorm, block.post_feedforward_layernorm
    return block.input_layernorm, block.post_attention_layernorm


def norm_taps(name: str, module, x: torch.Tensor) -> dict:
    if isinstance(module, torch.nn.LayerNorm):
        x = x - x.mean(-1, keepdim=True)
    epsilon = next(getattr(module, n) for n in ("eps", "variance_epsilon") if hasattr(module, n))
    scale = (x.pow(2).mean(-1, keepdim=True) + epsilon).sqrt()
    return {f"{name}.hook_scale": scale, f"{name}.hook_normalized": x / scale}


class Reference:
    """Every tap of one text, by name."""

    def __init__(self, model, tokens: list[int]):
        self.parts, self.model = Parts(model), model
        self.layers = range(len(self.parts.layers))
        self.seen = Watched(model)
        core = model.transformer if self.parts.gpt2 else model.model
        self.embedding = core.wte if self.parts.gpt2 else core.embed_tokens
        self.final = core.ln_f if self.parts.gpt2 else core.norm
        self.watch_modules()
        try:
            ids = torch.tensor([tokens])
            with torch.no_grad():
                logits = model(ids, use_cache=False).logits
                self.taps = {"hook_tokens": ids, "logits": logits}
                if self.parts.gpt2:
                    self.taps["hook_embed"] = self.embedding.weight[ids]
                    self.taps["hook_pos_embed"] = core.wpe.weight[None, : len(tokens)]
                else:  # with the factor that some multiply it by
                    self.taps["hook_embed"] = self.seen.taken["0.block"]
                self.taps |= norm_taps("ln_final", self.final, self.seen.taken["final"])
                for layer in self.layers:
                    found = self.stream(layer) | self.attention(layer) | self.mlp(layer)
                    self.taps |= {f"blocks.{layer}.{name}": value for name, value in found.items()}
        finally:
            self.seen.close()

    def watch_modules(self) -> None:
        watch, parts = self.seen.watch, self.parts
        watch("final", self.final)
        for i in self.layers:
            block = parts.layers[i]
            watch(f"{i}.block", block)
            for name, module in zip(("ln1", "ln2"), norms(parts, i), strict=True):
                watch(f"{i}.{name}", module)
            attention = parts.attention(i)
            for name in ("c_attn", "qkv_proj", "q_proj", "k_proj", "v_proj"):
                if hasattr(attention, name):
                    watch(f"{i}.{name}", getattr(attention, name))
            watch(f"{i}.output", parts.output(i))
            for name in ("attn", "mlp"):
                watch(f"{i}.{name}_written", parts.written(i, name))
            watch(f"{i}.mlp", block.mlp)
            for name in ("c_fc", "c_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj", "gate", "experts"):
                if hasattr(block.mlp, name):
                    watch(f"{i}.mlp.{name}", getattr(block.mlp, name))

    def stream(self, layer: int) -> dict:
        def whole(value):
            return value[0] if isinstance(value, tuple) else value

        taken, given, parts = self.seen.taken, self.seen.given, self.parts
        factor = getattr(self.model.config, "residual_multiplier", 1.0)
        pre = taken[f"{layer}.block"]
        attn, mlp = (whole(given[f"{layer}.{name}_written"]) * factor for name in ("attn", "mlp"))
        first, second = norms(parts, layer)
        return {"hook_resid_pre": pre, "hook_resid_mid": pre + attn, "hook_attn_out": attn, "hook_mlp_out": mlp,
                "hook_resid_post": whole(given[f"{layer}.block"]),
                **norm_taps("ln1", first, taken[f"{layer}.ln1"]), **norm_taps("ln2", second, taken[f"{layer}.ln2"])}

    def attention(self, layer: int) -> dict:
        parts, given = self.parts, self.seen.given
        n_q, n_kv, d = parts.heads, parts.kv_heads, parts.d_head
        fused = given.get(f"{layer}.c_attn", given.get(f"{layer}.qkv_proj"))
        if fused is not None:
            q, k, _ = fused.split([n_q * d, n_kv * d, n_kv * d], -1)
        else:
            q, k = given[f"{layer}.q_proj"], given[f"{layer}.k_proj"]
        z = self.seen.taken[f"{layer}.output"]
        b, n, _ = z.shape
        z = z.reshape(b, n, n_q, d)
        weight = parts.output(layer).weight  # gpt2's has its inputs first
        by_head = (weight.T if parts.gpt2 else weight).reshape(-1, n_q, d)
        out = {"q": q.reshape(b, n, n_q, d), "k": k.reshape(b, n, n_kv, d), "z": z,
               "result": torch.einsum("bphd,mhd->bphm", z, by_head), **self.seen.attention[layer]}
        return {f"attn.hook_{name}": value for name, value in out.items()}

    def mlp(self, layer: int) -> dict:
        given, taken = self.seen.given, self.seen.taken
        of = lambda name: f"{layer}.mlp.{name}"
        if of("experts") in given:
            return self.mixture(layer)
        if of("c_fc") in given:
            out = {"pre": given[of("c_fc")], "post": taken[of("c_proj")]}
        elif of("gate_up_proj") in given:
            gate, up = given[of("gate_up_proj")].chunk(2, -1)
            out = {"pre": gate, "pre_linear": up, "post": taken[of("down_proj")]}
        else:
            out = {"pre": given[of("gate_proj")], "pre_linear": given[of("up_proj")],
                   "post": taken[of("down_proj")]}
        return {f"mlp.hook_{name}": value for name, value in out.items()}

    def mixture(self, layer: int) -> dict:
        """Experts compute inside one module: what each of a token's does is computed from its weights."""
        logits, weights, chosen = self.seen.given[f"{layer}.mlp.gate"]
        x = self.seen.taken[f"{layer}.mlp.experts"].reshape(-1, self.parts.d_model)
        experts = self.parts.layers[layer].mlp.experts
        gate, up = torch.einsum("td,tefd->tef", x, experts.gate_up_proj[chosen]).chunk(2, -1)
        out = {"router_logits": logits, "expert_indices": chosen, "expert_weights": weights, "pre": gate,
               "pre_linear": up, "post": experts.act_fn(gate) * up}
        return {f"mlp.hook_{name}": value[None] for name, value in out.items()}


def distance(expected: np.ndarray, actual: np.ndarray) -> float:
    """The largest difference as a share of the spread; what is −inf is so in both."""
    if expected.shape != actual.shape:
        raise AssertionError(f"shape {actual.shape} instead of {expected.shape}")
    seen = np.isfinite(expected)
    if (seen != np.isfinite(actual)).any():
        raise AssertionError("another mask")
    expected, actual = expected[seen].astype(np.float64), actual[seen].astype(np.float64)
    spread = expected.max() - expected.min()
    return float(np.abs(expected - actual).max() / (spread if spread > 0 else max(1, np.abs(expected).max())))


def in_lens(model, tokens: list[int], arch: str, names: set[str]) -> dict[str, torch.Tensor]:
    """TransformerLens's values of all taps that it has; what is masked is −inf."""
    missing = NOT_IN_LENS[""] | NOT_IN_LENS.get(arch, set())
    site = lambda name: name.split(".", 2)[2] if name.startswith("blocks.") else name
    wanted = {name for name in names if site(name) not in missing}
    with torch.no_grad():
        _, cache = bridge_of(model).run_with_cache(torch.tensor([tokens]))
    low = torch.finfo(torch.float32).min / 2
    return {name: cache[name].masked_fill(cache[name] < low, float("-inf")) for name in wanted}


def check(model, path: Path, tokens: list[int], folder: Path, arch: str) -> tuple[int, int, float, str]:
    """How many taps were compared with transformers and with TransformerLens, the largest difference, and where
    it is."""
    expected = Reference(model, tokens).taps
    output = folder / "taps.safetensors"
    # LongRoPE's factors follow the context: it is what transformers sees, the text.
    subprocess.run([BINARY, "capture", "-m", path, "-c", str(len(tokens)), "--tokens", ",".join(map(str, tokens)),
                    "--taps", "all", "-o", output, "--precise"], check=True, stdout=subprocess.DEVNULL)
    ours = load_file(output)
    if set(ours) != set(expected):
        raise AssertionError(f"only one side has {sorted(set(ours) ^ set(expected))}")
    lens = in_lens(model, tokens, arch, set(ours))
    worst, where = 0.0, ""
    for side, taps in (("transformers", expected), ("TransformerLens", lens)):
        for name, value in taps.items():
            try:
                found = distance(value.detach().numpy(), ours[name])
            except AssertionError as error:
                raise AssertionError(f"{side}, {name}: {error}") from error
            if not found <= BOUND:
                raise AssertionError(f"{side}, {name}: {found:.1e} of the spread")
            if found > worst:
                worst, where = found, name
    return len(ours), len(lens), worst, where


def main() -> int:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    passed = failed = total = in_both = 0
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        for spec in SPECS:
            if wanted not in spec.name:
                continue
            try:
                taps, lens, worst, where = of_golden(
                    spec, folder, lambda *golden: check(*golden, folder, spec.arch))
                passed, total, in_both = passed + 1, total + taps, in_both + lens
                print(f"{spec.name}: {taps} taps, {lens} of them in TransformerLens, at most {worst:.1e} of the "
                      f"spread ({where})", flush=True)
            except (AssertionError, subprocess.CalledProcessError) as error:
                failed += 1
                print(f"{spec.name}: {error}", flush=True)
    print(f"{total} taps of {passed} models, {in_both} of them in TransformerLens, within {BOUND} of their spread")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
