#include <algorithm>
#include <utility>

#include "api/impl.h"
#include "api/intervene.h"
#include "api/record.h"
#include "base/clock.h"
#include "base/guard.h"
#include "base/utf8.h"

namespace cutaway::api {
namespace {

double ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }
double per_second(int64_t n, int64_t ns) {
  return ns > 0 ? static_cast<double>(n) * 1e9 / static_cast<double>(ns) : 0;
}

class SessionImpl final : public Session {
 public:
  SessionImpl(std::shared_ptr<Engine::Impl> engine, std::shared_ptr<const model::LoadedModel> model,
              std::string name, double load_ms, ResolvedSession options)
      : engine_(std::move(engine)),
        model_(std::move(model)),
        name_(std::move(name)),
        load_ms_(load_ms),
        options_(std::move(options)),
        pages_(kv_geometry(*model_, options_.cache_type),
               kv::Geometry::pages_for(options_.context)),
        sequence_(pages_),
        runner_(*model_, *engine_->selection.table, *engine_->pool, options_.precise) {
    runner_.set_context(options_.context);
  }

  // The pages go back while someone still watches.
  ~SessionImpl() override {
    const trace::Attach attach(engine_->tracer.get());
    const trace::At at({sequence_.run, sequence_.seq, -1, -1, -1});
    trace::t_context.phase = trace::Phase::kRequest;
    CUTAWAY_SPAN(span, "api::Session::close", "tokens", sequence_.length());
    sequence_.truncate(0);
  }

  Result<Generation> generate(const GenerateRequest& request, const StreamFn& on_token) override {
    const std::scoped_lock lock(engine_->working);
    bool done = false;
    auto generation = guarded("the answer", [&]() -> Result<Generation> {
      auto out = generate_observed(request, on_token);
      done = true;
      return out;
    });
    // What an exception left half done is not built upon.
    if (!done) {
      sequence_.truncate(0);
      runner_.set_probes({});
      runner_.set_editors({});
    }
    return generation;
  }

 private:
  Result<Generation> generate_observed(const GenerateRequest& request, const StreamFn& on_token) {
    const trace::Attach attach(engine_->tracer.get());
    const std::string run = new_ulid();
    sequence_.run = trace::t_context.tracer->name_run(run);
    const trace::At at({sequence_.run, sequence_.seq, -1, -1, -1});
    CUTAWAY_PHASE(span, trace::Phase::kRequest, "api::Session::generate", "run", run, "model",
                  name_, "operation", request.messages.is_null() ? "text_completion" : "chat",
                  "max_tokens", request.max_tokens, "threads", engine_->pool->size());
    auto generation = generate_traced(request, on_token, run);
    if (!generation.ok()) {
      CUTAWAY_OUT(span, "error", generation.error());
      return generation;
    }
    if (trace::enabled()) {
      trace::event("weights.hash", "when", "answered", "file_xxh3", model_->file_hash(),
                   "packed_xxh3", model_->packed_hash().hex());
    }
    CUTAWAY_OUT(span, "finish", generation->finish_reason, "tokens", generation->tokens.size(),
                "input_tokens", generation->usage.input_tokens, "temperature",
                generation->sampling.value("temperature", 0.0), "top_p",
                generation->sampling.value("top_p", 1.0), "seed", generation->seed, "logits_hash",
                generation->logits_hash);
    return generation;
  }

