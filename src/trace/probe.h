// Taps: the places in the forward pass where a tensor can be had, the probes that take it, and the
// editors that change it.
// Placed in ops/ blocks, never in architecture files. Names and shapes are TransformerLens's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tensor/tensor.h"

namespace cutaway::trace {

enum class Site : uint8_t {
  kTokens,             // hook_tokens
  kEmbed,              // hook_embed
  kPosEmbed,           // hook_pos_embed
  kResidPre,           // blocks.{l}.hook_resid_pre
  kLn1Scale,           // blocks.{l}.ln1.hook_scale
  kLn1Normalized,      // blocks.{l}.ln1.hook_normalized
  kQ,                  // blocks.{l}.attn.hook_q
  kK,                  // blocks.{l}.attn.hook_k
  kV,                  // blocks.{l}.attn.hook_v
  kRotQ,               // blocks.{l}.attn.hook_rot_q
  kRotK,               // blocks.{l}.attn.hook_rot_k
  kAttnScores,         // blocks.{l}.attn.hook_attn_scores
  kPattern,            // blocks.{l}.attn.hook_pattern
  kZ,                  // blocks.{l}.attn.hook_z
  kResult,             // blocks.{l}.attn.hook_result
  kAttnOut,            // blocks.{l}.hook_attn_out
  kResidMid,           // blocks.{l}.hook_resid_mid
  kLn2Scale,           // blocks.{l}.ln2.hook_scale
  kLn2Normalized,      // blocks.{l}.ln2.hook_normalized
  kRouterLogits,       // blocks.{l}.mlp.hook_router_logits
  kExpertIndices,      // blocks.{l}.mlp.hook_expert_indices
  kExpertWeights,      // blocks.{l}.mlp.hook_expert_weights
  kMlpPre,             // blocks.{l}.mlp.hook_pre
  kMlpPreLinear,       // blocks.{l}.mlp.hook_pre_linear
  kMlpPost,            // blocks.{l}.mlp.hook_post
  kMlpOut,             // blocks.{l}.hook_mlp_out
  kResidPost,          // blocks.{l}.hook_resid_post
  kLnFinalScale,       // ln_final.hook_scale
  kLnFinalNormalized,  // ln_final.hook_normalized
  kLogits,             // logits
};
inline constexpr int kSiteCount = static_cast<int>(Site::kLogits) + 1;

// "blocks.3.attn.hook_pattern"; layer is ignored at sites outside the blocks.
std::string tap_name(Site site, int layer);

struct TapName {
  Site site;
  int layer;  // −1 at sites outside the blocks
};
// Error kInvalidArgument names the text, the nearest known name (where one is
// near), and the layers that exist. Names of ggml and Hugging Face modules are accepted where they
// stand for the same values; a norm's output does not (it has the weight in it).
Result<TapName> parse_tap_name(std::string_view text, int n_layers);

// What a probe sees: one sequence's rows of one forward pass.
struct TapEvent {
  int64_t run = -1;
  int32_t seq = 0;
  Site site = Site::kTokens;
  int layer = -1;
  int32_t first_position = 0;  // absolute index of row 0
  // f32, read-only, valid during the call only. Shapes are those of the table in API (without the
  // leading b): rows are positions, except kAttnScores and kPattern, which are {n_heads, q, k} with
  // k counted from position 0.
  TensorView values;
  // At kAttnScores, kPattern and kResult: which heads these are; empty: all of them.
  std::span<const int32_t> heads = {};
};

// What is wanted of a tap. An event may hold more than that, and comes in any number of parts.
struct TapPart {
  int64_t begin = 0, end = INT64_MAX;   // positions
  std::span<const int32_t> heads = {};  // query heads, ascending; empty: all
};

// Where the attention maps of one layer are to be computed: the row of heads[i] (of head i, when
// `heads` is empty) and of position p in [begin, end) at data + i·head_stride + (p − begin)·cols,
// `cols` keys from position 0 on, at least `end`. Every row is written whole; where `zeroed`, zeros
// that follow from what a query cannot see are taken to be there.
struct MapMemory {
  float* data = nullptr;  // null: none
  int64_t begin = 0, end = 0, cols = 0, head_stride = 0;
  std::span<const int32_t> heads = {};
  bool zeroed = false;
};

// The standing form of attention: of each row and head the `k` largest probabilities, falling, with
// their keys (−1 and 0 where fewer are above 0); what the others add up to; and the entropy of the
// whole row in nats. Rows are positions; each holds n_heads · k keys and probabilities, and n_heads
// numbers of the others.
struct AttentionTopEvent {
  int64_t run = -1;
  int32_t seq = 0;
  int layer = -1;
  int32_t first_position = 0;
  int64_t n = 0, n_heads = 0, k = 0;
  const int32_t* keys = nullptr;
  const float* probabilities = nullptr;
  const float* rest = nullptr;
  const float* entropy = nullptr;
};

// Called on the engine's thread, after the op's barrier. An observer: it may not change anything;
// an Editor does.
class Probe {
 public:
  virtual ~Probe() = default;
  // Asked before anything is computed for the tap; must be cheap and constant during a forward.
  virtual bool wants(Site site, int layer) const = 0;
  virtual void observe(const TapEvent& event) = 0;
  // Of what it wants: likewise cheap and constant. What nobody asked for is not computed where it
  // would be for the taps alone.
  virtual TapPart part(Site /*site*/, int /*layer*/) const { return {}; }
  // Memory for the maps of a pass over one sequence, at kAttnScores and kPattern: they are then
  // computed there, and not shown by observe(). Not asked when others want the same map.
  virtual MapMemory map_memory(Site /*site*/, int /*layer*/) { return {}; }
  // Memory for the `n` rows of `row_elements` values, from `first_position` on, of a pass over one
  // sequence, at taps whose values are computed for probes alone: they are then computed there, and
  // observe() shows them where they lie. What follows may be computed from them: until the pass is
  // over the memory stays, and nobody else writes there. Null: the pass has its own.
  virtual float* row_memory(Site /*site*/, int /*layer*/, int64_t /*first_position*/, int64_t /*n*/,
                            int64_t /*row_elements*/) {
    return nullptr;
  }
  // How many keys of each row the standing form should keep, at most kernels' kMaxTopKeys; 0: none.
  virtual int64_t top_keys(int /*layer*/) const { return 0; }
  virtual void observe_top(const AttentionTopEvent& /*event*/) {}
};

// False at the sites whose values nothing reads again: the token ids, and the experts' ids, which
// follow from hook_router_logits.
constexpr bool can_change(Site site) {
  return site != Site::kTokens && site != Site::kExpertIndices;
}

// Changes values in the middle of a forward pass: an intervention. Everything that is computed from
// them afterwards is computed from the changed ones, and probes at the same tap see those. Called
// on the engine's thread, in the order of the pass's editors. Where an editor leaves every value as
// it is, the answer keeps its bits; at kAttnScores, kPattern and kResult, which run a plain form
// beside the fused one, it stays within rounding. A key that a query may not see (a later one, one
// outside the window) stays unseen whatever an editor writes there.
class Editor {
 public:
  virtual ~Editor() = default;
  // Asked before anything is computed for the tap; cheap, and constant during a forward. Not asked
  // where can_change() is false.
  virtual bool changes(Site site, int layer) const = 0;
  // `values` is the memory of event.values, in its shape. A pass may come in several events at one
  // tap, each of some positions: what is done to a position must not depend on the others.
  virtual void edit(const TapEvent& event, float* values) = 0;
};

}  // namespace cutaway::trace
