#include "inspect/attention.h"

#include <fmt/format.h>

#include "api/view_input.h"
#include "base/guard.h"

namespace cutaway::api {
namespace {

constexpr int64_t kMostTop = 100;

Json head_json(const inspect::HeadAttention& head, int64_t top, bool patterns) {
  Json entropy = Json::array(), keys = Json::array(), weights = Json::array();
  for (size_t q = 0; q < head.entropy.size(); ++q) {
    entropy.push_back(six_digits(static_cast<double>(head.entropy[q])));
    Json row_keys = Json::array(), row_weights = Json::array();
    for (size_t i = q * static_cast<size_t>(top); i < (q + 1) * static_cast<size_t>(top); ++i) {
      if (head.keys[i] < 0) break;
      row_keys.push_back(head.keys[i]);
      row_weights.push_back(shortest(head.weights[i]));
    }
    keys.push_back(std::move(row_keys));
    weights.push_back(std::move(row_weights));
  }
  Json out = {{"layer", head.layer},
              {"head", head.head},
              {"entropy", std::move(entropy)},
              {"keys", std::move(keys)},
              {"weights", std::move(weights)}};
  if (patterns) {
    // Little-endian in memory on every machine that this runs on.
    out["pattern"] = base64(head.pattern.data(), head.pattern.size() * sizeof(uint16_t));
  }
  return out;
}

std::string megabytes(int64_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

Status check_size(int64_t heads, int64_t n, int64_t most) {
  const int64_t each = (inspect::pattern_bytes(n) + 2) / 3 * 4;
  if (heads * each <= most) return {};
  return Error{ErrorCode::kTooLarge,
               fmt::format("the patterns of {} heads over {} tokens take {}, more than {}: choose "
                           "layers or heads ({} of them fit), a shorter text, or leave the "
                           "patterns out",
                           heads, n, megabytes(heads * each), megabytes(most), most / each),
               "text"};
}

}  // namespace

Result<Json> ModelImpl::attention(const AttentionRequest& request,
                                  const SessionOptions& options) const {
  return guarded("the attention", [&]() -> Result<Json> {
    const trace::Attach attach(engine_->tracer.get());
    CUTAWAY_ASSIGN(const ResolvedSession session, resolve_session(options, *model_, *engine_));
    const std::scoped_lock lock(engine_->working);
    CUTAWAY_PHASE(span, trace::Phase::kRequest, "api::Model::attention", "layers", request.layers,
                  "heads", request.heads);
    if (request.top < 0 || request.top > kMostTop) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("top is {}, must be 0 to {}", request.top, kMostTop), "top"};
    }
    const text::Tokenizer& tokenizer = *model_->tokenizer();
    const arch::ModelShape& shape = model_->shape();
    CUTAWAY_ASSIGN(
        const std::vector<int32_t> tokens,
        view_tokens({request.text, request.tokens, request.parse_special}, *model_, session));
    const auto n = static_cast<int64_t>(tokens.size());
    inspect::AttentionPlan plan;
    plan.tokens = tokens;
    CUTAWAY_ASSIGN(plan.layers, choose_indices("layers", request.layers, shape.n_layers));
    CUTAWAY_ASSIGN(plan.heads, choose_indices("heads", request.heads, shape.n_heads));
    plan.top = static_cast<int32_t>(request.top);
    plan.patterns = request.patterns;
    plan.chunk = session.prefill_chunk;
    plan.cancelled = request.cancelled;
    const auto heads = static_cast<int64_t>(plan.layers.size() * plan.heads.size());
    if (plan.patterns) CUTAWAY_TRY(check_size(heads, n, request.most_pattern_bytes));
    CUTAWAY_ASSIGN(const auto run, ViewRun::create(*model_, *engine_, session, n));
    CUTAWAY_TRY(run->intervene(request.interventions, n, *model_, *engine_));
    CUTAWAY_ASSIGN(const inspect::AttentionOutcome outcome,
                   inspect::attention(run->runner, run->pages, *engine_->pool, plan));
    Json all = Json::array(), list = Json::array();
    for (const int32_t id : tokens) all.push_back(token_json(tokenizer, id));
    for (const inspect::HeadAttention& head : outcome.heads) {
      list.push_back(head_json(head, request.top, plan.patterns));
    }
    CUTAWAY_OUT(span, "tokens", tokens, "heads", heads);
    Json out{{"view", "attention"},
             {"model", name_},
             {"n_layers", shape.n_layers},
             {"n_heads", shape.n_heads},
             {"tokens", std::move(all)},
             {"heads", std::move(list)},
             {"session", session_json(session, *engine_)},
             {"warnings", session.warnings},
             {"timings", {{"forward_ms", static_cast<double>(outcome.forward_ns) / 1e6}}}};
    run->report(tokenizer, out);
    return out;
  });
}

}  // namespace cutaway::api
