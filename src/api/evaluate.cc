#include "cutaway/evaluation.h"

#include <fmt/format.h>

#include <cmath>

#include "api/impl.h"
#include "base/clock.h"
#include "base/guard.h"
#include "inspect/evaluation.h"

namespace cutaway {
namespace {

using api::ModelImpl;
using inspect::EvaluationOutcome;
using inspect::EvaluationPlan;

constexpr int64_t kDefaultWindow = 512;

Error wrong(const char* field, const std::string& message) {
  return {ErrorCode::kInvalidArgument, message, field};
}

// Both predict the same ids, which stand for the same bytes.
Status check_vocabularies(const ModelImpl& model, const ModelImpl& baseline) {
  const text::Tokenizer& ours = *model.model().tokenizer();
  const text::Tokenizer& theirs = *baseline.model().tokenizer();
  const int64_t rows = model.model().shape().vocab, base_rows = baseline.model().shape().vocab;
  if (ours.vocab_size() != theirs.vocab_size() || rows != base_rows) {
    return wrong("baseline",
                 fmt::format("{} has another vocabulary than {}: {} tokens and {} logits, against "
                             "{} and {}",
                             baseline.name(), model.name(), theirs.vocab_size(), base_rows,
                             ours.vocab_size(), rows));
  }
  for (int32_t id = 0; id < ours.vocab_size(); ++id) {
    if (ours.token_bytes(id, true) == theirs.token_bytes(id, true)) continue;
    return wrong("baseline",
                 fmt::format("{} has another vocabulary than {}: token {} is '{}' there and '{}' "
                             "here",
                             baseline.name(), model.name(), id, theirs.piece(id), ours.piece(id)));
  }
  return {};
}

// Whether the residual streams of the two can be set side by side; if not, why.
std::string why_not_layers(const ModelImpl& model, const ModelImpl& baseline) {
  const arch::ModelShape& a = model.model().shape();
  const arch::ModelShape& b = baseline.model().shape();
  const std::string& ours = model.model().architecture();
  const std::string& theirs = baseline.model().architecture();
  if (a.n_layers == b.n_layers && a.d_model == b.d_model && ours == theirs) return {};
  return fmt::format("layers are not compared: {} is {} with {} of {}, {} is {} with {} of {}",
                     model.name(), ours, a.n_layers, a.d_model, baseline.name(), theirs, b.n_layers,
                     b.d_model);
}

Result<std::vector<int32_t>> tokens_of(const EvaluationRequest& request, const ModelImpl& model) {
  if (request.text.has_value() == request.tokens.has_value()) {
    return wrong("text", "exactly one of text and tokens must be given");
  }
  if (request.max_tokens < 0) {
    return wrong("tokens", fmt::format("tokens is {}, must be 2 or more, or 0 for the whole text",
                                       request.max_tokens));
  }
  std::vector<int32_t> tokens;
  if (request.tokens) {
    tokens = *request.tokens;
  } else {
    CUTAWAY_ASSIGN(tokens, model.model().tokenizer()->encode_ids(*request.text, false, true));
  }
  if (request.max_tokens > 0 && tokens.size() > static_cast<size_t>(request.max_tokens)) {
    tokens.resize(static_cast<size_t>(request.max_tokens));
  }
  if (tokens.size() < 2) {
    return wrong("text", fmt::format("the text has {} token{}; 2 are needed to predict one",
                                     tokens.size(), tokens.size() == 1 ? "" : "s"));
  }
  return tokens;
}

Result<EvaluationPlan> plan_of(const EvaluationRequest& request, const SessionOptions& options,
                               const std::vector<int32_t>& tokens, const ModelImpl& model,
                               int64_t chunk) {
  const int64_t trained = model.model().shape().context_length;
  EvaluationPlan plan;
  plan.tokens = tokens;
  plan.window = options.context > 0 ? options.context : std::min(kDefaultWindow, trained);
  plan.window = std::min(plan.window, static_cast<int64_t>(tokens.size()));
  if (plan.window < 2) return wrong("context", "a window of 1 token predicts nothing; 2 or more");
  plan.warmup = request.warmup.value_or(std::min(plan.window / 2, plan.window - 2));
  if (plan.warmup < 0 || plan.warmup > plan.window - 2) {
    return wrong("warmup", fmt::format("warmup is {}, must be 0 to {} for windows of {} tokens",
                                       plan.warmup, plan.window - 2, plan.window));
  }
  const text::Tokenizer::SpecialIds& special = model.model().tokenizer()->special_ids();
  if (special.add_bos && !request.tokens) plan.bos = special.bos;
  // Rows of logits are wide: with few at a time, those of two models are no gigabytes.
  plan.chunk = std::min<int64_t>(chunk, 128);
  return plan;
}

// null when there is nothing to take a mean of.
Json mean_json(const char* name, const std::vector<double>& values, bool exponential) {
  if (values.empty()) return {{name, nullptr}, {"standard_error", nullptr}};
  const inspect::Mean mean = inspect::mean_of(values);
  if (!exponential) return {{name, mean.value}, {"standard_error", mean.standard_error}};
  const double value = std::exp(mean.value);
  return {{name, value}, {"standard_error", value * mean.standard_error}};
}

std::vector<double> as_doubles(const std::vector<uint8_t>& flags) {
  return {flags.begin(), flags.end()};
}

Json share(const std::vector<uint8_t>& flags) {
  return flags.empty() ? Json(nullptr) : Json(inspect::mean_of(as_doubles(flags)).value);
}

void add_scores(const std::vector<double>& nll, const std::vector<uint8_t>& hit, Json& out) {
  out["perplexity"] = mean_json("value", nll, true);
  out["nll"] = mean_json("mean", nll, false);
  out["top1_accuracy"] = share(hit);
}

Json baseline_json(const ModelImpl& baseline, const EvaluationOutcome& outcome) {
  Json out = {{"model", baseline.name()}};
  add_scores(outcome.baseline_nll, outcome.baseline_hit, out);
  // Of the differences, token by token: what both find hard is not counted as uncertain.
  std::vector<double> more(outcome.nll.size());
  for (size_t i = 0; i < more.size(); ++i) more[i] = outcome.nll[i] - outcome.baseline_nll[i];
  out["perplexity_ratio"] = mean_json("value", more, true);
  out["top1_agreement"] = mean_json("value", as_doubles(outcome.agrees), false);
  Json kl = mean_json("mean", outcome.kl, false);
  std::vector<double> sorted = outcome.kl;
  const auto at = [&](double fraction) {
    return sorted.empty() ? Json(nullptr) : Json(inspect::quantile(sorted, fraction));
  };
  kl["median"] = at(0.5);
  kl["p90"] = at(0.9);
  kl["p99"] = at(0.99);
  kl["max"] = at(1);
  out["kl"] = std::move(kl);
  if (!outcome.layers.empty()) {
    Json layers = Json::array();
    for (size_t i = 0; i < outcome.layers.size(); ++i) {
      layers.push_back({{"layer", static_cast<int64_t>(i) - 1},
                        {"relative_error", outcome.layers[i].relative_error},
                        {"cosine", outcome.layers[i].cosine}});
    }
    out["layers"] = std::move(layers);
  }
  return out;
}

}  // namespace

Result<Json> evaluate(const Model& model, const Model* baseline, const EvaluationRequest& request,
                      const SessionOptions& options) {
  return guarded("the evaluation", [&]() -> Result<Json> {
    const auto& ours = static_cast<const ModelImpl&>(model);
    const auto* theirs = static_cast<const ModelImpl*>(baseline);
    Engine::Impl& engine = ours.engine();
    const trace::Attach attach(engine.tracer.get());
    CUTAWAY_PHASE(span, trace::Phase::kRequest, "api::evaluate", "model", ours.name(), "baseline",
                  theirs == nullptr ? std::string() : theirs->name(), "context", options.context);
    CUTAWAY_ASSIGN(const api::ResolvedSession resolved,
                   api::resolve_session(options, ours.model(), engine));
    CUTAWAY_ASSIGN(const std::vector<int32_t> tokens, tokens_of(request, ours));
    CUTAWAY_ASSIGN(EvaluationPlan plan,
                   plan_of(request, options, tokens, ours, resolved.prefill_chunk));
    std::vector<std::string> warnings = engine.warnings;
    plan.layers = request.layers && theirs != nullptr;
    if (theirs != nullptr) {
      if (&theirs->engine() != &engine) {
        return wrong("baseline", "the two models belong to different engines; load both into one");
      }
      SessionOptions window = options;
      window.context = plan.window;
      CUTAWAY_TRY(api::resolve_session(window, theirs->model(), engine));
      CUTAWAY_TRY(check_vocabularies(ours, *theirs));
      std::string reason = why_not_layers(ours, *theirs);
      if (plan.layers && !reason.empty()) {
        plan.layers = false;
        warnings.push_back(std::move(reason));
      }
    }
    const int64_t pages = kv::Geometry::pages_for(plan.window);
    const auto fits = [&](const ModelImpl& m) -> Result<kv::Geometry> {
      const kv::Geometry geometry = api::kv_geometry(m.model(), resolved.cache_type);
      CUTAWAY_TRY(api::check_memory(geometry, pages,
                                    fmt::format("windows of {} tokens", plan.window), "context"));
      return geometry;
    };
    const std::scoped_lock lock(engine.working);
    CUTAWAY_ASSIGN(const kv::Geometry geometry, fits(ours));
    kv::PagePool pool(geometry, pages);
    inference::Runner runner(ours.model(), *engine.selection.table, *engine.pool, resolved.precise);
    runner.set_context(plan.window);
    const inspect::Evaluated evaluated{runner, pool};
    const auto progress = [&](int64_t done, int64_t total) {
      return !request.progress || request.progress({"eval", static_cast<uint64_t>(done),
                                                    static_cast<uint64_t>(total), "tokens"});
    };
    const int64_t start = now_ns();
    std::optional<Result<EvaluationOutcome>> outcome;
    if (theirs == nullptr) {
      outcome = inspect::evaluate(evaluated, nullptr, *engine.pool, plan, progress);
    } else {
      CUTAWAY_ASSIGN(const kv::Geometry base_geometry, fits(*theirs));
      kv::PagePool base_pool(base_geometry, pages);
      inference::Runner base_runner(theirs->model(), *engine.selection.table, *engine.pool,
                                    resolved.precise);
      base_runner.set_context(plan.window);
      const inspect::Evaluated base{base_runner, base_pool};
      outcome = inspect::evaluate(evaluated, &base, *engine.pool, plan, progress);
    }
    if (!outcome->ok()) return outcome->error();
    const EvaluationOutcome& measured = **outcome;
    const double seconds = static_cast<double>(now_ns() - start) / 1e9;
    const auto done = static_cast<double>(measured.windows * plan.window);
    Json out = {{"model", ours.name()},
                {"tokens", tokens.size()},
                {"windows", measured.windows},
                {"window", plan.window},
                {"warmup", plan.warmup},
                {"scored", measured.nll.size()},
                {"left_out", static_cast<int64_t>(tokens.size()) - measured.windows * plan.window}};
    add_scores(measured.nll, measured.hit, out);
    if (theirs != nullptr) out["baseline"] = baseline_json(*theirs, measured);
    out["timings"] = {{"total_ms", seconds * 1e3}, {"tokens_per_second", done / seconds}};
    out["warnings"] = warnings;
    out["cancelled"] = measured.cancelled;
    CUTAWAY_OUT(span, "windows", measured.windows, "scored", measured.nll.size());
    return out;
  });
}

}  // namespace cutaway
