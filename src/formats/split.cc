#include "formats/split.h"

#include <fmt/format.h>

#include <filesystem>

#include "formats/gguf.h"
#include "formats/shard_name.h"
#include "formats/sniff.h"
#include "trace/trace.h"

namespace cutaway::formats {
namespace {

constexpr const char *kNo = "split.no", *kCount = "split.count", *kTensors = "split.tensors.count";
constexpr int64_t kMaxShards = 65535;  // what the format's 16 bits hold
constexpr int64_t kMaxTensors = int64_t{1} << 31;

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

// The numbers of one shard.
struct Place {
  int64_t no = 0, count = 0;
};
Result<Place> place_of(const ModelFile& file) {
  Place out;
  CUTAWAY_ASSIGN(out.count, file.metadata.integer_or(kCount, 1, 0, kMaxShards));
  CUTAWAY_ASSIGN(out.no, file.metadata.integer(kNo, 0, kMaxShards));
  return out;
}

Error invalid(const ModelFile& file, const std::string& field, const std::string& what) {
  return Error{ErrorCode::kInvalidFile, fmt::format("{}: {}", file.path, what), field};
}

// Where the other shards are, when `first` is the first and is called so.
Result<ShardName> name_of(const ModelFile& first, const Place& place) {
  const auto name = parse_shard_name(first.path);
  if (place.no != 0) {
    const std::string instead =
        name ? fmt::format(", '{}'", shard_path(name->prefix, 1, name->count)) : "";
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} is shard {} of {} of a split model; give the first one{}",
                             first.path, place.no + 1, place.count, instead),
                 kNo};
  }
  if (!name) {
    return invalid(
        first, "path",
        fmt::format("the first of {} shards ({}) must be called …-00001-of-{:05}.gguf, so "
                    "that the others are found",
                    place.count, kCount, place.count));
  }
  if (name->no != 1 || name->count != place.count) {
    return invalid(
        first, kCount,
        fmt::format("it is called shard {} of {}, but says that it is shard 1 of {} ({}, "
                    "{}); was it renamed?",
                    name->no, name->count, place.count, kNo, kCount));
  }
  return *name;
}

Result<std::shared_ptr<ModelFile>> open_one(const std::string& path, int64_t no, int64_t count) {
  auto shard = open_gguf_shard(path);
  if (!shard.ok()) {
    const std::string which = fmt::format("shard {} of {}", no + 1, count);
    if (shard.error().code != ErrorCode::kNotFound) return shard.error().within(which);
    return Error{
        ErrorCode::kNotFound,
        fmt::format("{} is missing: there is no file '{}'; all shards must be in one folder", which,
                    path),
        "path"};
  }
  CUTAWAY_ASSIGN(const bool one_of_several, is_shard(**shard));
  if (!one_of_several) {
    return invalid(
        **shard, kCount,
        fmt::format("it is called shard {} of {}, but is a whole model of its own (no {})", no + 1,
                    count, kCount));
  }
  const auto place = place_of(**shard);
  if (!place.ok()) return place.error().within(path);
  if (place->no != no || place->count != count) {
    return invalid(
        **shard, kNo,
        fmt::format("it is called shard {} of {}, but says that it is shard {} of {} ({}, "
                    "{}); were shards renamed or mixed up?",
                    no + 1, count, place->no + 1, place->count, kNo, kCount));
  }
  return shard;
}

bool is_split_key(const std::string& key) { return key.starts_with("split."); }

// Puts a shard at the end of the whole. Its metadata, if it repeats any, is the first shard's.
Status append(ModelFile& whole, ModelFile shard) {
  for (size_t i = 0; i < shard.metadata.entries().size(); ++i) {
    const auto& [key, value] = shard.metadata.entries()[i];
    if (is_split_key(key) || key == "general.alignment") continue;  // each file's own
    const MetaValue* known = whole.metadata.find(key);
    if (known != nullptr && *known != value) {
      return invalid(shard, key,
                     fmt::format("metadata {} differs from the first shard's: a shard of another "
                                 "model?",
                                 in_quotes(key)));
    }
    if (known != nullptr) continue;
    whole.metadata.insert(key, value);
    whole.metadata_types.push_back(shard.metadata_types[i]);
  }
  for (StoredTensor& tensor : shard.tensors) {
    tensor.file = whole.files.size();
    const auto [at, added] = whole.tensor_index.emplace(tensor.name, whole.tensors.size());
    if (!added) {
      return invalid(shard, tensor.name,
                     fmt::format("tensor {} is in {} already", in_quotes(tensor.name),
                                 file_name(whole.files[whole.tensors[at->second].file].path())));
    }
    whole.tensors.push_back(std::move(tensor));
  }
  whole.files.push_back(std::move(shard.files.front()));
  return {};
}

}  // namespace

Result<bool> is_shard(const ModelFile& file) {
  CUTAWAY_SPAN(span, "formats::is_shard", "path", file.path);
  const auto count = file.metadata.integer_or(kCount, 1, 0, kMaxShards);
  if (!count.ok()) return count.error().within(file.path);
  CUTAWAY_OUT(span, "count", *count);
  return *count > 1;
}

Result<std::shared_ptr<const ModelFile>> open_shards(std::shared_ptr<ModelFile> first) {
  CUTAWAY_SPAN(span, "formats::open_shards", "path", first->path);
  const auto place = place_of(*first);
  if (!place.ok()) return place.error().within(first->path);
  CUTAWAY_ASSIGN(const ShardName name, name_of(*first, *place));
  const auto tensors = first->metadata.integer_or(kTensors, -1, 0, kMaxTensors);
  if (!tensors.ok()) return tensors.error().within(first->path);
  auto whole = std::make_shared<ModelFile>();
  whole->format = first->format;
  whole->path = first->path;
  CUTAWAY_TRY(append(*whole, std::move(*first)));
  for (int64_t no = 1; no < place->count; ++no) {
    CUTAWAY_ASSIGN(std::shared_ptr<ModelFile> shard,
                   open_one(shard_path(name.prefix, no + 1, place->count), no, place->count));
    const auto same = shard->metadata.integer_or(kTensors, *tensors, 0, kMaxTensors);
    if (!same.ok()) return same.error().within(shard->path);
    if (*same != *tensors) {
      return invalid(*shard, kTensors,
                     fmt::format("{} is {}, but {} in the first shard: a shard of another model?",
                                 kTensors, *same, *tensors));
    }
    CUTAWAY_TRY(append(*whole, std::move(*shard)));
  }
  if (*tensors >= 0 && static_cast<int64_t>(whole->tensors.size()) != *tensors) {
    return invalid(*whole, kTensors,
                   fmt::format("the {} shards hold {} tensors, but {} is {}", place->count,
                               whole->tensors.size(), kTensors, *tensors));
  }
  CUTAWAY_OUT(span, "shards", place->count, "tensors", whole->tensors.size());
  return std::shared_ptr<const ModelFile>(std::move(whole));
}

}  // namespace cutaway::formats
