#include "trace/probe.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "base/suggest.h"
#include "base/utf8.h"

namespace cutaway::trace {
namespace {

// "{l}" stands for the layer's number.
constexpr std::string_view kLayerMark = "{l}";

struct Name {
  std::string_view pattern;
  Site site;
};

// In the order of Site.
constexpr std::array<std::string_view, kSiteCount> kCanonical = {
    "hook_tokens",
    "hook_embed",
    "hook_pos_embed",
    "blocks.{l}.hook_resid_pre",
    "blocks.{l}.ln1.hook_scale",
    "blocks.{l}.ln1.hook_normalized",
    "blocks.{l}.attn.hook_q",
    "blocks.{l}.attn.hook_k",
    "blocks.{l}.attn.hook_v",
    "blocks.{l}.attn.hook_rot_q",
    "blocks.{l}.attn.hook_rot_k",
    "blocks.{l}.attn.hook_attn_scores",
    "blocks.{l}.attn.hook_pattern",
    "blocks.{l}.attn.hook_z",
    "blocks.{l}.attn.hook_result",
    "blocks.{l}.hook_attn_out",
    "blocks.{l}.hook_resid_mid",
    "blocks.{l}.ln2.hook_scale",
    "blocks.{l}.ln2.hook_normalized",
    "blocks.{l}.mlp.hook_router_logits",
    "blocks.{l}.mlp.hook_expert_indices",
    "blocks.{l}.mlp.hook_expert_weights",
    "blocks.{l}.mlp.hook_pre",
    "blocks.{l}.mlp.hook_pre_linear",
    "blocks.{l}.mlp.hook_post",
    "blocks.{l}.hook_mlp_out",
    "blocks.{l}.hook_resid_post",
    "ln_final.hook_scale",
    "ln_final.hook_normalized",
    "logits",
};

// Names of the same values elsewhere. Q, K and V are those of the projections with their biases:
// ggml gives the rotated ones the same name, which here is hook_rot_q and hook_rot_k.
constexpr Name kAliases[] = {
    // ggml
    {"inp_embd", Site::kEmbed},
    {"Qcur-{l}", Site::kQ},
    {"Kcur-{l}", Site::kK},
    {"Vcur-{l}", Site::kV},
    {"kq_soft_max-{l}", Site::kPattern},
    {"kqv_out-{l}", Site::kZ},
    {"attn_out-{l}", Site::kAttnOut},
    {"ffn_inp-{l}", Site::kResidMid},
    {"ffn_moe_logits-{l}", Site::kRouterLogits},
    {"ffn_moe_topk-{l}", Site::kExpertIndices},
    {"ffn_gate-{l}", Site::kMlpPre},
    {"ffn_up-{l}", Site::kMlpPreLinear},
    {"ffn_out-{l}", Site::kMlpOut},
    {"l_out-{l}", Site::kResidPost},
    {"result_output", Site::kLogits},
    // Hugging Face module paths: what the module returns
    {"model.embed_tokens", Site::kEmbed},
    {"model.layers.{l}", Site::kResidPost},
    {"model.layers.{l}.self_attn", Site::kAttnOut},
    {"model.layers.{l}.self_attn.q_proj", Site::kQ},
    {"model.layers.{l}.self_attn.k_proj", Site::kK},
    {"model.layers.{l}.self_attn.v_proj", Site::kV},
    {"model.layers.{l}.self_attn.o_proj", Site::kAttnOut},
    {"model.layers.{l}.mlp", Site::kMlpOut},
    {"model.layers.{l}.mlp.gate_proj", Site::kMlpPre},
    {"model.layers.{l}.mlp.up_proj", Site::kMlpPreLinear},
    {"model.layers.{l}.mlp.down_proj", Site::kMlpOut},
    {"lm_head", Site::kLogits},
};

// Names whose values no tap has: they are multiplied by the norm's weight.
constexpr Name kWeightedNorms[] = {
    {"attn_norm-{l}", Site::kLn1Normalized},
    {"ffn_norm-{l}", Site::kLn2Normalized},
    {"result_norm", Site::kLnFinalNormalized},
    {"model.layers.{l}.input_layernorm", Site::kLn1Normalized},
    {"model.layers.{l}.post_attention_layernorm", Site::kLn2Normalized},
    {"model.norm", Site::kLnFinalNormalized},
};

constexpr std::string_view pattern_of(Site site) { return kCanonical[static_cast<size_t>(site)]; }

std::string with_layer(std::string_view pattern, int64_t layer) {
  std::string name(pattern);
  const size_t at = name.find(kLayerMark);
  if (at != std::string::npos) name.replace(at, kLayerMark.size(), std::to_string(layer));
  return name;
}

// The layer that makes `text` an instance of `pattern` (−1 where the pattern has none), or nothing.
std::optional<int64_t> match(std::string_view pattern, std::string_view text) {
  const size_t at = pattern.find(kLayerMark);
  if (at == std::string_view::npos) {
    return pattern == text ? std::optional<int64_t>(-1) : std::nullopt;
  }
  const std::string_view before = pattern.substr(0, at);
  const std::string_view after = pattern.substr(at + kLayerMark.size());
  if (text.size() <= before.size() + after.size() || !text.starts_with(before) ||
      !text.ends_with(after)) {
    return std::nullopt;
  }
  const std::string_view digits =
      text.substr(before.size(), text.size() - before.size() - after.size());
  if (!std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return std::nullopt;
  }
  int64_t layer = 0;
  const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
  return end.ec == std::errc() ? layer : INT64_MAX;  // INT64_MAX: no model has so many
}

std::string layers_text(int n_layers) {
  if (n_layers <= 0) return "the model has no layers";
  if (n_layers == 1) return "the model has one layer, 0";
  return "layers are 0 to " + std::to_string(n_layers - 1);
}

// The known name that `text` was probably meant to be, with its layer where that exists; or "".
std::string nearest_name(std::string_view text, int n_layers) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  // The first number may be a layer: compare with the mark in its place.
  std::string form(text);
  int64_t layer = 0;
  const auto first = std::find_if(form.begin(), form.end(), is_digit);
  if (first != form.end()) {
    const auto last = std::find_if_not(first, form.end(), is_digit);
    const auto offset = static_cast<size_t>(first - form.begin());
    const auto length = static_cast<size_t>(last - first);
    if (std::from_chars(form.data() + offset, form.data() + offset + length, layer).ec !=
            std::errc() ||
        layer >= n_layers) {
      layer = 0;
    }
    form.replace(offset, length, kLayerMark);
  }
  std::vector<std::string> known(kCanonical.begin(), kCanonical.end());
  for (const Name& alias : kAliases) known.emplace_back(alias.pattern);
  const std::string nearest = nearest_word(form, known);
  return nearest.empty() ? "" : with_layer(nearest, layer);
}

}  // namespace

