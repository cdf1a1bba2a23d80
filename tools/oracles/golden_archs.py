"""How the tiny models of an architecture are made: transformers' configuration, GGUF's keys, and
what the converter of llama.cpp changes in the weights.

One class per architecture; its base does what most converters do. Tensor names are those of the
`gguf` package's own table, so that they are nobody's retelling.
"""

from __future__ import annotations

import math

import gguf
import numpy as np

from . import gguf_model
from .golden_specs import Spec


class Arch:
    """An architecture whose converter changes no weight."""

    name = ""
    gguf_arch = ""  # general.architecture, where it is not the name
    pre_tokenizer = "gpt-2"
    norm_centre = 1.0  # of the stored norm weights, in transformers' files
    writes_head_size = False  # whether the converter always writes key_length and value_length

    def config(self, spec: Spec, vocab_size: int):
        """The transformers configuration: what all have, and the spec's own options."""
        from transformers import AutoConfig

        values = dict(
            vocab_size=vocab_size,
            hidden_size=spec.d_model,
            intermediate_size=spec.d_ff,
            num_hidden_layers=spec.n_layers,
            num_attention_heads=spec.n_heads,
            num_key_value_heads=spec.n_kv_heads,
            max_position_embeddings=spec.context,
            rms_norm_eps=spec.eps,
            tie_word_embeddings=spec.tied,
            rope_parameters=self.rope_parameters(spec),
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
            attn_implementation="eager",
        )
        if spec.head_dim is not None:
            values["head_dim"] = spec.head_dim
        return AutoConfig.for_model(self.model_type(), **{**values, **spec.options})

    def model_type(self) -> str:
        return self.name

    def rope_parameters(self, spec: Spec) -> dict:
        return {**spec.rope, "rope_theta": spec.theta}

    def model(self, config):
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()

    def layers(self, model):
        return model.model.layers

    def embedding(self, model):
        """Where the residual stream begins; None: at the first layer."""
        return None

    def gain(self, name: str, spec: Spec) -> float:
        """A matrix is drawn from N(0, gain / √inputs): unit variance through products, patterns far
        from uniform."""
        if "embed_tokens" in name:
            return math.sqrt(spec.d_model)
        return 1.4 if "q_proj" in name or "k_proj" in name else 1.0

    def inputs(self, name: str, value: np.ndarray) -> int:
        return value.shape[1]

    def random(self, name: str, shape: tuple, rng: np.random.Generator, spec: Spec) -> np.ndarray:
        values = rng.standard_normal(shape)
        if name.endswith(".bias"):
            values = values * 0.4
        elif "norm" in name or ".ln_" in name:
            values = self.norm_centre + 0.25 * values
        else:
            values = values * self.gain(name, spec) / math.sqrt(self.inputs(name, values))
        return values.astype(np.float32)

    def gguf_name(self, name: str, spec: Spec) -> str:
        stored = self.gguf_arch or self.name
        arch = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == stored)
        target = gguf.get_tensor_name_map(arch, spec.n_layers).get_name(name, (".weight", ".bias"))
        if target is None:
            raise ValueError(f"{self.name}: no GGUF name for {name}")
        return target

    def to_gguf(self, name: str, value: np.ndarray, spec: Spec) -> np.ndarray:
        return value

    def from_gguf(self, name: str, value: np.ndarray, spec: Spec) -> np.ndarray:
        return value

    def tensors(self, name: str, value: np.ndarray, spec: Spec) -> dict[str, np.ndarray]:
        """What GGUF makes of one of transformers' tensors."""
        return {self.gguf_name(name, spec): self.to_gguf(name, value, spec)}

    def collect(self, name: str, held: dict[str, np.ndarray], spec: Spec) -> np.ndarray:
        """The inverse of `tensors`, from all tensors of a file."""
        return self.from_gguf(name, held[self.gguf_name(name, spec)], spec)

    def hparams(self, writer: gguf.GGUFWriter, spec: Spec, config) -> None:
        writer.add_block_count(spec.n_layers)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(spec.d_model)
        writer.add_feed_forward_length(spec.d_ff)
        writer.add_head_count(spec.n_heads)
        writer.add_head_count_kv(spec.n_kv_heads)
        self.rope_hparams(writer, spec)
        self.norm_hparams(writer, spec)
        if spec.head_dim is not None or self.writes_head_size:
            writer.add_key_length(spec.d_head)
            writer.add_value_length(spec.d_head)

    def norm_hparams(self, writer: gguf.GGUFWriter, spec: Spec) -> None:
        writer.add_layer_norm_rms_eps(spec.eps)

    def rope_hparams(self, writer: gguf.GGUFWriter, spec: Spec) -> None:
        rope = spec.rope
        writer.add_rope_freq_base(spec.theta)
        if rope["rope_type"] == "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        elif rope["rope_type"] == "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        elif rope["rope_type"] != "default":
            raise ValueError(f"{spec.name}: rope type {rope['rope_type']}")

    def extra_tensors(self, spec: Spec, config) -> dict[str, np.ndarray]:
        """What the converter adds that is no weight."""
        return {}


