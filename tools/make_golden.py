#!/usr/bin/env python3
"""Writes tests/golden: tiny random models as GGUF, and what transformers computes with them.

Run it with the interpreter of tools/peers.sh's `torch` environment:
  make_golden.py                 write all pairs (or --only NAME,…) to tests/golden
  make_golden.py --check         make them again in a temporary folder and compare
  make_golden.py --peer PYTHON   compare the written pairs with llama.cpp, run by PYTHON
                                 (the interpreter of the `llama_cpp` environment)
Exit status: 0 done or equal, 1 different.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from oracles import gguf_model
from oracles.golden_archs import ARCHS as DENSE
from oracles.golden_moe import MIXTURES
from oracles.golden_specs import SPECS, Spec
from oracles.tiny_vocab import CHATML, TinyVocab, tiny_vocab

ARCHS = DENSE | MIXTURES
ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
MAX_BYTES = 300_000
TOLERANCE = 1e-5  # relative to the tensor's spread
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "IQ4_NL": 25,
              "BF16": 32, "MXFP4": 38}


def rng_for(spec: Spec) -> np.random.Generator:
    """One stream per name, so that adding a model changes no other."""
    return np.random.default_rng(zlib.crc32(spec.name.encode()))


def random_weights(spec: Spec, vocab_size: int) -> dict[str, np.ndarray]:
    """Weights in transformers' names and row order, large enough that every option shows.

    Products keep unit variance, q and k are scaled up so that patterns are far from uniform,
    norms lie around 1 and biases are of the order of what they are added to.
    """
    rng = rng_for(spec)
    q_rows, kv_rows = spec.n_heads * spec.d_head, spec.n_kv_heads * spec.d_head
    out: dict[str, np.ndarray] = {}

    def matrix(name: str, rows: int, cols: int, gain: float = 1.0, bias: bool = False) -> None:
        out[name + ".weight"] = rng.standard_normal((rows, cols)) * gain / math.sqrt(cols)
        if bias:
            out[name + ".bias"] = rng.standard_normal(rows) * 0.4

    def norm(name: str) -> None:
        out[name + ".weight"] = 1.0 + 0.25 * rng.standard_normal(spec.d_model)

    qkv_bias = spec.attention_bias or spec.arch == gguf_model.QWEN2
    matrix("model.embed_tokens", vocab_size, spec.d_model, math.sqrt(spec.d_model))
    for i in range(spec.n_layers):
        layer = f"model.layers.{i}."
        norm(layer + "input_layernorm")
        matrix(layer + "self_attn.q_proj", q_rows, spec.d_model, 1.4, qkv_bias)
        matrix(layer + "self_attn.k_proj", kv_rows, spec.d_model, 1.4, qkv_bias)
        matrix(layer + "self_attn.v_proj", kv_rows, spec.d_model, 1.0, qkv_bias)
        matrix(layer + "self_attn.o_proj", spec.d_model, q_rows, 1.0, spec.attention_bias)
        norm(layer + "post_attention_layernorm")
        matrix(layer + "mlp.gate_proj", spec.d_ff, spec.d_model, 1.0, spec.mlp_bias)
        matrix(layer + "mlp.up_proj", spec.d_ff, spec.d_model, 1.0, spec.mlp_bias)
        matrix(layer + "mlp.down_proj", spec.d_model, spec.d_ff, 1.0, spec.mlp_bias)
    norm("model.norm")
    if not spec.tied:
        matrix("lm_head", vocab_size, spec.d_model)
    return {k: v.astype(np.float32) for k, v in out.items()}


def config_for(spec: Spec, vocab_size: int):
    """The transformers configuration of a spec."""
    from transformers import LlamaConfig, Qwen2Config

    common = dict(
        vocab_size=vocab_size,
        hidden_size=spec.d_model,
        intermediate_size=spec.d_ff,
        num_hidden_layers=spec.n_layers,
        num_attention_heads=spec.n_heads,
        num_key_value_heads=spec.n_kv_heads,
        max_position_embeddings=128,
        rms_norm_eps=spec.eps,
        tie_word_embeddings=spec.tied,
        rope_parameters={**spec.rope, "rope_theta": spec.theta},
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    if spec.arch == gguf_model.QWEN2:
        # A window is given and switched off, as in Qwen2.5's published configurations.
        window = dict(use_sliding_window=False, sliding_window=4, max_window_layers=1)
        return Qwen2Config(**window, **common)
    return LlamaConfig(
        head_dim=spec.head_dim,
        attention_bias=spec.attention_bias,
        mlp_bias=spec.mlp_bias,
        **common,
    )


def llama3_factors(spec: Spec) -> np.ndarray:
    """`rope_freqs.weight`: the divisor of each pair's frequency, one per rotated pair.

    Llama 3.1's rule by wavelength: short ones are kept (1), long ones divided by `factor`,
    those between blended linearly in original_context / wavelength.
    """
    rope = spec.rope
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    freqs = 1.0 / spec.theta ** (np.arange(0, spec.d_head, 2, dtype=np.float32) / spec.d_head)
    turns = rope["original_max_position_embeddings"] * freqs.astype(np.float64) / (2 * math.pi)
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - blend) / rope["factor"] + blend)).astype(np.float32)


def write_hparams(writer: gguf.GGUFWriter, spec: Spec, vocab_size: int) -> None:
    """The keys that llama.cpp's converter writes for these two architectures."""
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(spec.name)
    writer.add_block_count(spec.n_layers)
    writer.add_context_length(128)
    writer.add_embedding_length(spec.d_model)
    writer.add_feed_forward_length(spec.d_ff)
    writer.add_head_count(spec.n_heads)
    writer.add_head_count_kv(spec.n_kv_heads)
    rope = spec.rope
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "attention_factor" in rope:
            writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
        if "beta_fast" in rope:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    writer.add_rope_freq_base(spec.theta)
    writer.add_layer_norm_rms_eps(spec.eps)
    if spec.head_dim is not None:
        writer.add_key_length(spec.head_dim)
        writer.add_value_length(spec.head_dim)
    writer.add_file_type(FILE_TYPES[spec.dtype])
    if spec.arch == gguf_model.LLAMA:
        writer.add_vocab_size(vocab_size)
        writer.add_rope_dimension_count(spec.d_head)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def write_tokenizer(writer: gguf.GGUFWriter, spec: Spec, vocab: TinyVocab) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocab.pre)
    writer.add_token_list(vocab.tokens)
    writer.add_token_types(vocab.types)
    writer.add_token_merges(vocab.merges)
    writer.add_bos_token_id(vocab.endoftext)
    writer.add_eos_token_id(vocab.im_end)
    writer.add_pad_token_id(vocab.endoftext)
    writer.add_add_bos_token(False)
    if spec.chat:
        writer.add_chat_template(CHATML)


