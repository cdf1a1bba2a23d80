// What the public classes share behind the door.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/thread_pool.h"
#include "cutaway/engine.h"
#include "inference/decoder.h"
#include "inference/runner.h"
#include "kernels/table.h"
#include "model/loaded_model.h"
#include "trace/live.h"
#include "trace/trace.h"
#include "trace/tracer.h"

namespace cutaway {

// `tracer` is made first and destroyed last: everything else may trace.
struct Engine::Impl {
  std::unique_ptr<trace::Tracer> tracer = std::make_unique<trace::Tracer>();
  trace::LiveHub live{*tracer};
  kernels::Selection selection;
  std::unique_ptr<ThreadPool> pool;
  // What its options mean here that its user may not expect; the first answer of every session and
  // every other result carries it.
  std::vector<std::string> warnings;
  // The engine's work runs one call at a time: the pool has one caller.
  std::mutex working;
};

namespace api {

class ModelImpl final : public Model {
 public:
  ModelImpl(std::shared_ptr<Engine::Impl> engine, std::shared_ptr<const model::LoadedModel> model,
            std::string name, double load_ms)
      : engine_(std::move(engine)),
        model_(std::move(model)),
        name_(std::move(name)),
        load_ms_(load_ms) {}

  const std::string& name() const override { return name_; }
  double load_ms() const override { return load_ms_; }
  Result<std::unique_ptr<Session>> start(const SessionOptions& options) const override;
  Result<Json> tokenize(const std::string& text, bool parse_special, bool merges) const override;
  Result<Json> capture(const CaptureRequest& request, const SessionOptions& options) const override;
  Result<Json> lens(const LensRequest& request, const SessionOptions& options) const override;
  Result<Json> attention(const AttentionRequest& request,
                         const SessionOptions& options) const override;
  Result<Json> describe(const std::vector<int32_t>& ids) const override;
  Json info(bool tensors) const override;
  bool has_chat_template() const override { return model_->chat_template() != nullptr; }

  Engine::Impl& engine() const { return *engine_; }
  const model::LoadedModel& model() const { return *model_; }

 private:
  std::shared_ptr<Engine::Impl> engine_;
  std::shared_ptr<const model::LoadedModel> model_;
  std::string name_;
  double load_ms_;
};

// Options of a session, checked and with every default filled in.
struct ResolvedSession {
  int64_t context = 0;
  kernels::KvType cache_type = kernels::KvType::kF16;
  bool precise = false;
  int64_t prefill_chunk = 512;
  std::vector<std::string> warnings;
};
// `warnings` begins with the engine's; a context that memory could not hold when filled adds one.
Result<ResolvedSession> resolve_session(const SessionOptions& options,
                                        const model::LoadedModel& model,
                                        const Engine::Impl& engine);
// What took effect: {"context","cache_type","precise","prefill_chunk","threads","kernels"}.
Json session_json(const ResolvedSession& session, const Engine::Impl& engine);
kv::Geometry kv_geometry(const model::LoadedModel& model, kernels::KvType type);

// Error kTooLarge when the memory that is available now cannot hold `pages` more pages of KV cache:
// names `what` needs them, and both sizes.
Status check_memory(const kv::Geometry& geometry, int64_t pages, const std::string& what,
                    const std::string& field);
// What to say when a context of `tokens` could not be held by the memory that is available now;
// empty when it could.
std::string context_warning(const kv::Geometry& geometry, int64_t tokens);

// Sampling parameters with the file's recommendation or the documented default where the caller set
// nothing. A seed that was not given is drawn from the system.
Result<sampling::SamplingParams> resolve_sampling(const SamplingOptions& options,
                                                  const model::LoadedModel& model);
Json to_json(const sampling::SamplingParams& params);

trace::Level to_trace_level(TraceLevel level);
// Bytes as JSON has them everywhere: an array of 0 … 255, as OpenAI's logprobs do.
std::vector<int> byte_array(std::string_view bytes);
double peak_rss_mb();

std::unique_ptr<Session> make_session(std::shared_ptr<Engine::Impl> engine,
                                      std::shared_ptr<const model::LoadedModel> model,
                                      std::string name, double load_ms, ResolvedSession options);

}  // namespace api
}  // namespace cutaway
