#include "inspect/tap_layout.h"

#include "trace/trace.h"

namespace cutaway::inspect {

using trace::Site;

std::optional<TapLayout> tap_layout(Site site, const arch::ModelShape& m) {
  CUTAWAY_SPAN(span, "inspect::tap_layout", "tap", trace::tap_name(site, 0));
  using Groups = TapLayout::Groups;
  const bool moe = m.n_experts > 0;
  switch (site) {
    case Site::kTokens:
    case Site::kLn1Scale:
    case Site::kLn2Scale:
    case Site::kLnFinalScale:
      return TapLayout{};
    case Site::kQ:
    case Site::kRotQ:
    case Site::kZ:
      return TapLayout{m.n_heads, m.d_head, Groups::kQueryHeads};
    case Site::kK:
    case Site::kV:
    case Site::kRotK:
      return TapLayout{m.n_kv_heads, m.d_head, Groups::kKvHeads};
    case Site::kResult:
      return TapLayout{m.n_heads, m.d_model, Groups::kQueryHeads};
    case Site::kAttnScores:
    case Site::kPattern:
      return TapLayout{m.n_heads, 0, Groups::kQueryHeads, true};
    case Site::kMlpPreLinear:
      if (!m.gated_mlp) return std::nullopt;
      [[fallthrough]];
    case Site::kMlpPre:
    case Site::kMlpPost:
      if (moe) return TapLayout{m.n_experts_used, m.d_mlp, Groups::kExperts};
      return TapLayout{1, m.d_mlp};
    case Site::kPosEmbed:
      if (!m.learned_positions) return std::nullopt;
      return TapLayout{1, m.d_model};
    case Site::kRouterLogits:
      if (!moe) return std::nullopt;
      return TapLayout{1, m.n_experts};
    case Site::kExpertIndices:
    case Site::kExpertWeights:
      if (!moe) return std::nullopt;
      return TapLayout{1, m.n_experts_used};
    case Site::kLogits:
      return TapLayout{1, m.vocab};
    default:
      return TapLayout{1, m.d_model};
  }
}

trace::TapDomain tap_domain(const arch::ModelShape& shape) {
  CUTAWAY_SPAN(span, "inspect::tap_domain", "layers", shape.n_layers);
  trace::TapDomain out;
  out.n_layers = static_cast<int>(shape.n_layers);
  out.n_heads = static_cast<int>(shape.n_heads);
  for (int i = 0; i < trace::kSiteCount; ++i) {
    out.sites[static_cast<size_t>(i)] = tap_layout(static_cast<Site>(i), shape).has_value();
  }
  CUTAWAY_OUT(span, "sites", out.sites.count());
  return out;
}

}  // namespace cutaway::inspect
