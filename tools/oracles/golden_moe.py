"""The tiny models of mixtures of experts: what golden_archs says of dense ones, and the experts.

transformers keeps all experts of a layer in two tensors, gate and up in one; GGUF in three.
"""

from __future__ import annotations

import gguf
import numpy as np

from .golden_archs import Arch, PairedRows
from .golden_specs import Spec

FUSED, DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"


def layer_of(name: str) -> str:
    """`model.layers.3.…` -> `3`."""
    parts = name.split(".")
    return parts[2] if parts[1] == "layers" else ""


class Mixture(Arch):
    """Experts and their router; `options` of a spec name them as transformers does."""

    normalizes = True  # what a reader takes for granted

    def model(self, config):
        config._experts_implementation = "eager"  # the grouped ones want rows of 16 bytes
        return super().model(config)

    def gain(self, name, spec):
        # Logits of the router spread over a few units, so that experts differ in weight.
        return 2.0 if name.endswith("mlp.gate.weight") else super().gain(name, spec)

    def inputs(self, name, value):
        return value.shape[-1]

    def tensors(self, name: str, value: np.ndarray, spec: Spec) -> dict[str, np.ndarray]:
        layer = layer_of(name)
        if name.endswith(FUSED):
            gate, up = np.split(value, 2, axis=1)
            return {f"blk.{layer}.ffn_gate_exps.weight": np.ascontiguousarray(gate),
                    f"blk.{layer}.ffn_up_exps.weight": np.ascontiguousarray(up)}
        if name.endswith(DOWN):
            return {f"blk.{layer}.ffn_down_exps.weight": value}
        if name.endswith("mlp.gate.weight"):
            return {f"blk.{layer}.ffn_gate_inp.weight": value}
        if name.endswith("mlp.shared_expert_gate.weight"):
            return {f"blk.{layer}.ffn_gate_inp_shexp.weight": value[0]}
        return super().tensors(name, value, spec)

    def collect(self, name: str, held: dict[str, np.ndarray], spec: Spec) -> np.ndarray:
        layer = layer_of(name)
        if name.endswith(FUSED):
            return np.concatenate([held[f"blk.{layer}.ffn_{part}_exps.weight"]
                                   for part in ("gate", "up")], axis=1)
        if name.endswith(DOWN):
            return held[f"blk.{layer}.ffn_down_exps.weight"]
        if name.endswith("mlp.gate.weight"):
            return held[f"blk.{layer}.ffn_gate_inp.weight"]
        if name.endswith("mlp.shared_expert_gate.weight"):
            return held[f"blk.{layer}.ffn_gate_inp_shexp.weight"][None]
        return super().collect(name, held, spec)

    def hparams(self, writer: gguf.GGUFWriter, spec: Spec, config) -> None:
        super().hparams(writer, spec, config)
        experts = getattr(config, "num_local_experts", None) or config.num_experts
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        if getattr(config, "moe_intermediate_size", None):
            writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        if getattr(config, "shared_expert_intermediate_size", None):
            writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
        # No converter writes this one where it is the architecture's own.
        if getattr(config, "norm_topk_prob", self.normalizes) != self.normalizes:
            writer.add_expert_weights_norm(config.norm_topk_prob)

    def routers(self, model):
        """The modules that give (logits, weights, experts) of each token, one a layer."""
        return [layer.mlp.gate for layer in self.layers(model)]


class Qwen2Moe(Mixture):
    name = "qwen2moe"
    pre_tokenizer = "qwen2"
    normalizes = False

    def model_type(self):
        return "qwen2_moe"


class Qwen3Moe(Mixture):
    name = "qwen3moe"
    pre_tokenizer = "qwen2"
    writes_head_size = True

    def model_type(self):
        return "qwen3_moe"

    def config(self, spec, vocab_size):
        spec.options.setdefault("head_dim", spec.d_head)
        return super().config(spec, vocab_size)


class Mixtral(Mixture, PairedRows):
    name = "mixtral"
    gguf_arch = "llama"


MIXTURES = {arch.name: arch for arch in (Qwen2Moe(), Qwen3Moe(), Mixtral())}