def write_gguf(path: Path, spec: Spec, vocab: TinyVocab, weights: dict[str, np.ndarray]) -> None:
    """The model as a converter would have written it: matrices in `dtype`, vectors in f32."""
    writer = gguf.GGUFWriter(path, spec.arch)
    write_hparams(writer, spec, len(vocab.tokens))
    write_tokenizer(writer, spec, vocab)
    stems = dict((hf, stem) for stem, hf in gguf_model.LAYER_TENSORS + gguf_model.TOP_TENSORS)
    for name, value in weights.items():
        stem, kind = name.rsplit(".", 1)
        if stem.startswith("model.layers."):
            layer, rest = stem.removeprefix("model.layers.").split(".", 1)
            target = f"blk.{layer}.{stems[rest]}.{kind}"
        else:
            target = f"{stems[stem]}.{kind}"
        heads = gguf_model.heads_to_permute(spec.arch, target, spec.n_heads, spec.n_kv_heads)
        if heads is not None:
            value = gguf_model.permute(value, heads)
        add_weight(writer, spec, target, value)
    if spec.rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(spec))
    finish(writer)


def quantize_iq4_nl(value: np.ndarray) -> np.ndarray:
    """gguf reads this type and does not write it: each value's nearest in the table, under the scale
    that gives the greatest of a block the table's greatest."""
    blocks = value.astype(np.float32).reshape(-1, 32)
    table = np.array(gguf.quants.IQ4_NL.kvalues, np.float32)
    greatest = np.take_along_axis(blocks, np.abs(blocks).argmax(1, keepdims=True), 1)
    scale = (greatest / table[0]).astype(np.float16)
    levels = scale.astype(np.float32)[:, :, None] * table
    q = np.abs(blocks[:, :, None] - levels).argmin(2).astype(np.uint8)
    packed = np.concatenate([scale.view(np.uint8), q[:, :16] | q[:, 16:] << 4], 1)
    return packed.reshape(*value.shape[:-1], -1)


