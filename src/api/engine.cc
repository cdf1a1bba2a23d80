#include <algorithm>
#include <filesystem>

#include "api/impl.h"
#include "base/clock.h"
#include "base/cpu_features.h"
#include "base/guard.h"
#include "cutaway/model_store.h"
#include "formats/shard_name.h"
#include "trace/otlp_http_sink.h"
#include "trace/sinks.h"

namespace cutaway {
namespace {

class LiveTrace final : public TraceStream {
 public:
  explicit LiveTrace(std::unique_ptr<trace::LiveStream> stream) : stream_(std::move(stream)) {}

  Batch next(size_t max_lines, std::chrono::milliseconds timeout) override {
    trace::LiveStream::Batch batch = stream_->next(max_lines, timeout);
    return {std::move(batch.lines), batch.ended};
  }

 private:
  const std::unique_ptr<trace::LiveStream> stream_;
};

}  // namespace

const char* version() { return CUTAWAY_VERSION; }

Engine::Engine(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Result<std::shared_ptr<Engine>> Engine::create(const EngineOptions& options) {
  return guarded("starting the engine", [&]() -> Result<std::shared_ptr<Engine>> {
    constexpr int kMaxThreads = 1024;
    if (options.threads < 0 || options.threads > kMaxThreads) {
      return Error{ErrorCode::kInvalidArgument,
                   "threads is " + std::to_string(options.threads) + ", must be 1 to " +
                       std::to_string(kMaxThreads) + ", or 0 for what the machine can use",
                   "threads"};
    }
    auto impl = std::make_shared<Impl>();
    CUTAWAY_ASSIGN(impl->selection, kernels::select_table(options.force_isa));
    impl->pool = std::make_unique<ThreadPool>(options.threads);
    if (const int processors = usable_cpus(); impl->pool->size() > processors) {
      impl->warnings.push_back("threads: " + std::to_string(impl->pool->size()) +
                               " threads share " + std::to_string(processors) +
                               (processors == 1 ? " processor" : " processors") +
                               "; more threads than processors make nothing faster");
    }
    return std::shared_ptr<Engine>(new Engine(std::move(impl)));
  });
}

Result<std::shared_ptr<Model>> Engine::load(const std::string& model, const ProgressFn& progress) {
  return guarded("loading the model", [&]() -> Result<std::shared_ptr<Model>> {
    const int64_t start = now_ns();
    const std::scoped_lock lock(impl_->working);
    const trace::Attach attach(impl_->tracer.get());
    CUTAWAY_PHASE(span, trace::Phase::kStartup, "api::Engine::load", "model", model, "threads",
                  impl_->pool->size(), "kernels", impl_->selection.table->name);
    CUTAWAY_ASSIGN(const std::string path, ModelStore().resolve(model));
    const auto report = [&](uint64_t done, uint64_t total) {
      return !progress || progress({"load", done, total});
    };
    CUTAWAY_ASSIGN(std::shared_ptr<const model::LoadedModel> loaded,
                   model::LoadedModel::load(path, *impl_->pool, report));
    const double load_ms = static_cast<double>(now_ns() - start) / 1e6;
    if (trace::enabled()) {
      // Inference only reads: these two are printed again after the answer, and must be equal.
      trace::event("weights.hash", "when", "loaded", "file_xxh3", loaded->file_hash(),
                   "packed_xxh3", loaded->packed_hash().hex());
    }
    const auto shard = formats::parse_shard_name(path);
    const std::string name = shard ? std::filesystem::path(shard->prefix).filename().string()
                                   : std::filesystem::path(path).stem().string();
    CUTAWAY_OUT(span, "name", name, "architecture", loaded->architecture(), "parameters",
                loaded->parameters(), "ms", load_ms);
    return std::shared_ptr<Model>(
        std::make_shared<api::ModelImpl>(impl_, std::move(loaded), name, load_ms));
  });
}

void Engine::trace_to_stream(std::FILE* stream, TraceLevel level, bool colour) {
  impl_->tracer->add_sink(trace::make_console_sink(stream, colour), api::to_trace_level(level));
}

Status Engine::trace_to_file(const std::string& path, TraceLevel level) {
  return guarded("the trace", [&]() -> Status {
    if (trace::is_otlp_target(path)) {
      CUTAWAY_ASSIGN(trace::OtlpSettings settings,
                     trace::otlp_settings(path, trace::process_environment()));
      CUTAWAY_ASSIGN(std::shared_ptr<trace::Sink> collector,
                     trace::make_otlp_http_sink(std::move(settings)));
      impl_->tracer->add_sink(std::move(collector), api::to_trace_level(level));
      return {};
    }
    const auto make = path.ends_with(".perfetto.json") ? trace::make_perfetto_sink
                      : path.ends_with(".otlp.jsonl")  ? trace::make_otlp_sink
                                                       : trace::make_jsonl_sink;
    CUTAWAY_ASSIGN(std::shared_ptr<trace::Sink> sink, make(path));
    impl_->tracer->add_sink(std::move(sink), api::to_trace_level(level));
    return {};
  });
}

std::unique_ptr<TraceStream> Engine::watch(const TraceStreamOptions& options) {
  return std::make_unique<LiveTrace>(impl_->live.subscribe(
      {options.run, api::to_trace_level(options.level), options.max_lines, options.max_bytes}));
}

Status Engine::flush_trace() { return impl_->tracer->flush(); }

Status Engine::finish_trace() { return impl_->tracer->finish(); }

std::vector<std::string> Engine::trace_warnings() const { return impl_->tracer->warnings(); }

Json Engine::machine_info() const {
  const CpuFeatures& cpu = cpu_features();
  Json choices = Json::array();
  for (const kernels::TableChoice& choice : impl_->selection.choices) {
    choices.push_back({{"name", choice.name},
                       {"available", choice.available},
                       {"chosen", choice.chosen},
                       {"reason", choice.reason}});
  }
  return {{"version", version()},
          {"cpu",
           {{"brand", cpu.brand},
            {"features", cpu.names()},
            {"l1d_bytes", cpu.l1d_bytes},
            {"l2_bytes", cpu.l2_bytes},
            {"l3_bytes", cpu.l3_bytes},
            {"usable", usable_cpus()}}},
          {"threads", impl_->pool->size()},
          {"kernels", {{"chosen", impl_->selection.table->name}, {"choices", choices}}}};
}

}  // namespace cutaway
