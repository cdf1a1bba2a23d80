#include "model/loaded_model.h"

#include <algorithm>

#include "formats/open.h"
#include "model/weight_loader.h"
#include "trace/trace.h"

namespace cutaway::model {

Result<std::shared_ptr<const LoadedModel>> LoadedModel::load(const std::string& path,
                                                             ThreadPool& pool,
                                                             const LoadProgress& progress) {
  CUTAWAY_SPAN(span, "model::LoadedModel::load", "path", path);
  CUTAWAY_ASSIGN(std::shared_ptr<const ModelFile> file, formats::open_model_file(path));
  auto loaded = load(std::move(file), pool, progress);
  if (!loaded.ok()) return loaded.error().within(path);
  CUTAWAY_TRY((*loaded)->file().check_unchanged());
  CUTAWAY_OUT(span, "architecture", (*loaded)->architecture(), "parameters",
              (*loaded)->parameters());
  return loaded;
}

Result<std::shared_ptr<const LoadedModel>> LoadedModel::load(std::shared_ptr<const ModelFile> file,
                                                             ThreadPool& pool,
                                                             const LoadProgress& progress) {
  CUTAWAY_SPAN(span, "model::LoadedModel::load", "tensors", file->tensors.size(), "bytes",
               file->total_bytes());
  std::shared_ptr<LoadedModel> out(new LoadedModel());
  out->file_ = std::move(file);
  CUTAWAY_ASSIGN(const arch::Architecture* architecture,
                 arch::find_architecture(out->file_->metadata));
  out->architecture_ = architecture->name;
  CUTAWAY_TRY(out->load_sampling_defaults());
  WeightLoader weights(*out->file_);
  CUTAWAY_ASSIGN(out->transformer_, architecture->load(out->file_->metadata, weights));
  CUTAWAY_TRY(weights.check_all_used());
  CUTAWAY_TRY(weights.pack(pool, progress, [&] { return out->load_text(); }));
  if (out->tokenizer_->vocab_size() > out->shape().vocab) {
    return Error{ErrorCode::kInvalidFile,
                 "the tokenizer has " + std::to_string(out->tokenizer_->vocab_size()) +
                     " tokens, but token_embd.weight has only " +
                     std::to_string(out->shape().vocab) + " rows",
                 "tokenizer.ggml.tokens"};
  }
  out->weight_spans_ = weights.spans();
  for (const auto& [data, source] : weights.sources()) out->matrix_sources_.emplace(data, source);
  out->weight_memory_ = weights.take_memory();
  out->parameters_ = weights.parameters();
  for (const auto& [data, size] : out->weight_spans_) out->packed_bytes_ += size;
  CUTAWAY_OUT(span, "parameters", out->parameters_, "packed_bytes", out->packed_bytes_);
  return std::shared_ptr<const LoadedModel>(std::move(out));
}

Status LoadedModel::load_text() {
  CUTAWAY_SPAN(span, "model::LoadedModel::load_text");
  CUTAWAY_ASSIGN(tokenizer_, text::Tokenizer::create(file_->metadata));
  const std::string key = "tokenizer.chat_template";
  if (!file_->metadata.has(key)) {
    CUTAWAY_OUT(span, "vocab", tokenizer_->vocab_size(), "chat_template", false);
    return {};
  }
  CUTAWAY_ASSIGN(std::string source, file_->metadata.string(key));
  const auto spelling = [&](int32_t id) {
    return id < 0 ? std::string() : std::string(tokenizer_->token_bytes(id, true));
  };
  const auto& special = tokenizer_->special_ids();
  auto parsed =
      text::ChatTemplate::create(std::move(source), spelling(special.bos), spelling(special.eos),
                                 text::control_spellings(*tokenizer_));
  if (!parsed.ok()) return parsed.error().within(key);
  chat_template_ = *parsed;
  CUTAWAY_OUT(span, "vocab", tokenizer_->vocab_size(), "chat_template", true);
  return {};
}

Status LoadedModel::load_sampling_defaults() {
  CUTAWAY_SPAN(span, "model::LoadedModel::load_sampling_defaults");
  const Metadata& metadata = file_->metadata;
  int found = 0;
  const auto number = [&](const char* key, std::optional<double>& out) -> Status {
    const std::string full = std::string("general.sampling.") + key;
    if (!metadata.has(full)) return {};
    CUTAWAY_ASSIGN(out, metadata.number(full));
    ++found;
    return {};
  };
  CUTAWAY_TRY(number("temp", sampling_defaults_.temperature));
  CUTAWAY_TRY(number("top_p", sampling_defaults_.top_p));
  CUTAWAY_TRY(number("min_p", sampling_defaults_.min_p));
  CUTAWAY_TRY(number("penalty_repeat", sampling_defaults_.repeat_penalty));
  if (metadata.has("general.sampling.top_k")) {
    CUTAWAY_ASSIGN(sampling_defaults_.top_k,
                   metadata.integer("general.sampling.top_k", 0, INT32_MAX));
    ++found;
  }
  CUTAWAY_OUT(span, "found", found);
  return {};
}

MatrixSource LoadedModel::source_of(const kernels::PackedMatrix& matrix) const {
  CUTAWAY_SPAN(span, "model::LoadedModel::source_of", "rows", matrix.rows, "cols", matrix.cols);
  const auto found = matrix_sources_.find(matrix.data);
  const MatrixSource out = found == matrix_sources_.end() ? MatrixSource{} : found->second;
  CUTAWAY_OUT(span, "tensor", out.tensor == nullptr ? std::string() : out.tensor->name);
  return out;
}

std::string LoadedModel::file_hash() const {
  CUTAWAY_SPAN(span, "model::LoadedModel::file_hash", "path", file_->path, "bytes",
               file_->total_bytes());
  StreamHash hash;
  std::vector<uint8_t> part(size_t{1} << 20);
  for (const InputFile& file : file_->files) {
    for (uint64_t at = 0; at < file.size(); at += part.size()) {
      const auto bytes = std::span(part).first(std::min<uint64_t>(part.size(), file.size() - at));
      if (const Status read = file.read(at, bytes); !read.ok()) return read.error().message;
      hash.update(bytes.data(), bytes.size());
    }
  }
  const std::string digest = hash.digest().hex();
  CUTAWAY_OUT(span, "xxh3", digest);
  return digest;
}

Hash128 LoadedModel::packed_hash() const {
  CUTAWAY_SPAN(span, "model::LoadedModel::packed_hash", "bytes", packed_bytes_);
  StreamHash hash;
  for (const auto& [data, size] : weight_spans_) hash.update(data, size);
  const Hash128 digest = hash.digest();
  CUTAWAY_OUT(span, "xxh3", digest.hex());
  return digest;
}

}  // namespace cutaway::model