def add_weight(writer: gguf.GGUFWriter, spec: Spec, target: str, value: np.ndarray) -> None:
    dtype = spec.dtype if value.ndim > 1 and ".ffn_gate_inp." not in target else "F32"
    if target == "token_embd.weight" and spec.embd_dtype:
        dtype = spec.embd_dtype
    qtype = gguf.GGMLQuantizationType[dtype]
    stored = quantize_iq4_nl(value) if dtype == "IQ4_NL" else gguf.quants.quantize(value, qtype)
    writer.add_tensor(target, stored, raw_dtype=qtype)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def model_for(spec: Spec, vocab_size: int, weights: dict):
    """Transformers' model of a llama or qwen2 spec with these weights."""
    from transformers import LlamaForCausalLM, Qwen2ForCausalLM

    kind = Qwen2ForCausalLM if spec.arch == gguf_model.QWEN2 else LlamaForCausalLM
    return load_weights(spec, kind(config_for(spec, vocab_size)).float().eval(), weights)


def load_weights(spec: Spec, model, weights: dict):
    missing, unexpected = model.load_state_dict(
        {k: torch.from_numpy(v) for k, v in weights.items()}, strict=False
    )
    if unexpected or set(missing) - ({"lm_head.weight"} if spec.tied else set()):
        raise ValueError(f"{spec.name}: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model


def run_reference(model, embedding, layers, tokens: np.ndarray, positions=None) -> dict:
    """Logits, residual stream and attention patterns of one forward pass in f32.

    The stream begins with what `embedding` gives; None: with what the first layer takes.

    The last entry of transformers' `hidden_states` is after the final norm, so the residual
    stream is taken by hooks on the layers themselves.
    """
    stream: list[torch.Tensor] = []
    place: list[torch.Tensor] = []

    def keep(to: list):
        return lambda _module, _args, output: to.append(
            output[0] if isinstance(output, tuple) else output
        )

    if embedding is not None:
        embedding.register_forward_hook(keep(stream))
    else:
        layers[0].register_forward_pre_hook(lambda _module, args: stream.append(args[0]))
    for module in layers:
        module.register_forward_hook(keep(stream))
    if positions is not None:
        positions.register_forward_hook(keep(place))
    with torch.no_grad():
        result = model(
            torch.from_numpy(tokens.astype(np.int64))[None], output_attentions=True, use_cache=False
        )
    out = {"tokens": tokens.astype(np.int32), "logits": result.logits[0].numpy()}
    out |= {f"hidden.{i}": h[0].numpy() for i, h in enumerate(stream)}
    out |= {"pos_embed": h.reshape(stream[0].shape)[0].numpy() for h in place}
    out |= {f"attn.{i}": a[0].numpy() for i, a in enumerate(result.attentions)}
    return {k: np.ascontiguousarray(v) for k, v in out.items()}


def make_old_pair(spec: Spec, vocab: TinyVocab, path: Path, tokens: np.ndarray) -> dict:
    """llama and qwen2, whose weights are drawn in the order of `random_weights`."""
    size = len(vocab.tokens)
    weights = random_weights(spec, size)
    write_gguf(path, spec, vocab, weights)
    # What the file holds is the reference's weights: quantised ones come back dequantised.
    stored = {k: v.numpy() for k, v in gguf_model.state_dict(gguf.GGUFReader(path)).items()}
    check_survived(spec, weights, stored)
    model = model_for(spec, size, stored)
    return run_reference(model, model.model.embed_tokens, model.model.layers, tokens)


def check_survived(spec: Spec, weights: dict, stored: dict) -> None:
    if spec.dtype != "F32":
        return
    for name, value in weights.items():
        # Adding and taking away 1 may round.
        if not np.allclose(stored[name], value, rtol=0, atol=2**-22):
            raise AssertionError(f"{spec.name}: {name} did not survive the file")


def make_new_pair(spec: Spec, vocab: TinyVocab, path: Path, tokens: np.ndarray) -> dict:
    """The architectures of golden_archs: weights are drawn for what the model itself has."""
    arch, size = ARCHS[spec.arch], len(vocab.tokens)
    spec = dataclasses.replace(spec, options=dict(spec.options))
    config = arch.config(spec, size)
    model = arch.model(config)
    rng = rng_for(spec)
    weights = {name: arch.random(name, tuple(value.shape), rng, spec)
               for name, value in model.state_dict().items()
               if not (spec.tied and name == "lm_head.weight")}
    writer = gguf.GGUFWriter(path, arch.gguf_arch or spec.arch)
    writer.add_type(gguf.GGUFType.MODEL)
    # llama.cpp expects Phi-3's own control tokens of a model whose name has "phi3" in it.
    writer.add_name(spec.name.replace("phi3", "phi 3"))
    arch.hparams(writer, spec, config)
    writer.add_file_type(FILE_TYPES[spec.dtype])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    write_tokenizer(writer, spec, vocab)
    for name, value in weights.items():
        for target, part in arch.tensors(name, value, spec).items():
            add_weight(writer, spec, target, part)
    for name, value in arch.extra_tensors(spec, config).items():
        writer.add_tensor(name, value)
    finish(writer)
    held = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
            for t in gguf.GGUFReader(path).tensors}
    stored = {name: arch.collect(name, held, spec) for name in weights}
    check_survived(spec, weights, stored)
    load_weights(spec, model, stored)
    positions = arch.positions(model) if hasattr(arch, "positions") else None
    routers = arch.routers(model) if hasattr(arch, "routers") else []
    routed = watch_routers(routers)
    golden = run_reference(model, arch.embedding(model), arch.layers(model), tokens, positions)
    return golden | routed


