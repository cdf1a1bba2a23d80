"""The tiny models of tests/golden: one entry per option of the architectures."""

from __future__ import annotations

from dataclasses import dataclass, field

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@dataclass
class Spec:
    """One tiny model. `head_dim` is written only where it is not d_model / n_heads."""

    name: str
    arch: str = "llama"
    d_model: int = 32
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int | None = None
    d_ff: int = 48
    n_layers: int = 2
    tied: bool = False
    theta: float = 10000.0
    eps: float = 1e-5
    rope: dict = field(default_factory=lambda: {"rope_type": "default"})
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str = "F32"
    embd_dtype: str | None = None  # where the embedding's type differs from `dtype`
    positions: int = 24
    vocab: int | None = None  # None: as many as there are tokens
    pre: str | None = None
    chat: bool = False
    peer_ignores: str | None = None  # the option that llama.cpp does not read for this file
    context: int = 128  # positions that the model was trained for
    local_theta: float = 10000.0  # of the layers with a window, where they have their own
    options: dict = field(default_factory=dict)  # of transformers' configuration, as they are

    @property
    def d_head(self) -> int:
        return self.head_dim or self.d_model // self.n_heads

    @property
    def pre_tokenizer(self) -> str:
        return self.pre or {"llama": "smollm", "qwen2": "qwen2", "qwen3": "qwen2", "qwen2moe": "qwen2",
                            "qwen3moe": "qwen2"}.get(self.arch, "gpt-2")


def qwen2(name: str, **options) -> Spec:
    """Qwen2's defaults: theta 1e6, eps 1e-6 (its q, k, v biases are part of the architecture)."""
    return Spec(name, arch="qwen2", **{"theta": 1e6, "eps": 1e-6, **options})


def qwen3(name: str, **options) -> Spec:
    return Spec(name, arch="qwen3", **{"theta": 1e6, "eps": 1e-6, **options})


def mixture(name: str, *experts: int, d_expert: int = 16, **options) -> Spec:
    """Of `experts[0]` experts a token meets `experts[1]`; `arch` is what the name begins with."""
    arch = name.split("-")[0]
    sizes = {"num_local_experts" if arch == "mixtral" else "num_experts": experts[0],
             "num_experts_per_tok": experts[1]}
    if arch == "qwen2moe":
        sizes |= {"moe_intermediate_size": d_expert, "shared_expert_intermediate_size": 24,
                  "norm_topk_prob": False}
    if arch == "qwen3moe":
        sizes |= {"moe_intermediate_size": d_expert, "norm_topk_prob": True}
    if arch == "mixtral":
        options["d_ff"] = d_expert
    own = options.pop("options", {})
    return Spec(name, arch=arch, options=sizes | own, **options)


def of(arch: str):
    """Makes specs of `arch`, named after it."""
    return lambda name, **options: Spec(f"{arch}-{name}", arch=arch, **options)


gemma2, gemma3, olmo2, smollm3, granite, phi3, gpt2 = (
    of(arch) for arch in ("gemma2", "gemma3", "olmo2", "smollm3", "granite", "phi3", "gpt2"))

LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 32}
MULTIPLIERS = {"attention_multiplier": 0.25, "embedding_multiplier": 3.0,
               "residual_multiplier": 0.4, "logits_scaling": 2.5}


QUANT = {"d_model": 64, "d_ff": 96, "tied": True}