class PairedRows(Arch):
    """q and k rows lie pair by pair in GGUF, as llama's."""

    def heads(self, name: str, spec: Spec) -> int | None:
        if ".q_proj." in name:
            return spec.n_heads
        return spec.n_kv_heads if ".k_proj." in name else None

    def to_gguf(self, name, value, spec):
        heads = self.heads(name, spec)
        return value if heads is None else gguf_model.permute(value, heads)

    def from_gguf(self, name, value, spec):
        heads = self.heads(name, spec)
        return value if heads is None else gguf_model.unpermute(value, heads)


class Qwen3(Arch):
    name = "qwen3"
    pre_tokenizer = "qwen2"
    writes_head_size = True

    def config(self, spec, vocab_size):
        # A window is given and switched off, as in the published configurations.
        spec.options.setdefault("head_dim", spec.d_head)
        window = dict(use_sliding_window=False, sliding_window=4, max_window_layers=1)
        spec.options = {**window, **spec.options}
        return super().config(spec, vocab_size)


class Gemma2(Arch):
    name = "gemma2"
    norm_centre = 0.0
    writes_head_size = True

    def config(self, spec, vocab_size):
        spec.options.setdefault("head_dim", spec.d_head)
        spec.options.setdefault("query_pre_attn_scalar", spec.d_head)
        return super().config(spec, vocab_size)

    def gain(self, name, spec):
        # Embeddings are multiplied by √d_model.
        return math.sqrt(spec.d_model) / 4 if "embed_tokens" in name else super().gain(name, spec)

    def to_gguf(self, name, value, spec):
        return value + np.float32(1) if name.endswith("norm.weight") else value

    def from_gguf(self, name, value, spec):
        return value - np.float32(1) if name.endswith("norm.weight") else value

    def hparams(self, writer, spec, config):
        super().hparams(writer, spec, config)
        if config.attn_logit_softcapping:
            writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        if config.final_logit_softcapping:
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
        writer.add_sliding_window(config.sliding_window)
        # No converter writes the scale: readers know the one size whose scale is another. Where
        # neither holds, the key that other architectures have says it.
        scalar = config.query_pre_attn_scalar
        usual = spec.d_model // spec.n_heads if spec.n_layers == self.odd_layers else spec.d_head
        if scalar != usual:
            writer.add_attention_scale(scalar**-0.5)

    odd_layers = 46  # of the size whose scale is 1/√(d_model / heads)

    def rope_hparams(self, writer, spec):
        if spec.rope["rope_type"] != "default" or spec.theta != 10000.0:
            raise ValueError("the converter writes no rotary key")


class Gemma3(Gemma2):
    name = "gemma3"
    odd_layers = 62

    def model_type(self):
        return "gemma3_text"

    def rope_parameters(self, spec):
        return {
            "full_attention": {**spec.rope, "rope_theta": spec.theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": spec.local_theta},
        }

    def rope_hparams(self, writer, spec):
        Arch.rope_hparams(self, writer, spec)
        if spec.local_theta != 10000.0:
            writer.add_rope_freq_base_swa(spec.local_theta)


class Olmo2(Arch):
    """OLMo 2; with a window OLMo 3, whose files have the same architecture."""

    name = "olmo2"

    def config(self, spec, vocab_size):
        self.kind = "olmo3" if "sliding_window" in spec.options else "olmo2"
        return super().config(spec, vocab_size)

    def model_type(self):
        return self.kind

    def rope_parameters(self, spec):
        scaled = super().rope_parameters(spec)
        if self.kind == "olmo2":
            return scaled
        plain = {"rope_type": "default", "rope_theta": spec.theta}
        return {"full_attention": scaled, "sliding_attention": plain}

    def hparams(self, writer, spec, config):
        super().hparams(writer, spec, config)
        if "sliding_window" in spec.options:
            writer.add_sliding_window(config.sliding_window)
            writer.add_sliding_window_pattern(
                [kind == "sliding_attention" for kind in config.layer_types])


class SmolLM3(PairedRows):
    name = "smollm3"


class Granite(PairedRows):
    name = "granite"

    def hparams(self, writer, spec, config):
        super().hparams(writer, spec, config)
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)


