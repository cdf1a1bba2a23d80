#include "cutaway/options.h"

#include <sys/resource.h>

#include <cmath>
#include <limits>

#include "api/impl.h"
#include "api/view_input.h"

namespace cutaway {

Result<TraceLevel> parse_trace_level(const std::string& text) {
  CUTAWAY_ASSIGN(const trace::Level level, trace::parse_level(text));
  return static_cast<TraceLevel>(level);
}

Result<CacheType> parse_cache_type(const std::string& text) {
  if (text == "f32") return CacheType::kF32;
  if (text == "f16") return CacheType::kF16;
  if (text == "q8") return CacheType::kQ8;
  if (text == "q4") return CacheType::kQ4;
  return Error{ErrorCode::kInvalidArgument,
               "cache type is \"" + text + "\", must be f32, f16, q8 or q4", "cache-type"};
}

namespace api {

static_assert(static_cast<int>(TraceLevel::kTensors) == static_cast<int>(trace::Level::kTensors));
trace::Level to_trace_level(TraceLevel level) { return static_cast<trace::Level>(level); }

static_assert(static_cast<int>(CacheType::kF32) == static_cast<int>(kernels::KvType::kF32) &&
              static_cast<int>(CacheType::kF16) == static_cast<int>(kernels::KvType::kF16) &&
              static_cast<int>(CacheType::kQ8) == static_cast<int>(kernels::KvType::kQ8) &&
              static_cast<int>(CacheType::kQ4) == static_cast<int>(kernels::KvType::kQ4));

kv::Geometry kv_geometry(const model::LoadedModel& model, kernels::KvType type) {
  CUTAWAY_SPAN(span, "api::kv_geometry");
  const arch::ModelShape& m = model.shape();
  const kv::Geometry out{m.n_layers, m.n_kv_heads, m.d_head, m.d_head, type};
  CUTAWAY_OUT(span, "layers", out.n_layers, "kv_heads", out.n_kv_heads, "d_k", out.d_k, "d_v",
              out.d_v, "page_bytes", out.page_bytes());
  return out;
}

Result<ResolvedSession> resolve_session(const SessionOptions& options,
                                        const model::LoadedModel& model,
                                        const Engine::Impl& engine) {
  CUTAWAY_SPAN(span, "api::resolve_session", "context", options.context, "prefill_chunk",
               options.prefill_chunk);
  ResolvedSession out;
  const int64_t trained = model.shape().context_length;
  if (options.context < 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "context is " + std::to_string(options.context) +
                     ", must be 1 or more tokens (0: the " + std::to_string(trained) +
                     " that the model was trained for)",
                 "context"};
  }
  if (options.context > trained) {
    return Error{ErrorCode::kInvalidArgument,
                 "context is " + std::to_string(options.context) + ", more than the " +
                     std::to_string(trained) + " tokens that the model was trained for",
                 "context"};
  }
  if (options.prefill_chunk < 1 || options.prefill_chunk > (int64_t{1} << 20)) {
    return Error{ErrorCode::kInvalidArgument,
                 "prefill chunk is " + std::to_string(options.prefill_chunk) +
                     ", must be 1 to 1048576 tokens",
                 "prefill-chunk"};
  }
  out.context = options.context == 0 ? trained : options.context;
  out.prefill_chunk = options.prefill_chunk;
  out.precise = options.precise;
  out.cache_type = static_cast<kernels::KvType>(
      options.cache_type.value_or(options.precise ? CacheType::kF32 : CacheType::kF16));
  out.warnings = engine.warnings;
  std::string warning = context_warning(kv_geometry(model, out.cache_type), out.context);
  if (!warning.empty()) out.warnings.push_back(std::move(warning));
  CUTAWAY_OUT(span, "context", out.context, "cache_type", kernels::kv_type_name(out.cache_type),
              "precise", out.precise, "prefill_chunk", out.prefill_chunk);
  return out;
}

Json session_json(const ResolvedSession& session, const Engine::Impl& engine) {
  CUTAWAY_SPAN(span, "api::session_json", "context", session.context);
  return {
      {"context", session.context},     {"cache_type", kernels::kv_type_name(session.cache_type)},
      {"precise", session.precise},     {"prefill_chunk", session.prefill_chunk},
      {"threads", engine.pool->size()}, {"kernels", engine.selection.table->name}};
}

namespace {

// A file's f32 as people write it: 0.8 and not 0.800000011920929.
double as_written(double value) {
  const auto narrow = static_cast<float>(value);
  return static_cast<double>(narrow) == value ? shortest(narrow) : value;
}

// What no f32 logit can be changed by is an error, not a clamp.
Status set_number(const char* name, const std::optional<double>& asked,
                  const std::optional<double>& recommended, double& out) {
  if (!asked && !recommended) return {};
  const std::optional<double> value = asked ? asked : as_written(*recommended);
  if (!std::isfinite(*value) || std::fabs(*value) > std::numeric_limits<float>::max()) {
    return Error{ErrorCode::kInvalidArgument,
                 std::string(name) + " is " + std::to_string(*value) + ", must be a finite number",
                 name};
  }
  out = *value;
  return {};
}

}  // namespace

Result<sampling::SamplingParams> resolve_sampling(const SamplingOptions& options,
                                                  const model::LoadedModel& model) {
  CUTAWAY_SPAN(span, "api::resolve_sampling");
  const model::SamplingDefaults& file = model.sampling_defaults();
  sampling::SamplingParams out;
  CUTAWAY_TRY(set_number("temperature", options.temperature, file.temperature, out.temperature));
  CUTAWAY_TRY(set_number("top_p", options.top_p, file.top_p, out.top_p));
  CUTAWAY_TRY(set_number("min_p", options.min_p, file.min_p, out.min_p));
  CUTAWAY_TRY(set_number("typical_p", options.typical_p, file.typical_p, out.typical_p));
  CUTAWAY_TRY(set_number("repeat_penalty", options.repeat_penalty, file.repeat_penalty,
                         out.repeat_penalty));
  CUTAWAY_TRY(set_number("presence_penalty", options.presence_penalty, {}, out.presence_penalty));
  CUTAWAY_TRY(
      set_number("frequency_penalty", options.frequency_penalty, {}, out.frequency_penalty));
  const int64_t top_k = options.top_k.value_or(file.top_k.value_or(0));
  if (top_k < 0 || top_k > INT32_MAX) {
    return Error{ErrorCode::kInvalidArgument,
                 "top_k is " + std::to_string(top_k) + ", must be 0 (off) or more", "top_k"};
  }
  out.top_k = static_cast<int32_t>(top_k);
  const int32_t vocab = model.tokenizer()->vocab_size();
  for (const auto& [id, bias] : options.logit_bias) {
    if (id < 0 || id >= vocab) {
      return Error{ErrorCode::kInvalidArgument,
                   "logit_bias names token id " + std::to_string(id) +
                       ", outside the vocabulary (0 to " + std::to_string(vocab - 1) + ")",
                   "logit_bias"};
    }
    CUTAWAY_TRY(set_number("logit_bias", bias, {}, out.logit_bias[static_cast<int32_t>(id)]));
  }
  out.seed = options.seed.value_or(0);
  if (!options.seed) out.seed = sampling::random_seed();
  CUTAWAY_TRY(out.validate(vocab));
  CUTAWAY_OUT(span, "temperature", out.temperature, "top_k", out.top_k, "typical_p", out.typical_p,
              "top_p", out.top_p, "min_p", out.min_p, "repeat_penalty", out.repeat_penalty,
              "biases", out.logit_bias.size(), "seed", out.seed);
  return out;
}

Json to_json(const sampling::SamplingParams& params) {
  CUTAWAY_SPAN(span, "api::to_json", "seed", params.seed);
  Json bias = Json::object();
  for (const auto& [id, value] : params.logit_bias) bias[std::to_string(id)] = value;
  return {{"temperature", params.temperature},
          {"top_k", params.top_k},
          {"typical_p", params.typical_p},
          {"top_p", params.top_p},
          {"min_p", params.min_p},
          {"repeat_penalty", params.repeat_penalty},
          {"presence_penalty", params.presence_penalty},
          {"frequency_penalty", params.frequency_penalty},
          {"logit_bias", bias},
          {"seed", params.seed}};
}

std::vector<int> byte_array(std::string_view bytes) {
  std::vector<int> out;
  for (const char c : bytes) out.push_back(static_cast<uint8_t>(c));
  return out;
}

double peak_rss_mb() {
  CUTAWAY_SPAN(span, "api::peak_rss_mb");
  struct rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const double peak = static_cast<double>(usage.ru_maxrss) / 1024;
  CUTAWAY_OUT(span, "peak_mb", peak);
  return peak;
}

}  // namespace api
}  // namespace cutaway