SPECS = [
    Spec("llama-mha", n_kv_heads=4, chat=True),
    Spec("llama-gqa3-tied", d_model=36, n_heads=6, n_kv_heads=2, n_layers=3, tied=True, chat=True),
    Spec("llama-mqa", n_kv_heads=1, positions=40),
    Spec("llama-head-dim-24", head_dim=24, tied=True),
    Spec("llama-head-dim-40", n_heads=2, n_kv_heads=1, head_dim=40, tied=True),
    Spec("llama-odd-sizes", d_model=30, n_heads=3, n_kv_heads=1, d_ff=53, vocab=293, positions=13),
    Spec("llama-theta-1e5-eps-1e-2", theta=1e5, eps=1e-2),
    Spec("llama-theta-100", theta=100.0, tied=True, pre="gpt-2", positions=40),
    Spec("llama-long", n_heads=2, n_kv_heads=1, tied=True, positions=96),
    Spec("llama-one-token", tied=True, positions=1),
    Spec("llama-rope-linear", rope={"rope_type": "linear", "factor": 4.0}, positions=40),
    Spec("llama-rope-llama3", n_heads=2, n_kv_heads=1, rope=LLAMA3, theta=5e5, positions=40,
         pre="llama-bpe"),
    Spec("llama-rope-yarn", n_heads=2, n_kv_heads=1, rope=YARN, positions=40, tied=True),
    Spec("llama-rope-yarn-betas", n_heads=2, n_kv_heads=1, positions=40, tied=True,
         rope={**YARN, "beta_fast": 8.0, "beta_slow": 0.5}, peer_ignores="yarn_beta_fast/slow"),
    Spec("llama-rope-yarn-attn-factor", n_heads=2, n_kv_heads=1, positions=40, tied=True,
         rope={**YARN, "attention_factor": 1.5}, peer_ignores="yarn_attn_factor"),
    Spec("llama-attention-bias", attention_bias=True),
    Spec("llama-mlp-bias", mlp_bias=True),
    Spec("llama-all-biases-head-dim-12", attention_bias=True, mlp_bias=True, head_dim=12,
         n_kv_heads=1),
    Spec("llama-f16", dtype="F16", **QUANT),
    Spec("llama-bf16", dtype="BF16", **QUANT),
    Spec("llama-q8_0", dtype="Q8_0", **QUANT),
    Spec("llama-q4_0", dtype="Q4_0", **QUANT),
    Spec("llama-q4_1", dtype="Q4_1", **QUANT),
    Spec("llama-q5_0", dtype="Q5_0", **QUANT),
    Spec("llama-iq4_nl", dtype="IQ4_NL", embd_dtype="Q5_1", **QUANT),
    Spec("llama-q4_1-embd-q8_0", dtype="Q4_1", embd_dtype="Q8_0", n_layers=3, **QUANT),
    Spec("llama-q4_0-untied-biases", dtype="Q4_0", attention_bias=True, mlp_bias=True,
         **{**QUANT, "tied": False}),
    qwen2("qwen2-gqa", chat=True),
    qwen2("qwen2-tied", tied=True, n_layers=3, chat=True),
    qwen2("qwen2-gqa7-tied", d_model=56, n_heads=14, n_kv_heads=2, tied=True, positions=13),
    qwen2("qwen2-mqa-padded-vocab", n_kv_heads=1, vocab=304),
    qwen2("qwen2-mha", n_kv_heads=4, tied=True, positions=40),
    qwen2("qwen2-rope-linear", rope={"rope_type": "linear", "factor": 2.0}, theta=1e4,
          positions=40),
    qwen2("qwen2-rope-yarn", rope=YARN, n_heads=2, n_kv_heads=1, tied=True, theta=1e4,
          positions=40),
    qwen2("qwen2-f16", dtype="F16", **QUANT),
    qwen2("qwen2-q8_0", dtype="Q8_0", **QUANT),
    qwen2("qwen2-q4_0", dtype="Q4_0", **QUANT),
    qwen2("qwen2-q5_1", dtype="Q5_1", **QUANT),
    qwen2("qwen2-mxfp4", dtype="MXFP4", **QUANT),
    qwen3("qwen3-gqa-head-dim-16", head_dim=16),
    qwen3("qwen3-mqa-head-dim-40-tied", n_heads=3, n_kv_heads=1, head_dim=40, tied=True,
          positions=40),
    qwen3("qwen3-mha-odd-sizes", d_model=30, n_heads=5, n_kv_heads=5, d_ff=53, head_dim=6,
          tied=True, eps=1e-2),
    qwen3("qwen3-rope-yarn", rope=YARN, n_heads=2, n_kv_heads=1, tied=True, theta=1e4,
          positions=40),
    qwen3("qwen3-q8_0", dtype="Q8_0", head_dim=32, n_heads=2, n_kv_heads=1, **QUANT),
    mixture("qwen2moe-6-use-2", 6, 2),
    mixture("qwen2moe-all-used-tied", 4, 4, tied=True, n_kv_heads=4, n_layers=3,
            peer_ignores="tied heads"),
    mixture("qwen2moe-norm-odd-sizes", 7, 3, d_expert=13, d_model=30, n_heads=3, n_kv_heads=1,
            tied=True, options={"norm_topk_prob": True, "shared_expert_intermediate_size": 11},
            peer_ignores="expert_weights_norm"),
    mixture("qwen2moe-q8_0", 5, 2, d_expert=32, dtype="Q8_0", d_model=64,
            options={"shared_expert_intermediate_size": 64}),
    mixture("qwen3moe-16-use-8-tied", 16, 8, head_dim=16, tied=True, d_expert=12, theta=1e6),
    mixture("qwen3moe-one-expert", 1, 1, head_dim=40, n_heads=3, n_kv_heads=1, tied=True),
    mixture("qwen3moe-no-norm", 9, 4, head_dim=8, options={"norm_topk_prob": False},
            peer_ignores="expert_weights_norm"),
    mixture("qwen3moe-rope-yarn", 6, 2, head_dim=16, rope=YARN, n_heads=2, n_kv_heads=1, tied=True,
            positions=40),
    mixture("qwen3moe-q4_0", 6, 3, d_expert=64, head_dim=32, n_heads=2, n_kv_heads=1, dtype="Q4_0",
            d_model=64, tied=True),
    mixture("mixtral-8-use-2", 8, 2, theta=1e6),
    mixture("mixtral-one-used-tied", 5, 1, n_kv_heads=1, tied=True, positions=40),
    mixture("mixtral-q8_0", 4, 2, d_expert=32, dtype="Q8_0", d_model=64, tied=True),
    # Windows are shorter than the prompts, soft caps in the range of what they cap.
    gemma2("window", tied=True, n_layers=3, positions=40, options={
        "sliding_window": 8, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0}),
    gemma2("window-of-one-mqa-head-dim-40", tied=True, n_heads=3, n_kv_heads=1, d_model=36,
           head_dim=40, d_ff=53, positions=13, eps=1e-2, options={
               "sliding_window": 1, "attn_logit_softcapping": 50.0,
               "final_logit_softcapping": 30.0}),
    gemma2("window-of-a-tile", tied=True, n_heads=2, n_kv_heads=1, positions=96, options={
        "sliding_window": 64, "attn_logit_softcapping": 20.0, "final_logit_softcapping": 30.0}),
    gemma2("query-scale", tied=True, head_dim=12, options={
        "sliding_window": 8, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 3}, peer_ignores="attention.scale"),
    gemma2("46-layers", tied=True, n_layers=46, d_model=12, n_heads=2, n_kv_heads=1, head_dim=8,
           d_ff=10, positions=10, options={
               "sliding_window": 4, "attn_logit_softcapping": 50.0,
               "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 6}),
    gemma2("q8_0", dtype="Q8_0", options={
        "sliding_window": 8, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0},
           **QUANT),
    gemma3("window-two-bases", tied=True, n_layers=7, d_model=24, d_ff=30, head_dim=8,
           positions=20, theta=1e6, options={"sliding_window": 6}),
    gemma3("local-base-scaled", tied=True, n_layers=7, d_model=24, d_ff=30, n_heads=3,
           n_kv_heads=1, head_dim=16, positions=24, theta=1e5, local_theta=500.0,
           rope={"rope_type": "linear", "factor": 4.0}, options={
               "sliding_window": 5, "final_logit_softcapping": 4.0}),
    gemma3("query-scale-untied", n_heads=2, n_kv_heads=2, head_dim=20, d_model=30, eps=1e-2,
           options={"sliding_window": 8, "query_pre_attn_scalar": 5},
           peer_ignores="attention.scale"),
    olmo2("mha", theta=5e5, n_kv_heads=4),
    olmo2("gqa-head-dim-10-odd-sizes", d_model=30, n_heads=3, n_kv_heads=1, d_ff=53, positions=40,
          eps=1e-2),
    olmo2("rope-yarn", n_heads=2, n_kv_heads=1, rope=YARN, positions=40),
    olmo2("olmo3-window", n_layers=4, n_heads=2, n_kv_heads=1, rope=YARN, positions=40,
          options={"sliding_window": 8}),
    smollm3("five-layers", n_layers=5, d_model=24, d_ff=30, tied=True, theta=5e6),
    smollm3("mqa-untied-yarn", n_layers=4, d_model=24, n_heads=3, n_kv_heads=1, d_ff=37, rope=YARN,
            positions=40),
    granite("multipliers", options=MULTIPLIERS),
    granite("multipliers-tied-mqa", tied=True, d_model=36, n_heads=3, n_kv_heads=1, d_ff=53,
            theta=1e7, options={**MULTIPLIERS, "logits_scaling": 0.25}),
    granite("biases", tied=True, options={**MULTIPLIERS, "attention_bias": True,
                                          "mlp_bias": True}),
    phi3("mha", n_kv_heads=4),
    phi3("gqa-tied-odd-sizes", d_model=30, n_heads=3, n_kv_heads=1, d_ff=53, tied=True, positions=13),
    phi3("window", n_heads=2, n_kv_heads=1, positions=40, tied=True, options={"sliding_window": 8},
         peer_ignores="attention.sliding_window"),
    phi3("partial-rotary", d_model=40, n_heads=2, n_kv_heads=1, tied=True,
         rope={"rope_type": "default", "partial_rotary_factor": 0.6}),
    phi3("longrope-short", n_heads=2, n_kv_heads=1, rope=LONGROPE, tied=True, positions=32,
         peer_ignores="a context below 256, which it rounds up"),
    phi3("longrope-long", n_heads=2, n_kv_heads=1, rope=LONGROPE, tied=True, positions=40),
    phi3("longrope-partial", d_model=40, n_heads=2, n_kv_heads=1, tied=True, positions=40,
         rope={**LONGROPE, "partial_rotary_factor": 0.8}),
    phi3("q4_0", dtype="Q4_0", **QUANT),
    gpt2("small", n_kv_heads=4, tied=True),
    gpt2("odd-sizes", d_model=30, n_heads=3, n_kv_heads=3, d_ff=53, tied=True, positions=40, eps=1e-2),
    gpt2("one-head-untied", n_heads=1, n_kv_heads=1, positions=13),
    gpt2("q8_0", dtype="Q8_0", n_heads=2, n_kv_heads=2, **QUANT),
]
