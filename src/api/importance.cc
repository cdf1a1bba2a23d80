#include "inspect/importance.h"

#include <fmt/format.h>

#include "api/impl.h"
#include "api/output_file.h"
#include "base/clock.h"
#include "base/guard.h"
#include "cutaway/quantization.h"

namespace cutaway {
namespace {

constexpr int64_t kDefaultWindow = 512;

Error wrong(const char* field, const std::string& message) {
  return {ErrorCode::kInvalidArgument, message, field};
}

Result<std::vector<int32_t>> tokens_of(const ImportanceRequest& request,
                                       const model::LoadedModel& model) {
  if (request.text.has_value() == request.tokens.has_value()) {
    return wrong("text", "exactly one of text and tokens must be given");
  }
  if (request.max_tokens < 0) {
    return wrong("tokens", fmt::format("tokens is {}, must be 1 or more, or 0 for the whole text",
                                       request.max_tokens));
  }
  std::vector<int32_t> tokens;
  if (request.tokens) {
    tokens = *request.tokens;
  } else {
    CUTAWAY_ASSIGN(tokens, model.tokenizer()->encode_ids(*request.text, false, true));
  }
  if (request.max_tokens > 0 && tokens.size() > static_cast<size_t>(request.max_tokens)) {
    tokens.resize(static_cast<size_t>(request.max_tokens));
  }
  if (tokens.empty()) return wrong("text", "the text is empty (0 tokens)");
  return tokens;
}

Result<Json> measure(const Model& model, const ImportanceRequest& request,
                     const SessionOptions& options) {
  const auto& impl = static_cast<const api::ModelImpl&>(model);
  Engine::Impl& engine = impl.engine();
  const trace::Attach attach(engine.tracer.get());
  CUTAWAY_PHASE(span, trace::Phase::kRequest, "api::measure_importance", "model", impl.name(),
                "output", request.output, "context", options.context);
  CUTAWAY_TRY(api::check_output(request.output, request.overwrite));
  SessionOptions precise = options;
  precise.precise = true;  // what the matrices read is seen as floats
  CUTAWAY_ASSIGN(const api::ResolvedSession resolved,
                 api::resolve_session(precise, impl.model(), engine));
  CUTAWAY_ASSIGN(const std::vector<int32_t> tokens, tokens_of(request, impl.model()));
  inspect::ImportancePlan plan;
  plan.tokens = tokens;
  plan.window = options.context > 0 ? options.context : std::min(kDefaultWindow, resolved.context);
  plan.window = std::min(plan.window, static_cast<int64_t>(tokens.size()));
  plan.chunk = resolved.prefill_chunk;
  const text::Tokenizer::SpecialIds& special = impl.model().tokenizer()->special_ids();
  if (special.add_bos && !request.tokens) plan.bos = special.bos;
  const kv::Geometry geometry = api::kv_geometry(impl.model(), resolved.cache_type);
  const int64_t pages = kv::Geometry::pages_for(plan.window);
  CUTAWAY_TRY(api::check_memory(geometry, pages, fmt::format("windows of {} tokens", plan.window),
                                "context"));
  const std::scoped_lock lock(engine.working);
  kv::PagePool pool(geometry, pages);
  inference::Runner runner(impl.model(), *engine.selection.table, *engine.pool, true);
  const auto progress = [&](int64_t done, int64_t total) {
    return !request.progress || request.progress({"measure", static_cast<uint64_t>(done),
                                                  static_cast<uint64_t>(total), "tokens"});
  };
  const int64_t start = now_ns();
  CUTAWAY_ASSIGN(formats::ImportanceMatrix measured,
                 inspect::measure_importance(runner, pool, plan, progress));
  const double seconds = static_cast<double>(now_ns() - start) / 1e9;
  if (!request.dataset.empty()) measured.datasets.push_back(request.dataset);
  CUTAWAY_TRY(formats::write_importance(measured, request.output, request.overwrite));
  const int64_t used = plan.windows() * plan.window;
  CUTAWAY_OUT(span, "tensors", measured.tensors.size());
  return Json{
      {"file", request.output},
      {"model", impl.name()},
      {"tensors", measured.tensors.size()},
      {"windows", plan.windows()},
      {"window", plan.window},
      {"tokens", tokens.size()},
      {"left_out", static_cast<int64_t>(tokens.size()) - used},
      {"timings",
       {{"total_ms", seconds * 1e3}, {"tokens_per_second", static_cast<double>(used) / seconds}}},
      {"warnings", engine.warnings}};
}

}  // namespace

Result<Json> measure_importance(const Model& model, const ImportanceRequest& request,
                                const SessionOptions& options) {
  return guarded("measuring importance", [&] { return measure(model, request, options); });
}

}  // namespace cutaway
