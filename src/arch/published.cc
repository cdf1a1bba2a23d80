#include "arch/published.h"

#include "ops/rope.h"
#include "trace/trace.h"

namespace cutaway::arch {

PublishedShape published_decoder(const std::string& architecture, const DecoderFacts& facts) {
  CUTAWAY_SPAN(span, "arch::published_decoder", "name", facts.name);
  PublishedShape out;
  out.name = facts.name;
  out.vocab = facts.vocab;
  const auto set = [&](const char* key, MetaValue value) {
    out.metadata.insert(architecture + "." + key, std::move(value));
  };
  // Other readers expect these as u32, which a writer makes of unsigned values.
  const auto set_size = [&](const char* key, int64_t value) {
    set(key, static_cast<uint64_t>(value));
  };
  out.metadata.insert("general.architecture", architecture);
  set_size("block_count", facts.n_layers);
  set_size("context_length", facts.context);
  set_size("embedding_length", facts.d_model);
  set_size("feed_forward_length", facts.d_mlp);
  set_size("attention.head_count", facts.n_heads);
  set_size("attention.head_count_kv", facts.n_kv_heads);
  set_size("attention.key_length", facts.d_head);
  set_size("attention.value_length", facts.d_head);
  set_size("rope.dimension_count", facts.d_head);
  set_size("vocab_size", facts.vocab);
  set("attention.layer_norm_rms_epsilon", static_cast<double>(facts.eps));
  set("rope.freq_base", facts.rope_theta);
  if (const MixtureFacts& m = facts.mixture; m.n_experts > 0) {
    set_size("expert_count", m.n_experts);
    set_size("expert_used_count", m.n_used);
    if (m.d_expert > 0) set_size("expert_feed_forward_length", m.d_expert);
    if (m.d_shared > 0) set_size("expert_shared_feed_forward_length", m.d_shared);
  }
  if (!facts.tied) out.optional.emplace_back("output.weight");
  if (const Llama3Scaling& s = facts.scaling; s.factor > 0) {
    out.constants["rope_freqs.weight"] =
        ops::llama3_divisors(facts.d_head, facts.rope_theta, s.factor, s.low_frequency_factor,
                             s.high_frequency_factor, s.original_context);
  }
  CUTAWAY_OUT(span, "layers", facts.n_layers, "d_model", facts.d_model, "vocab", facts.vocab);
  return out;
}

}  // namespace cutaway::arch
