"""A transformers model behind TransformerLens's bridge, without the hub."""

from __future__ import annotations

import tempfile


def bridge_of(model):
    """Hooks into `model` itself; its attention runs as "eager"."""
    from tokenizers import Tokenizer, models
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast

    with tempfile.TemporaryDirectory() as folder:
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        # The bridge wants a tokenizer; ids go in directly, so any does.
        words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
        PreTrainedTokenizerFast(tokenizer_object=words, bos_token="b", eos_token="b", pad_token="b",
                                unk_token="a").save_pretrained(folder)
        return TransformerBridge.boot_transformers(folder, hf_model=model)