def watch_routers(routers: list) -> dict[str, np.ndarray]:
    """What each will have decided once the model has run: logits, and by falling weight the
    experts with their weights."""
    out: dict[str, np.ndarray] = {}

    def keep(layer: int):
        def hook(_module, _args, output) -> None:
            logits, weights, experts = output
            out[f"router.{layer}"] = logits.numpy()
            out[f"expert_weights.{layer}"] = weights.numpy()
            out[f"experts.{layer}"] = experts.numpy().astype(np.int32)

        return hook

    for layer, router in enumerate(routers):
        router.register_forward_hook(keep(layer))
    return out


def make_pair(spec: Spec, folder: Path) -> None:
    """Writes <name>.gguf and <name>.safetensors."""
    torch.manual_seed(0)
    vocab = tiny_vocab(spec.pre_tokenizer, spec.arch == gguf_model.LLAMA, spec.vocab)
    tokens = np.random.default_rng(7).integers(0, len(vocab.tokens), spec.positions)
    make = make_new_pair if spec.arch in ARCHS else make_old_pair
    golden = make(spec, vocab, folder / f"{spec.name}.gguf", tokens)
    # Options that came later are noted where they are used, so that older files stay as they are.
    defaults = dataclasses.asdict(Spec(""))
    later = ("context", "local_theta", "options")
    asked = {k: v for k, v in dataclasses.asdict(spec).items()
             if k not in later or v != defaults[k]}
    note = {"spec": json.dumps(asked), "reference": reference_versions()}
    save_file(golden, folder / f"{spec.name}.safetensors", metadata=note)


def reference_versions() -> str:
    import transformers

    return f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}"


