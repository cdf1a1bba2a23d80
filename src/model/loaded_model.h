// ModelFile + architecture + tokenizer → LoadedModel: immutable, shared by every sequence.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "arch/architecture.h"
#include "base/hash.h"
#include "base/large_memory.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "model/weight_loader.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace cutaway::model {

// What the file recommends (GGUF general.sampling.*). Absent: no recommendation.
struct SamplingDefaults {
  std::optional<double> temperature, top_p, min_p, typical_p, repeat_penalty;
  std::optional<int64_t> top_k;
};

// Bytes packed so far, of all. Return false to give up (the load ends with kCancelled).
using LoadProgress = std::function<bool(uint64_t done, uint64_t total)>;

class LoadedModel {
 public:
  // Errors name the file, and the field, tensor or value. A file that was changed meanwhile is one.
  // It stays open, so that its hash can be had; nothing else is read from it later.
  static Result<std::shared_ptr<const LoadedModel>> load(const std::string& path, ThreadPool& pool,
                                                         const LoadProgress& progress);
  // The same for a file that is open already (tests).
  static Result<std::shared_ptr<const LoadedModel>> load(std::shared_ptr<const ModelFile> file,
                                                         ThreadPool& pool,
                                                         const LoadProgress& progress);

  const ModelFile& file() const { return *file_; }
  const std::string& architecture() const { return architecture_; }
  const arch::Transformer& transformer() const { return *transformer_; }
  const arch::ModelShape& shape() const { return transformer_->shape(); }
  const std::shared_ptr<const text::Tokenizer>& tokenizer() const { return tokenizer_; }
  // Null when the file carries none.
  const text::ChatTemplate* chat_template() const { return chat_template_.get(); }
  const SamplingDefaults& sampling_defaults() const { return sampling_defaults_; }
  uint64_t parameters() const { return parameters_; }
  uint64_t packed_bytes() const { return packed_bytes_; }

  // Which tensor of the file a packed matrix was made of; null tensor: none of the matrices'.
  MatrixSource source_of(const kernels::PackedMatrix& matrix) const;

  // XXH3-128 over the file's bytes (in hexadecimal, or why they cannot be read any more), and over
  // the packed weights. Each reads everything: for traces and checks, not for every request.
  std::string file_hash() const;
  Hash128 packed_hash() const;

 private:
  LoadedModel() = default;
  Status load_text();
  Status load_sampling_defaults();

  std::shared_ptr<const ModelFile> file_;
  std::string architecture_;
  LargeArena weight_memory_{0};
  std::vector<std::pair<const uint8_t*, size_t>> weight_spans_;
  std::unordered_map<const uint8_t*, MatrixSource> matrix_sources_;  // by the packed data
  std::unique_ptr<arch::Transformer> transformer_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::shared_ptr<const text::ChatTemplate> chat_template_;
  SamplingDefaults sampling_defaults_;
  uint64_t parameters_ = 0, packed_bytes_ = 0;
};

}  // namespace cutaway::model