  Result<Generation> generate_traced(const GenerateRequest& request, const StreamFn& on_token,
                                     const std::string& run) {
    const int64_t start = now_ns();
    Generation out;
    out.run = run;
    out.model = name_;
    inference::DecodeOptions decode;
    CUTAWAY_TRY(check(request));
    std::optional<RunRecorder> recorder;
    if (request.record) {
      CUTAWAY_ASSIGN(RunRecorder made,
                     RunRecorder::create(*request.record, *model_, run, *engine_));
      recorder.emplace(std::move(made));
    }
    CUTAWAY_ASSIGN(decode.sampling, resolve_sampling(request.sampling, *model_));
    CUTAWAY_ASSIGN(out.prompt_tokens, prompt_tokens(request));
    decode.context = options_.context;
    decode.max_tokens = request.max_tokens < 0 ? options_.context : request.max_tokens;
    decode.prefill_chunk = options_.prefill_chunk;
    decode.stop = request.stop;
    decode.logprobs = request.logprobs;
    decode.top_logprobs = request.top_logprobs;
    decode.ledger = request.ledger;
    decode.cancelled = request.cancelled;
    CUTAWAY_TRY(check_memory_of(request, static_cast<int64_t>(out.prompt_tokens.size())));
    std::optional<Intervened> intervened;
    if (request.interventions) {
      CUTAWAY_ASSIGN(intervened,
                     Intervened::prepare(*request.interventions, std::ssize(out.prompt_tokens),
                                         *model_, *engine_));
      decode.rules = intervened->rules();
    }
    if (recorder) decode.ledger = decode.logits_hashes = true;
    // Said once: they hold for the session.
    out.warnings = std::exchange(options_.warnings, {});
    for (const std::string& name : decode.sampling.without_effect()) {
      out.warnings.push_back(name + " has no effect at temperature 0");
    }
    const auto on_choice = [&](const inference::Choice& choice) {
      out.text += choice.text;
      out.tokens.push_back(describe(choice, request.ledger));
      if (recorder) recorder->add(choice, *model_->tokenizer());
      return !on_token || on_token({choice.text, &out.tokens.back()});
    };
    inference::Decoder decoder(runner_, model_->tokenizer());
    if (recorder) runner_.set_probes(recorder->probes());
    if (intervened) runner_.set_editors(intervened->editors());
    auto generated = decoder.generate(sequence_, out.prompt_tokens, decode, on_choice);
    runner_.set_probes({});
    runner_.set_editors({});
    if (!generated.ok() && intervened && generated.error().field == "logits") {
      return Error{ErrorCode::kInvalidArgument,
                   generated.error().message + " under these interventions", "intervene"};
    }
    CUTAWAY_ASSIGN(const inference::Outcome outcome, std::move(generated));
    CUTAWAY_PHASE(span, trace::Phase::kRespond, "api::Session::respond", "tokens",
                  outcome.ids.size());
    out.text += outcome.tail;
    if (on_token && !outcome.tail.empty()) on_token({outcome.tail, nullptr});
    fill(out, decode, outcome, start);
    if (intervened) {
      const auto steps = std::ssize(outcome.ids);
      out.interventions = intervened->report(steps, *model_->tokenizer());
      for (std::string& warning : intervened->warnings(steps)) {
        out.warnings.push_back(std::move(warning));
      }
    }
    if (recorder) {
      CUTAWAY_TRY(recorder->finish(out, request.stop, *model_, options_,
                                   intervened ? &*intervened : nullptr, *engine_));
    }
    CUTAWAY_OUT(span, "text", out.text, "finish", out.finish_reason);
    return out;
  }

  static Status check(const GenerateRequest& request) {
    const int given =
        (request.messages.is_null() ? 0 : 1) + (request.prompt ? 1 : 0) + (request.tokens ? 1 : 0);
    if (given != 1) {
      return Error{
          ErrorCode::kInvalidArgument,
          "exactly one of messages, prompt and tokens must be given, not " + std::to_string(given),
          "prompt"};
    }
    if (request.max_tokens < -1) {
      return Error{ErrorCode::kInvalidArgument,
                   "max_tokens is " + std::to_string(request.max_tokens) +
                       ", must be 0 or more (-1: what is left of the context)",
                   "max_tokens"};
    }
    if (request.top_logprobs < 0 || request.top_logprobs > 20) {
      return Error{ErrorCode::kInvalidArgument,
                   "top_logprobs is " + std::to_string(request.top_logprobs) + ", must be 0 to 20",
                   "top_logprobs"};
    }
    return {};
  }

  // What was asked for in so many words must have room before it begins; an answer without a limit
  // may find out.
  Status check_memory_of(const GenerateRequest& request, int64_t prompt) const {
    const int64_t room = std::max<int64_t>(0, options_.context - prompt);
    const int64_t answer = std::clamp<int64_t>(request.max_tokens, 0, room);
    const int64_t pages = kv::Geometry::pages_for(prompt + answer) - sequence_.kv.page_count();
    std::string what = "a prompt of " + std::to_string(prompt) + " tokens";
    if (answer > 0) what += " and an answer of up to " + std::to_string(answer);
    return check_memory(pages_.geometry(), pages, what, answer > 0 ? "max_tokens" : "prompt");
  }

