#include "api/impl.h"
#include "api/intervene.h"
#include "api/taps.h"
#include "base/guard.h"

namespace cutaway::api {

Result<std::unique_ptr<Session>> ModelImpl::start(const SessionOptions& options) const {
  return guarded("a session", [&]() -> Result<std::unique_ptr<Session>> {
    const trace::Attach attach(engine_->tracer.get());
    CUTAWAY_SPAN(span, "api::Model::start", "model", name_, "context", options.context, "precise",
                 options.precise);
    CUTAWAY_ASSIGN(ResolvedSession resolved, resolve_session(options, *model_, *engine_));
    return make_session(engine_, model_, name_, load_ms_, std::move(resolved));
  });
}

Result<Json> ModelImpl::tokenize(const std::string& text, bool parse_special, bool merges) const {
  return guarded("tokenising the text", [&]() -> Result<Json> {
    const std::scoped_lock lock(engine_->working);
    const trace::Attach attach(engine_->tracer.get());
    CUTAWAY_PHASE(span, trace::Phase::kPrompt, "api::Model::tokenize", "text", text);
    const text::Tokenizer& tokenizer = *model_->tokenizer();
    const text::Segment segment{text, parse_special};
    CUTAWAY_ASSIGN(const auto encoded, tokenizer.encode(std::span(&segment, 1), {}));
    Json tokens = Json::array();
    for (const text::EncodedToken& token : encoded) {
      const bool special = tokenizer.token_type(token.id) == text::TokenType::kControl;
      tokens.push_back({{"id", token.id},
                        {"piece", tokenizer.piece(token.id)},
                        {"bytes", byte_array(tokenizer.token_bytes(token.id, true))},
                        {"begin", token.begin},
                        {"end", token.end},
                        {"special", special}});
    }
    Json out = {{"model", name_}, {"tokens", std::move(tokens)}, {"n", encoded.size()}};
    if (merges) {
      CUTAWAY_ASSIGN(const auto words, tokenizer.trace_merges(std::span(&segment, 1)));
      Json list = Json::array();
      for (const text::TracedWord& word : words) {
        Json steps = Json::array();
        for (const text::MergeStep& step : word.merges) {
          steps.push_back({{"rank", step.rank},
                           {"left", step.left},
                           {"right", step.right},
                           {"begin", step.begin},
                           {"end", step.end}});
        }
        list.push_back({{"text", text.substr(word.begin, word.end - word.begin)},
                        {"begin", word.begin},
                        {"end", word.end},
                        {"merges", std::move(steps)},
                        {"ids", word.ids}});
      }
      out["words"] = std::move(list);
    }
    CUTAWAY_OUT(span, "n", encoded.size());
    return out;
  });
}

Result<Json> ModelImpl::capture(const CaptureRequest& request,
                                const SessionOptions& options) const {
  return guarded("the capture", [&]() -> Result<Json> {
    const trace::Attach attach(engine_->tracer.get());
    CUTAWAY_ASSIGN(const ResolvedSession resolved, resolve_session(options, *model_, *engine_));
    if (request.text.has_value() == request.tokens.has_value()) {
      return Error{ErrorCode::kInvalidArgument, "exactly one of text and tokens must be given",
                   "text"};
    }
    if (request.output.empty()) {
      return Error{ErrorCode::kInvalidArgument, "the output file's name is empty", "output"};
    }
    if (!request.window.steps.empty()) {
      return Error{ErrorCode::kInvalidArgument,
                   "steps: a text has none; they are those of an answer, in recordings", "steps"};
    }
    inspect::CaptureJob job;
    job.cancelled = request.cancelled;
    CUTAWAY_ASSIGN(job.selection, select_taps(request.taps, request.window, model_->shape()));
    CUTAWAY_ASSIGN(job.top, top_keys(request.attention_top));
    const std::scoped_lock lock(engine_->working);
    CUTAWAY_PHASE(span, trace::Phase::kRequest, "api::Model::capture", "output", request.output);
    std::vector<int32_t> tokens;
    if (request.tokens) {
      tokens = *request.tokens;
    } else {
      CUTAWAY_ASSIGN(tokens,
                     model_->tokenizer()->encode_ids(*request.text, request.parse_special, true));
    }
    if (static_cast<int64_t>(tokens.size()) > resolved.context) {
      return Error{ErrorCode::kTooLarge,
                   "the text has " + std::to_string(tokens.size()) + " tokens; the context holds " +
                       std::to_string(resolved.context),
                   "text"};
    }
    const kv::Geometry geometry = kv_geometry(*model_, resolved.cache_type);
    CUTAWAY_TRY(check_memory(geometry, kv::Geometry::pages_for(static_cast<int64_t>(tokens.size())),
                             "a text of " + std::to_string(tokens.size()) + " tokens", "text"));
    kv::PagePool pages(geometry, kv::Geometry::pages_for(resolved.context));
    inference::Runner runner(*model_, *engine_->selection.table, *engine_->pool, resolved.precise);
    runner.set_context(resolved.context);
    std::optional<Intervened> intervened;
    if (request.interventions) {
      CUTAWAY_ASSIGN(intervened, Intervened::prepare(*request.interventions, std::ssize(tokens),
                                                     *model_, *engine_));
      if (!intervened->rules().empty()) {
        return Error{ErrorCode::kInvalidArgument,
                     "tokens.force and tokens.ban have no effect: a capture chooses no token",
                     "tokens"};
      }
      runner.set_editors(intervened->editors());
    }
    job.chunk = resolved.prefill_chunk;
    CUTAWAY_ASSIGN(job.range, job.selection.range_of_text(static_cast<int64_t>(tokens.size())));
    CUTAWAY_ASSIGN(const inspect::CaptureOutcome outcome,
                   inspect::capture(runner, pages, tokens, job, request.output));
    Json taps = taps_json(outcome);
    CUTAWAY_OUT(span, "tokens", tokens, "taps", taps.size());
    Json out = {{"file", request.output},
                {"taps", std::move(taps)},
                {"tokens", tokens},
                {"session", session_json(resolved, *engine_)},
                {"warnings", resolved.warnings},
                {"timings",
                 {{"forward_ms", static_cast<double>(outcome.forward_ns) / 1e6},
                  {"write_ms", static_cast<double>(outcome.write_ns) / 1e6}}}};
    if (intervened) {
      out["interventions"] = intervened->report(0, *model_->tokenizer());
      for (const std::string& warning : intervened->warnings(0)) out["warnings"].push_back(warning);
    }
    return out;
  });
}

}  // namespace cutaway::api