class Phi3(Arch):
    name = "phi3"

    def rope_parameters(self, spec):
        if spec.rope["rope_type"] == "longrope":
            pairs = self.pairs(spec)
            steps = np.linspace(0, 1, pairs)
            factors = {"short_factor": [round(float(v), 4) for v in 1 + 0.3 * steps],
                       "long_factor": [round(float(v), 4) for v in 1.2 + 5 * steps]}
            return {**factors, **spec.rope, "rope_theta": spec.theta}
        return super().rope_parameters(spec)

    def pairs(self, spec: Spec) -> int:
        return int(spec.d_head * spec.rope.get("partial_rotary_factor", 1.0)) // 2

    def config(self, spec, vocab_size):
        original = spec.rope.get("original_max_position_embeddings", spec.context)
        spec.options.setdefault("original_max_position_embeddings", original)
        return super().config(spec, vocab_size)

    def gain(self, name, spec):
        return 1.2 if "qkv_proj" in name else super().gain(name, spec)

    def hparams(self, writer, spec, config):
        super().hparams(writer, spec, config)
        writer.add_rope_dimension_count(2 * self.pairs(spec))
        writer.add_sliding_window(config.sliding_window or 0)
        original = config.original_max_position_embeddings
        writer.add_rope_scaling_orig_ctx_len(original)
        if spec.rope["rope_type"] == "longrope":
            scale = spec.context / original
            factor = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
            writer.add_rope_scaling_attn_factors(factor)

    def rope_hparams(self, writer, spec):
        writer.add_rope_freq_base(spec.theta)

    def extra_tensors(self, spec, config):
        rope = config.rope_parameters
        if rope["rope_type"] != "longrope":
            return {}
        return {f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"], dtype=np.float32)
                for kind in ("long", "short")}


class Gpt2(Arch):
    name = "gpt2"

    def config(self, spec, vocab_size):
        from transformers import GPT2Config

        return GPT2Config(
            vocab_size=vocab_size, n_positions=spec.context, n_embd=spec.d_model,
            n_layer=spec.n_layers, n_head=spec.n_heads, n_inner=spec.d_ff,
            layer_norm_epsilon=spec.eps, tie_word_embeddings=spec.tied, bos_token_id=None,
            eos_token_id=None, attn_implementation="eager", **spec.options,
        )

    def layers(self, model):
        return model.transformer.h

    def embedding(self, model):
        return model.transformer.wte

    def positions(self, model):
        return model.transformer.wpe

    def conv(self, name: str) -> bool:
        """Transformers keeps these matrices with the inputs first."""
        return name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))

    def inputs(self, name, value):
        return value.shape[0] if self.conv(name) else value.shape[1]

    def gain(self, name, spec):
        if ".wte." in name or ".wpe." in name:
            return math.sqrt(spec.d_model)
        return 1.2 if "c_attn" in name else 1.0

    def to_gguf(self, name, value, spec):
        return np.ascontiguousarray(value.T) if self.conv(name) else value

    from_gguf = to_gguf

    def hparams(self, writer, spec, config):
        writer.add_block_count(spec.n_layers)
        writer.add_context_length(spec.context)
        writer.add_embedding_length(spec.d_model)
        writer.add_feed_forward_length(spec.d_ff)
        writer.add_head_count(spec.n_heads)
        writer.add_layer_norm_eps(spec.eps)


ARCHS = {arch.name: arch for arch in
         (Qwen3(), Gemma2(), Gemma3(), Olmo2(), SmolLM3(), Granite(), Phi3(), Gpt2())}
