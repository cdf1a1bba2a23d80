"""Where the taps are in a model of transformers, and the models that the goldens were made with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import make_golden

from .golden_specs import Spec


class Parts:
    """Where the taps are in a model of transformers: modules, and how they shape what passes."""

    def __init__(self, model):
        self.model = model
        core = model.transformer if hasattr(model, "transformer") else model.model
        self.gpt2 = hasattr(model, "transformer")
        self.layers = core.h if self.gpt2 else core.layers
        config = model.config
        self.heads = config.num_attention_heads
        self.kv_heads = getattr(config, "num_key_value_heads", None) or self.heads
        self.d_model = config.hidden_size
        self.d_head = getattr(config, "head_dim", None) or self.d_model // self.heads
        self.scaled = getattr(config, "residual_multiplier", 1.0) != 1.0

    def attention(self, layer: int):
        return self.layers[layer].attn if self.gpt2 else self.layers[layer].self_attn

    def output(self, layer: int):
        return self.attention(layer).c_proj if self.gpt2 else self.attention(layer).o_proj

    def written(self, layer: int, what: str):
        """What a block adds to the stream comes out of this module."""
        block = self.layers[layer]
        if what == "attn":
            post = hasattr(block, "post_feedforward_layernorm")  # norms after the block, too
            return block.post_attention_layernorm if post else self.attention(layer)
        return getattr(block, "post_feedforward_layernorm", None) or block.mlp

    def down(self, layer: int):
        mlp = self.layers[layer].mlp
        return mlp.c_proj if self.gpt2 else getattr(mlp, "down_proj", None)

    def value_slice(self, layer: int):
        """The module that gives v, and v's features among those that it gives."""
        attention = self.attention(layer)
        size = self.kv_heads * self.d_head
        if self.gpt2:
            return attention.c_attn, slice(2 * self.d_model, 3 * self.d_model)
        if hasattr(attention, "qkv_proj"):
            begin = self.heads * self.d_head + size
            return attention.qkv_proj, slice(begin, begin + size)
        return attention.v_proj, slice(0, size)


def of_golden(spec: Spec, folder: Path, use: Callable):
    """What `use(model, path, tokens)` gives: the reference's model is the one that makes the golden, `path`
    the golden's file. `folder` is for what is made on the way."""
    found = {}

    def compare(model, _embedding, _layers, tokens, _positions=None):
        found["result"] = use(model, make_golden.GOLDEN / f"{spec.name}.gguf", tokens.tolist())
        return {}

    own, make_golden.run_reference = make_golden.run_reference, compare
    try:
        make_golden.make_pair(spec, folder)
    except KeyError:
        pass  # a mixture's notes of its routers, of passes that were not the golden's
    finally:
        make_golden.run_reference = own
    return found["result"]
