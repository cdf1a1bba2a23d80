#include "api/record.h"

#include <ctime>
#include <set>

#include "api/taps.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "cutaway/recording.h"
#include "inspect/replay.h"

namespace cutaway {
namespace api {
namespace {

std::string utc_now() {
  const auto now = static_cast<std::time_t>(wall_us() / 1'000'000);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

Json model_json(const model::LoadedModel& model, const std::string& name) {
  return {{"name", name},
          {"path", model.file().path},
          {"architecture", model.architecture()},
          {"parameters", model.parameters()},
          {"file_xxh3", model.file_hash()},
          {"packed_xxh3", model.packed_hash().hex()}};
}

Json timings_json(const Timings& timings) {
  return {{"ttft_ms", timings.ttft_ms},
          {"total_ms", timings.total_ms},
          {"prefill_tps", timings.prefill_tps},
          {"decode_tps", timings.decode_tps}};
}

// What the ids of the prompt, the answer and its candidates spell, so that a recording can be read
// without its model: text, or bytes where they are no whole characters.
Json pieces_json(const inspect::Recording& recording, const text::Tokenizer& tokenizer) {
  std::set<int32_t> ids(recording.prompt.begin(), recording.prompt.end());
  for (const inspect::RecordedChoice& choice : recording.choices) {
    ids.insert(choice.id);
    const auto raw = choice.ledger.find("raw");
    if (raw == choice.ledger.end()) continue;
    for (const Json& candidate : raw->at("top")) ids.insert(candidate.at("id").get<int32_t>());
  }
  Json out = Json::object();
  for (const int32_t id : ids) {
    const std::string_view bytes = tokenizer.token_bytes(id, true);
    out[std::to_string(id)] = utf8_valid(bytes) ? Json(bytes) : Json(byte_array(bytes));
  }
  return out;
}

// The member of run.json at object / key, of the kind that T is; else an error that names it.
template <typename T>
Status read_member(const Json& run, const char* object, const char* key, T& out) {
  const auto outer = run.find(object);
  if (outer != run.end() && outer->is_object()) {
    const auto it = outer->find(key);
    const bool good = it != outer->end() && (std::is_same_v<T, bool>          ? it->is_boolean()
                                             : std::is_same_v<T, std::string> ? it->is_string()
                                             : std::is_floating_point_v<T>    ? it->is_number()
                                             : std::is_unsigned_v<T> ? it->is_number_unsigned()
                                                                     : it->is_number_integer());
    if (good) {
      out = it->template get<T>();
      return {};
    }
  }
  return Error{
      ErrorCode::kInvalidFile,
      std::string("run.json: \"") + object + "\": \"" + key + "\" is missing or of another kind",
      "recording"};
}

}  // namespace

RunRecorder::RunRecorder(RecordOptions options, trace::TapSelection selection,
                         inspect::RecordingWriter writer, int64_t n_layers)
    : options_(std::move(options)),
      selection_(std::move(selection)),
      writer_(std::move(writer)),
      hashes_(std::make_unique<inspect::LayerHashes>(n_layers)) {
  recording_.n_layers = n_layers;
  if (options_.attention_top > 0 && options_.taps.empty()) {
    top_ = std::make_unique<inspect::AttentionTop>(options_.attention_top, n_layers,
                                                   selection_.layers);
  }
}

Result<RunRecorder> RunRecorder::create(const RecordOptions& options,
                                        const model::LoadedModel& model, const std::string& run,
                                        Engine::Impl& engine) {
  CUTAWAY_SPAN(span, "api::RunRecorder::create", "directory", options.directory, "taps",
               options.taps.size());
  CUTAWAY_TRY(top_keys(options.attention_top));
  CUTAWAY_ASSIGN(trace::TapSelection selection,
                 select_taps(options.taps, options.window, model.shape()));
  CUTAWAY_ASSIGN(inspect::RecordingWriter writer,
                 inspect::RecordingWriter::create(options.directory));
  RunRecorder out(options, std::move(selection), std::move(writer), model.shape().n_layers);
  if (options.trace != TraceLevel::kOff) {
    CUTAWAY_ASSIGN(out.trace_, RunTrace::begin(*engine.tracer, run, out.writer_.trace_path(),
                                               to_trace_level(options.trace)));
  }
  return out;
}

void RunRecorder::add(const inference::Choice& choice, const text::Tokenizer& tokenizer) {
  CUTAWAY_SPAN(span, "api::RunRecorder::add", "id", choice.id);
  recording_.choices.push_back({choice.id, tokenizer.piece(choice.id),
                                choice.logits_hash.value_or(Hash128{}),
                                choice.ledger ? sampling::to_json(*choice.ledger) : Json::object(),
                                static_cast<double>((now_ns() - start_ns_) / 1000) / 1e3});
}

Status RunRecorder::capture_taps(const model::LoadedModel& model, const ResolvedSession& session,
                                 const Intervened* intervened, Engine::Impl& engine,
                                 const trace::TapRange& range) const {
  CUTAWAY_SPAN(span, "api::RunRecorder::capture_taps", "taps", options_.taps.size());
  const std::vector<int32_t> tokens = recording_.computed_tokens();
  const int64_t n_pages = kv::Geometry::pages_for(static_cast<int64_t>(tokens.size()));
  const kv::Geometry geometry = kv_geometry(model, session.cache_type);
  CUTAWAY_TRY(check_memory(geometry, n_pages, "the recording's taps", "taps"));
  kv::PagePool pages(geometry, n_pages);
  inference::Runner runner(model, *engine.selection.table, *engine.pool, session.precise);
  runner.set_context(session.context);  // as the run did: rotary factors may follow it
  std::optional<Intervened> again;
  if (intervened != nullptr) {
    CUTAWAY_ASSIGN(again, intervened->again());
    runner.set_editors(again->editors());
  }
  const inspect::CaptureJob job{selection_, range, options_.attention_top, session.prefill_chunk};
  CUTAWAY_ASSIGN(const inspect::CaptureOutcome outcome,
                 inspect::capture(runner, pages, tokens, job, writer_.tensors_path()));
  CUTAWAY_OUT(span, "positions", tokens.size(), "forward_ns", outcome.forward_ns);
  return {};
}

Status RunRecorder::write_top(const model::LoadedModel& model, const trace::TapRange& range) const {
  CUTAWAY_SPAN(span, "api::RunRecorder::write_top", "positions", range.size());
  CUTAWAY_TRY(top_->check(range));
  CUTAWAY_ASSIGN(
      formats::SafetensorsWriter writer,
      formats::SafetensorsWriter::create(
          writer_.tensors_path(), top_->tensors(selection_.heads, model.shape().n_heads, range),
          {{"format", "cutaway capture"},
           {"positions", std::to_string(range.begin) + ":" + std::to_string(range.end)}}));
  top_->write(writer, 0, selection_.heads, range);
  CUTAWAY_TRY(writer.commit());
  CUTAWAY_OUT(span, "path", writer_.tensors_path());
  return {};
}

Status RunRecorder::write_tensors(Generation& generation, const model::LoadedModel& model,
                                  const ResolvedSession& session, const Intervened* intervened,
                                  Engine::Impl& engine) {
  CUTAWAY_SPAN(span, "api::RunRecorder::write_tensors");
  // Without a choice nothing was computed, not even the prompt.
  const auto computed =
      recording_.choices.empty() ? int64_t{0} : std::ssize(recording_.computed_tokens());
  trace::TapRange range =
      selection_.range_of_run(computed, static_cast<int64_t>(recording_.prompt.size()) - 1);
  if (top_) {
    range.begin = std::max(range.begin, top_->seen().begin);
    range.end = std::min(range.end, top_->seen().end);
  }
  if (range.size() <= 0) {
    generation.warnings.push_back(
        "no tensors were kept: the run has none of the positions and steps that were asked for");
    recording_.run["warnings"] = generation.warnings;
  } else if (top_) {
    CUTAWAY_TRY(write_top(model, range));
  } else {
    CUTAWAY_TRY(capture_taps(model, session, intervened, engine, range));
  }
  CUTAWAY_OUT(span, "positions", range.size());
  return {};
}

Status RunRecorder::finish(Generation& generation, const std::vector<std::string>& stop,
                           const model::LoadedModel& model, const ResolvedSession& session,
                           const Intervened* intervened, Engine::Impl& engine) {
  CUTAWAY_SPAN(span, "api::RunRecorder::finish", "run", generation.run, "choices",
               recording_.choices.size());
  recording_.prompt = generation.prompt_tokens;
  recording_.first_hashed = hashes_->first_position();
  recording_.layer_hashes = hashes_->hashes();
  recording_.run = {{"run", generation.run},
                    {"created", utc_now()},
                    {"cutaway", version()},
                    {"model", model_json(model, generation.model)},
                    {"session", generation.session},
                    {"sampling", generation.sampling},
                    {"stop_strings", stop},
                    {"text", generation.text},
                    {"finish_reason", generation.finish_reason},
                    {"stop", generation.stop},
                    {"logits_hash", generation.logits_hash},
                    {"timings", timings_json(generation.timings)},
                    {"pieces", pieces_json(recording_, *model.tokenizer())},
                    {"warnings", generation.warnings}};
  if (intervened != nullptr) {
    recording_.run["interventions"] = generation.interventions;
    CUTAWAY_TRY(intervened->keep(recording_, writer_));
  }
  if (!options_.taps.empty() || top_) {
    CUTAWAY_TRY(write_tensors(generation, model, session, intervened, engine));
  }
  if (trace_ != nullptr) CUTAWAY_TRY(trace_->end());
  CUTAWAY_TRY(writer_.commit(recording_));
  CUTAWAY_OUT(span, "directory", options_.directory);
  return {};
}

Result<sampling::SamplingParams> recorded_sampling(const inspect::Recording& recording,
                                                   int32_t vocab_size) {
  CUTAWAY_SPAN(span, "api::recorded_sampling");
  sampling::SamplingParams out;
  const auto read = [&](const char* key, auto& member) {
    return read_member(recording.run, "sampling", key, member);
  };
  CUTAWAY_TRY(read("temperature", out.temperature));
  CUTAWAY_TRY(read("top_k", out.top_k));
  CUTAWAY_TRY(read("top_p", out.top_p));
  CUTAWAY_TRY(read("min_p", out.min_p));
  CUTAWAY_TRY(read("typical_p", out.typical_p));
  CUTAWAY_TRY(read("repeat_penalty", out.repeat_penalty));
  CUTAWAY_TRY(read("presence_penalty", out.presence_penalty));
  CUTAWAY_TRY(read("frequency_penalty", out.frequency_penalty));
  CUTAWAY_TRY(read("seed", out.seed));
  const Json bias = recording.run.at("sampling").value("logit_bias", Json::object());
  for (const auto& [id, value] : bias.items()) {
    char* end = nullptr;
    const long number = std::strtol(id.c_str(), &end, 10);
    if (id.empty() || *end != '\0' || !value.is_number() || number < 0 || number >= vocab_size) {
      return Error{
          ErrorCode::kInvalidFile,
          "run.json: \"sampling\": \"logit_bias\": \"" + id + "\" is no token with a number",
          "recording"};
    }
    out.logit_bias[static_cast<int32_t>(number)] = value.get<double>();
  }
  CUTAWAY_TRY(out.validate(vocab_size));
  CUTAWAY_OUT(span, "temperature", out.temperature, "seed", out.seed);
  return out;
}

Result<SessionOptions> recorded_session(const inspect::Recording& recording) {
  CUTAWAY_SPAN(span, "api::recorded_session");
  SessionOptions out;
  std::string cache_type;
  CUTAWAY_TRY(read_member(recording.run, "session", "context", out.context));
  CUTAWAY_TRY(read_member(recording.run, "session", "cache_type", cache_type));
  CUTAWAY_TRY(read_member(recording.run, "session", "precise", out.precise));
  CUTAWAY_TRY(read_member(recording.run, "session", "prefill_chunk", out.prefill_chunk));
  CUTAWAY_ASSIGN(out.cache_type, parse_cache_type(cache_type));
  CUTAWAY_OUT(span, "context", out.context, "cache_type", cache_type, "precise", out.precise);
  return out;
}

// The files of a recording are proved by hashes; the model must be the one that it was made with.
Status check_model(const inspect::Recording& recording, const model::LoadedModel& model) {
  CUTAWAY_SPAN(span, "api::check_model", "layers", recording.n_layers);
  std::string recorded, name;
  CUTAWAY_TRY(read_member(recording.run, "model", "packed_xxh3", recorded));
  CUTAWAY_TRY(read_member(recording.run, "model", "name", name));
  const std::string here = model.packed_hash().hex();
  if (recorded == here && recording.n_layers == model.shape().n_layers) return {};
  return Error{ErrorCode::kInvalidArgument,
               "the recording was made with another model: " + name + ", whose weights hash to " +
                   recorded + "; those of " + model.file().path + " hash to " + here,
               "model"};
}

namespace {

Json difference_json(const inspect::Recording& recording, const inspect::ReplayOutcome& outcome,
                     const std::string& recorded_kernels, const std::string& kernels) {
  if (outcome.equal()) return nullptr;
  Json out = Json::object();
  if (outcome.hash_position >= 0) {
    out["layer"] = {{"position", outcome.hash_position}, {"layer", outcome.hash_layer}};
  }
  if (outcome.logits_step >= 0) out["logits"] = {{"step", outcome.logits_step}};
  if (outcome.choice_step >= 0) {
    out["choice"] = {{"step", outcome.choice_step},
                     {"recorded", recording.choices[static_cast<size_t>(outcome.choice_step)].id},
                     {"here", outcome.chosen_instead}};
  }
  out["why"] = recorded_kernels == kernels
                   ? "the recording's hashes are not those of these tokens and this model"
                   : "recorded with the kernels " + recorded_kernels + ", computed here with " +
                         kernels + ": tables may differ in the last bits, so nothing is proved";
  return out;
}

// What a replay keeps; its range is not known yet.
Result<inspect::CaptureJob> replay_job(const ReplayRequest& request,
                                       const arch::ModelShape& shape) {
  const bool kept = !request.taps.empty() || request.attention_top > 0;
  if (kept == request.output.empty()) {
    return Error{ErrorCode::kInvalidArgument, "taps and a file to write them to go together",
                 kept ? "output" : "taps"};
  }
  inspect::CaptureJob job;
  CUTAWAY_ASSIGN(job.selection, select_taps(request.taps, request.window, shape));
  CUTAWAY_ASSIGN(job.top, top_keys(request.attention_top));
  return job;
}

}  // namespace
}  // namespace api

Result<Json> read_recording(const std::string& directory) {
  CUTAWAY_ASSIGN(const inspect::Recording recording, inspect::read_recording(directory));
  Json out = recording.run;
  out["layers"] = recording.n_layers;
  out["has_trace"] = recording.has_trace;
  out["prompt_tokens"] = recording.prompt;
  Json tokens = Json::array();
  for (const inspect::RecordedChoice& choice : recording.choices) {
    tokens.push_back({{"id", choice.id},
                      {"piece", choice.piece},
                      {"ms", choice.ms},
                      {"logits_xxh3", choice.logits.hex()},
                      {"ledger", choice.ledger}});
  }
  out["tokens"] = std::move(tokens);
  return out;
}

Result<Json> replay(const Model& model, const ReplayRequest& request) {
  const auto& impl = static_cast<const api::ModelImpl&>(model);
  Engine::Impl& engine = impl.engine();
  const trace::Attach attach(engine.tracer.get());
  CUTAWAY_PHASE(span, trace::Phase::kRequest, "api::replay", "directory", request.directory, "step",
                request.step.value_or(-1), "taps", request.taps.size());
  const std::scoped_lock lock(engine.working);
  CUTAWAY_ASSIGN(const inspect::Recording recording, inspect::read_recording(request.directory));
  const model::LoadedModel& loaded = impl.model();
  CUTAWAY_TRY(api::check_model(recording, loaded));
  CUTAWAY_ASSIGN(const sampling::SamplingParams params,
                 api::recorded_sampling(recording, loaded.tokenizer()->vocab_size()));
  CUTAWAY_ASSIGN(const SessionOptions options, api::recorded_session(recording));
  CUTAWAY_ASSIGN(const api::ResolvedSession session, api::resolve_session(options, loaded, engine));
  std::string recorded_kernels;
  CUTAWAY_TRY(api::read_member(recording.run, "session", "kernels", recorded_kernels));
  CUTAWAY_ASSIGN(inspect::CaptureJob job, api::replay_job(request, loaded.shape()));

  const int64_t start = now_ns();
  std::vector<int32_t> tokens = recording.computed_tokens();
  const int64_t n_pages = kv::Geometry::pages_for(static_cast<int64_t>(tokens.size()));
  const kv::Geometry geometry = api::kv_geometry(loaded, session.cache_type);
  CUTAWAY_TRY(api::check_memory(
      geometry, n_pages, "a replay of " + std::to_string(tokens.size()) + " tokens", "recording"));
  inference::Runner runner(loaded, *engine.selection.table, *engine.pool, session.precise);
  runner.set_context(session.context);
  kv::PagePool pages(geometry, n_pages);
  CUTAWAY_ASSIGN(const auto intervened,
                 api::Intervened::of_recording(recording, request.directory, loaded));
  inspect::ReplayOptions how{request.step, session.prefill_chunk, request.cancelled, {}};
  if (intervened != nullptr) {
    runner.set_editors(intervened->editors());
    how.rules = intervened->rules();
  }
  CUTAWAY_ASSIGN(const inspect::ReplayOutcome outcome,
                 inspect::replay(runner, pages, recording, params, how));
  const std::string kernels = engine.selection.table->name;
  Json out = {{"recording", request.directory},
              {"run", recording.run.value("run", "")},
              {"model", impl.name()},
              {"kernels", {{"recorded", recorded_kernels}, {"here", kernels}}},
              {"equal", outcome.equal()},
              {"compared",
               {{"positions", outcome.positions},
                {"hashes", outcome.hashes},
                {"choices", outcome.choices}}},
              {"interventions", recording.run.value("interventions", Json())},
              {"difference", api::difference_json(recording, outcome, recorded_kernels, kernels)}};
  if (request.step) {
    const auto step = static_cast<size_t>(*request.step);
    out["step"] = {{"step", step},
                   {"id", recording.choices[step].id},
                   {"piece", recording.choices[step].piece},
                   {"ledger", outcome.ledger}};
    tokens.resize(recording.prompt.size() + step);
  }
  if (!request.output.empty()) {
    job.chunk = session.prefill_chunk;
    job.cancelled = request.cancelled;
    job.range = job.selection.range_of_run(std::ssize(tokens), std::ssize(recording.prompt) - 1);
    if (job.range.size() == 0) {
      return Error{ErrorCode::kInvalidArgument,
                   "the run has none of the positions and steps that were asked for",
                   request.window.steps.empty() ? "positions" : "steps"};
    }
    CUTAWAY_ASSIGN(const inspect::CaptureOutcome captured,
                   inspect::capture(runner, pages, tokens, job, request.output));
    out["taps"] = api::taps_json(captured);
    out["file"] = request.output;
  }
  out["warnings"] = session.warnings;
  out["timings"] = {{"replay_ms", static_cast<double>(now_ns() - start) / 1e6}};
  CUTAWAY_OUT(span, "equal", outcome.equal(), "hashes", outcome.hashes, "choices", outcome.choices);
  return out;
}

}  // namespace cutaway
