"""A GGUF file as a transformers model, and the row order that the two disagree on.

GGUF keeps llama's q and k rows interleaved, so that a rotated pair is two neighbours;
transformers keeps them in halves. `permute` goes from transformers to GGUF, `unpermute` back.
Other architectures (qwen2) keep the halves in both.
"""

from __future__ import annotations

import gguf
import numpy as np

LLAMA, QWEN2 = "llama", "qwen2"

# (GGUF stem, transformers stem) within one layer.
LAYER_TENSORS = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
]
TOP_TENSORS = [
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
]


def permute(rows: np.ndarray, n_head: int) -> np.ndarray:
    """Rows of one head from halves (transformers) to interleaved pairs (GGUF's llama)."""
    shape = rows.shape
    halves = rows.reshape(n_head, 2, shape[0] // n_head // 2, *shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(shape))


def unpermute(rows: np.ndarray, n_head: int) -> np.ndarray:
    """The inverse of `permute`."""
    shape = rows.shape
    pairs = rows.reshape(n_head, shape[0] // n_head // 2, 2, *shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(shape))


def hf_name(gguf_name: str) -> str:
    """`blk.3.attn_q.bias` -> `model.layers.3.self_attn.q_proj.bias`."""
    parts = gguf_name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{dict(LAYER_TENSORS)[parts[2]]}.{parts[3]}"
    return f"{dict(TOP_TENSORS)[parts[0]]}.{parts[1]}"


def heads_to_permute(arch: str, gguf_name: str, n_heads: int, n_kv_heads: int) -> int | None:
    """How many heads `gguf_name` is permuted by, or None where the rows are in one order."""
    if arch != LLAMA:
        return None
    if ".attn_q." in gguf_name:
        return n_heads
    return n_kv_heads if ".attn_k." in gguf_name else None


def metadata(reader: gguf.GGUFReader, key: str, default=None):
    """The value of one metadata key."""
    field = reader.fields.get(key)
    return default if field is None else field.contents()


def state_dict(reader: gguf.GGUFReader) -> dict:
    """Every weight of the file, dequantised to f32 and in transformers' row order."""
    import torch

    arch = metadata(reader, "general.architecture")
    n_heads = metadata(reader, f"{arch}.attention.head_count")
    n_kv = metadata(reader, f"{arch}.attention.head_count_kv", n_heads)
    out = {}
    for tensor in reader.tensors:
        if tensor.name == "rope_freqs.weight":
            continue
        value = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        heads = heads_to_permute(arch, tensor.name, n_heads, n_kv)
        if heads is not None:
            value = unpermute(value, heads)
        out[hf_name(tensor.name)] = torch.from_numpy(np.array(value))
    return out


def load_f32(path):
    """A llama GGUF (no rope scaling) as transformers' LlamaForCausalLM in f32, dequantised.

    Raises ValueError for what this loader does not carry over, rather than ignoring it.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    reader = gguf.GGUFReader(path)
    arch = metadata(reader, "general.architecture")
    if arch != LLAMA:
        raise ValueError(f"general.architecture is {arch!r}; only 'llama' is loaded here")
    names = {t.name for t in reader.tensors}
    scaling = [k for k in reader.fields if ".rope.scaling." in k]
    if scaling or "rope_freqs.weight" in names:
        raise ValueError(f"rope scaling is not carried over: {scaling or 'rope_freqs.weight'}")
    key = lambda name, default=None: metadata(reader, f"{arch}.{name}", default)
    config = LlamaConfig(
        vocab_size=len(metadata(reader, "tokenizer.ggml.tokens")),
        hidden_size=key("embedding_length"),
        intermediate_size=key("feed_forward_length"),
        num_hidden_layers=key("block_count"),
        num_attention_heads=key("attention.head_count"),
        num_key_value_heads=key("attention.head_count_kv"),
        head_dim=key("attention.key_length"),
        max_position_embeddings=key("context_length"),
        rms_norm_eps=key("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": key("rope.freq_base", 10000.0)},
        tie_word_embeddings="output.weight" not in names,
        bos_token_id=metadata(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=metadata(reader, "tokenizer.ggml.eos_token_id"),
    )
    config._attn_implementation = "eager"
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to_empty(device="cpu")
    weights = state_dict(reader)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    model.tie_weights()
    allowed = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if set(missing) - allowed or unexpected:
        raise ValueError(f"missing {sorted(missing)}, unexpected {sorted(unexpected)}")
    # The inverse frequencies are no weights: meta initialisation left them undefined.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.float().eval(), reader