  Result<std::vector<int32_t>> prompt_tokens(const GenerateRequest& request) const {
    CUTAWAY_PHASE(span, trace::Phase::kPrompt, "api::Session::prompt", "messages",
                  request.messages.is_array() ? request.messages.size() : 0);
    std::vector<int32_t> ids;
    if (request.tokens) {
      ids = *request.tokens;
    } else if (request.prompt) {
      CUTAWAY_ASSIGN(ids,
                     model_->tokenizer()->encode_ids(*request.prompt, request.parse_special, true));
    } else {
      if (model_->chat_template() == nullptr) {
        return Error{ErrorCode::kUnsupported,
                     "the model has no chat template: give a raw prompt instead (--raw)",
                     "messages"};
      }
      text::ChatTemplate::Input input;
      input.messages = request.messages;
      CUTAWAY_ASSIGN(const std::vector<text::Segment> segments,
                     model_->chat_template()->render(input));
      // The template writes its own BOS where it wants one.
      CUTAWAY_ASSIGN(const auto encoded, model_->tokenizer()->encode(segments, {false}));
      for (const text::EncodedToken& token : encoded) ids.push_back(token.id);
    }
    CUTAWAY_OUT(span, "ids", ids, "n", ids.size());
    return ids;
  }

  GeneratedToken describe(const inference::Choice& choice, bool with_ledger) const {
    const text::Tokenizer& tokenizer = *model_->tokenizer();
    GeneratedToken token;
    token.id = choice.id;
    token.piece = tokenizer.piece(choice.id);
    token.bytes = tokenizer.token_bytes(choice.id, true);
    token.logprob = choice.logprob.value_or(0);
    for (const sampling::TopEntry& entry : choice.top) {
      token.top.push_back({entry.id, tokenizer.piece(entry.id), entry.logprob});
    }
    if (choice.ledger && with_ledger) token.ledger = sampling::to_json(*choice.ledger);
    return token;
  }

  void fill(Generation& out, const inference::DecodeOptions& decode,
            const inference::Outcome& outcome, int64_t start) const {
    out.finish_reason = inference::finish_reason_name(outcome.finish);
    out.stop = outcome.stop;
    out.seed = decode.sampling.seed;
    out.sampling = to_json(decode.sampling);
    out.session = session_json(options_, *engine_);
    out.logits_hash = outcome.logits_hash.hex();
    const auto prompt = static_cast<int64_t>(out.prompt_tokens.size());
    const auto generated = static_cast<int64_t>(outcome.ids.size());
    out.usage = {prompt, generated, 0, outcome.cached_tokens};
    const int64_t total = now_ns() - start;
    const int64_t before_decoder = total - outcome.first_token_ns - outcome.decode_ns;
    out.timings.load_ms = load_ms_;
    out.timings.total_ms = ms(total);
    out.timings.ttft_ms = generated > 0 ? ms(before_decoder + outcome.first_token_ns) : 0;
    out.timings.prefill_tps = per_second(prompt - outcome.cached_tokens, outcome.prefill_ns);
    out.timings.decode_tps = per_second(std::max<int64_t>(0, generated - 1), outcome.decode_ns);
    out.timings.peak_rss_mb = peak_rss_mb();
  }

  std::shared_ptr<Engine::Impl> engine_;
  std::shared_ptr<const model::LoadedModel> model_;
  std::string name_;
  double load_ms_;
  ResolvedSession options_;
  kv::PagePool pages_;
  inference::SequenceState sequence_;
  inference::Runner runner_;
};

}  // namespace

std::unique_ptr<Session> make_session(std::shared_ptr<Engine::Impl> engine,
                                      std::shared_ptr<const model::LoadedModel> model,
                                      std::string name, double load_ms, ResolvedSession options) {
  CUTAWAY_SPAN(span, "api::make_session", "model", name, "pages",
               kv::Geometry::pages_for(options.context));
  return std::make_unique<SessionImpl>(std::move(engine), std::move(model), std::move(name),
                                       load_ms, std::move(options));
}

}  // namespace cutaway::api