std::string tap_name(Site site, int layer) { return with_layer(pattern_of(site), layer); }

Result<TapName> parse_tap_name(std::string_view text, int n_layers) {
  constexpr size_t kLongest = 128;  // of what an error repeats
  const std::string shown = utf8_replace_invalid(text.substr(0, kLongest));
  const auto found = [&](Site site, int64_t layer) -> Result<TapName> {
    if (layer >= n_layers) {
      return Error{ErrorCode::kInvalidArgument,
                   "tap \"" + shown + "\": there is no such layer; " + layers_text(n_layers),
                   "taps"};
    }
    return TapName{site, static_cast<int>(layer)};
  };
  for (int i = 0; i < kSiteCount; ++i) {
    const auto site = static_cast<Site>(i);
    if (const auto layer = match(pattern_of(site), text)) return found(site, *layer);
  }
  for (const Name& alias : kAliases) {
    if (const auto layer = match(alias.pattern, text)) return found(alias.site, *layer);
  }
  for (const Name& norm : kWeightedNorms) {
    const auto layer = match(norm.pattern, text);
    if (!layer) continue;
    const auto tap = found(norm.site, *layer);
    if (!tap.ok()) return tap.error();
    return Error{ErrorCode::kInvalidArgument,
                 "tap \"" + shown + "\" is a norm's output times its weight, which has no tap; " +
                     tap_name(norm.site, tap->layer) + " is the value before the weight",
                 "taps"};
  }
  const std::string nearest = nearest_name(text.substr(0, kLongest), n_layers);
  return Error{ErrorCode::kInvalidArgument,
               "no tap is called \"" + shown + "\"; " +
                   (nearest.empty() ? "names look like \"" + tap_name(Site::kResidPost, 0) + '"'
                                    : "did you mean \"" + nearest + "\"?") +
                   " (" + layers_text(n_layers) + ")",
               "taps"};
}

}  // namespace cutaway::trace
