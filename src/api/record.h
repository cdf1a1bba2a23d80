// Recordings behind the door: what run.json says of a generation, and settings read back from it.
#pragma once

#include "api/impl.h"
#include "api/intervene.h"
#include "api/run_trace.h"
#include "base/clock.h"
#include "inspect/attention_top.h"
#include "inspect/layer_hashes.h"
#include "inspect/recording.h"

namespace cutaway::api {

// Watches one generation and writes its recording. Made before the generation, so that a folder
// that cannot be used, or a tap that is not there, is known before anything is computed.
class RunRecorder {
 public:
  static Result<RunRecorder> create(const RecordOptions& options, const model::LoadedModel& model,
                                    const std::string& run, Engine::Impl& engine);

  std::vector<trace::Probe*> probes() {
    std::vector<trace::Probe*> out{hashes_.get()};
    if (top_) out.push_back(top_.get());
    return out;
  }
  void add(const inference::Choice& choice, const text::Tokenizer& tokenizer);

  // `session` is what the generation ran with, `intervened` what changed it (or null); taps are
  // computed again from the tokens.
  // Adds what was not kept to the generation's warnings.
  Status finish(Generation& generation, const std::vector<std::string>& stop,
                const model::LoadedModel& model, const ResolvedSession& session,
                const Intervened* intervened, Engine::Impl& engine);

 private:
  RunRecorder(RecordOptions options, trace::TapSelection selection, inspect::RecordingWriter writer,
              int64_t n_layers);
  Status write_tensors(Generation& generation, const model::LoadedModel& model,
                       const ResolvedSession& session, const Intervened* intervened,
                       Engine::Impl& engine);
  Status capture_taps(const model::LoadedModel& model, const ResolvedSession& session,
                      const Intervened* intervened, Engine::Impl& engine,
                      const trace::TapRange& range) const;
  Status write_top(const model::LoadedModel& model, const trace::TapRange& range) const;

  RecordOptions options_;
  trace::TapSelection selection_;
  inspect::RecordingWriter writer_;
  std::unique_ptr<RunTrace> trace_;
  std::unique_ptr<inspect::LayerHashes> hashes_;
  std::unique_ptr<inspect::AttentionTop> top_;  // kept as the run goes, where there are no taps
  inspect::Recording recording_;
  int64_t start_ns_ = now_ns();
};

// The members of run.json that a replay runs with. Errors kInvalidFile name the member.
Result<sampling::SamplingParams> recorded_sampling(const inspect::Recording& recording,
                                                   int32_t vocab_size);
Result<SessionOptions> recorded_session(const inspect::Recording& recording);
// Error kInvalidArgument when the recording was made with another model: both hashes.
Status check_model(const inspect::Recording& recording, const model::LoadedModel& model);

}  // namespace cutaway::api
