#include "inspect/lens.h"

#include <fmt/format.h>

#include "api/view_input.h"
#include "base/clock.h"
#include "base/guard.h"
#include "base/utf8.h"

namespace cutaway::api {
namespace {

constexpr int64_t kMostTop = 100, kMostEntries = 400'000;

// Bytes only where the piece does not say them all: inside a character.
Json name_json(const text::Tokenizer& tokenizer, int32_t id) {
  const std::string_view bytes = tokenizer.token_bytes(id, true);
  Json out = {{"id", id}, {"piece", tokenizer.piece(id)}};
  if (!utf8_valid(bytes)) out["bytes"] = byte_array(bytes);
  return out;
}

Json candidate_json(const text::Tokenizer& tokenizer, const inspect::LensToken& token) {
  Json out = name_json(tokenizer, token.id);
  out["logit"] = shortest(token.logit);
  out["prob"] = shortest(token.probability);
  return out;
}

Json standing_json(const inspect::LensStanding& standing) {
  if (standing.rank < 0) return nullptr;
  return {{"rank", standing.rank}, {"prob", shortest(standing.probability)}};
}

Json layer_json(const text::Tokenizer& tokenizer, const inspect::LensOutcome& outcome,
                int64_t index, int layer) {
  Json cells = Json::array();
  for (int64_t position = 0; position < outcome.positions; ++position) {
    const inspect::LensCell& cell = outcome.at(index, position);
    Json top = Json::array();
    for (const inspect::LensToken& token : cell.top)
      top.push_back(candidate_json(tokenizer, token));
    cells.push_back({{"top", std::move(top)},
                     {"entropy", six_digits(static_cast<double>(cell.entropy))},
                     {"kl", six_digits(static_cast<double>(cell.kl))},
                     {"next", standing_json(cell.next)},
                     {"last", standing_json(cell.last)}});
  }
  return {{"layer", layer}, {"cells", std::move(cells)}};
}

Json positions_json(const text::Tokenizer& tokenizer, const inspect::LensPlan& plan,
                    const inspect::LensOutcome& outcome) {
  Json out = Json::array();
  for (int64_t i = 0; i < outcome.positions; ++i) {
    const auto next = static_cast<size_t>(plan.first + i + 1);
    const int32_t choice = outcome.choices[static_cast<size_t>(i)];
    out.push_back({{"position", plan.first + i},
                   {"next", next < plan.tokens.size() ? Json(plan.tokens[next]) : Json(nullptr)},
                   {"choice", name_json(tokenizer, choice)}});
  }
  return out;
}

constexpr const char* kEmbedding = "embedding";

// A part that is −1, as results number the embedding, by its name: the grammar has no index below 0
// here.
std::string with_embedding_named(std::string layers) {
  for (size_t at = 0; at < layers.size();) {
    const size_t end = std::min(layers.find(',', at), layers.size());
    if (layers.compare(at, end - at, "-1") != 0) {
      at = end + 1;
      continue;
    }
    layers.replace(at, end - at, kEmbedding);
    at += std::string_view(kEmbedding).size() + 1;
  }
  return layers;
}

Status check_size(int64_t layers, int64_t positions, int64_t top) {
  const int64_t entries = layers * positions * std::max<int64_t>(top, 1);
  if (entries <= kMostEntries) return {};
  return Error{
      ErrorCode::kTooLarge,
      fmt::format("{} layers × {} positions × {} tokens are {} entries, more than {}: choose "
                  "layers, the last positions, or fewer tokens (at this choice, {} positions fit)",
                  layers, positions, top, entries, kMostEntries,
                  kMostEntries / (layers * std::max<int64_t>(top, 1))),
      "text"};
}

}  // namespace

Result<Json> ModelImpl::lens(const LensRequest& request, const SessionOptions& options) const {
  return guarded("the lens", [&]() -> Result<Json> {
    const trace::Attach attach(engine_->tracer.get());
    CUTAWAY_ASSIGN(const ResolvedSession session, resolve_session(options, *model_, *engine_));
    const std::scoped_lock lock(engine_->working);
    CUTAWAY_PHASE(span, trace::Phase::kRequest, "api::Model::lens", "top", request.top);
    const auto wrong = [](const char* field, const std::string& message) {
      return Error{ErrorCode::kInvalidArgument, message, field};
    };
    if (request.top < 0 || request.top > kMostTop) {
      return wrong("top", fmt::format("top is {}, must be 0 to {}", request.top, kMostTop));
    }
    if (request.last && *request.last < 1) {
      return wrong("last", fmt::format("last is {}, must be 1 or more", *request.last));
    }
    const text::Tokenizer& tokenizer = *model_->tokenizer();
    CUTAWAY_ASSIGN(
        const std::vector<int32_t> tokens,
        view_tokens({request.text, request.tokens, request.parse_special}, *model_, session));
    const auto n = static_cast<int64_t>(tokens.size());
    inspect::LensPlan plan;
    plan.tokens = tokens;
    CUTAWAY_ASSIGN(plan.layers, choose_indices("layers", with_embedding_named(request.layers),
                                               model_->shape().n_layers, kEmbedding));
    plan.first = n - std::min(n, request.last.value_or(n));
    plan.top = static_cast<int32_t>(request.top);
    plan.vocab =
        static_cast<int32_t>(std::min<int64_t>(tokenizer.vocab_size(), model_->shape().vocab));
    plan.chunk = session.prefill_chunk;
    plan.cancelled = request.cancelled;
    CUTAWAY_TRY(check_size(static_cast<int64_t>(plan.layers.size()), n - plan.first, request.top));
    CUTAWAY_ASSIGN(const auto run, ViewRun::create(*model_, *engine_, session, n));
    CUTAWAY_TRY(run->intervene(request.interventions, n, *model_, *engine_));
    std::optional<Intervened> earlier;  // for what the layers before the last would have said
    if (run->intervened) {
      CUTAWAY_ASSIGN(earlier, run->intervened->again());
      plan.editors = earlier->editors();
    }
    CUTAWAY_ASSIGN(const inspect::LensOutcome outcome,
                   inspect::lens(run->runner, run->pages, *engine_->pool, plan));
    Json all = Json::array(), layers = Json::array();
    for (const int32_t id : tokens) all.push_back(token_json(tokenizer, id));
    for (size_t i = 0; i < plan.layers.size(); ++i) {
      layers.push_back(layer_json(tokenizer, outcome, static_cast<int64_t>(i), plan.layers[i]));
    }
    CUTAWAY_OUT(span, "tokens", tokens, "layers", layers.size());
    const auto ms = [](int64_t ns) { return static_cast<double>(ns) / 1e6; };
    Json out{{"view", "lens"},
             {"model", name_},
             {"n_layers", model_->shape().n_layers},
             {"tokens", std::move(all)},
             {"positions", positions_json(tokenizer, plan, outcome)},
             {"layers", std::move(layers)},
             {"session", session_json(session, *engine_)},
             {"warnings", session.warnings},
             {"timings",
              {{"forward_ms", ms(outcome.forward_ns)},
               {"unembed_ms", ms(outcome.unembed_ns)},
               {"score_ms", ms(outcome.score_ns)}}}};
    run->report(tokenizer, out);
    return out;
  });
}

Result<Json> ModelImpl::describe(const std::vector<int32_t>& ids) const {
  const trace::Attach attach(engine_->tracer.get());
  CUTAWAY_SPAN(span, "api::Model::describe", "ids", ids);
  const text::Tokenizer& tokenizer = *model_->tokenizer();
  Json out = Json::array();
  for (const int32_t id : ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("token id {} is outside the vocabulary (0 to {})", id,
                               tokenizer.vocab_size() - 1),
                   "ids"};
    }
    out.push_back(token_json(tokenizer, id));
  }
  CUTAWAY_OUT(span, "n", out.size());
  return out;
}

}  // namespace cutaway::api