def spread(values: np.ndarray) -> float:
    return float(values.max() - values.min()) if values.size else 0.0


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference, relative to the spread of `a` (at least 1)."""
    return float(np.abs(a - b).max()) / max(1.0, spread(a))


def check(specs: list[Spec]) -> int:
    """Makes every pair again and compares it with the one in tests/golden."""
    failed = 0
    with tempfile.TemporaryDirectory() as temp:
        for spec in specs:
            make_pair(spec, Path(temp))
            problems = []
            files = [f"{spec.name}.gguf", f"{spec.name}.safetensors"]
            absent = [f for f in files if not (GOLDEN / f).is_file()]
            if absent:
                problems.append(f"not in tests/golden: {', '.join(absent)}")
            else:
                if (GOLDEN / files[0]).read_bytes() != (Path(temp) / files[0]).read_bytes():
                    problems.append("the GGUF differs")
                old, new = load_file(GOLDEN / files[1]), load_file(Path(temp) / files[1])
                if old.keys() != new.keys():
                    problems.append(f"tensors differ: {sorted(old.keys() ^ new.keys())}")
                for key in old.keys() & new.keys():
                    if old[key].shape != new[key].shape:
                        problems.append(f"{key}: {old[key].shape} != {new[key].shape}")
                    elif (worst := difference(old[key], new[key])) > TOLERANCE:
                        problems.append(f"{key}: differs by {worst:.2e} of the spread")
            failed += bool(problems)
            print(f"{spec.name}: {'; '.join(problems) or 'equal'}")
    print(f"{len(specs) - failed} passed, {failed} failed")
    return 1 if failed else 0


def check_peer(specs: list[Spec], python: str) -> int:
    """Compares the written logits with llama.cpp's in f32 (f32 cache, no flash attention)."""
    worker = ROOT / "bench" / "peers" / "llama_cpp_worker.py"
    failed = 0
    for spec in specs:
        golden = load_file(GOLDEN / f"{spec.name}.safetensors")
        with tempfile.TemporaryDirectory() as temp:
            out = Path(temp) / "logits.f32"
            ids = ",".join(str(i) for i in golden["tokens"].ravel())
            done = subprocess.run(
                [python, str(worker), "logits", "-m", str(GOLDEN / f"{spec.name}.gguf"),
                 "--tokens", ids, "--out", str(out), "--f32-cache"],
                check=not spec.peer_ignores, stdout=subprocess.DEVNULL,
            )
            if done.returncode != 0:
                print(f"{spec.name}: it does not load {spec.peer_ignores}")
                continue
            theirs = np.fromfile(out, dtype=np.float32).reshape(golden["logits"].shape)
        worst = difference(golden["logits"], theirs)
        # Its products quantise the activations of quantised weights: only f32 is exact.
        # It reads GELU from a table over f16 values: 11 bits, through every layer.
        exact = 1e-2 if spec.arch in ("gemma2", "gemma3", "gpt2") else 1e-4
        limit = exact if spec.dtype == "F32" else 0.05
        if spec.peer_ignores:
            print(f"{spec.name}: {worst:.2e} of the spread (it does not read {spec.peer_ignores})")
            continue
        failed += worst > limit
        print(f"{spec.name}: {worst:.2e} of the spread{'' if worst <= limit else '  DIFFERENT'}")
    skipped = sum(bool(s.peer_ignores) for s in specs)
    print(f"{len(specs) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--peer", metavar="PYTHON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    specs = SPECS
    if args.only:
        wanted = args.only.split(",")
        unknown = set(wanted) - {s.name for s in SPECS}
        if unknown:
            parser.error(f"--only: no such model: {', '.join(sorted(unknown))}")
        specs = [s for s in SPECS if s.name in wanted]
    if args.check:
        return check(specs)
    if args.peer:
        return check_peer(specs, args.peer)
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for spec in specs:
        make_pair(spec, GOLDEN)
        sizes = [(GOLDEN / f"{spec.name}{e}").stat().st_size for e in (".gguf", ".safetensors")]
        print(f"{spec.name}: {sizes[0]} + {sizes[1]} bytes")
        if max(sizes) > MAX_BYTES:
            raise SystemExit(f"{spec.name}: over {MAX_BYTES} bytes a file")
    return 0


if __name__ == "__main__":
    sys.exit(main())
