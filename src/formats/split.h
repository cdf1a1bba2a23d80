// Split GGUF models: NAME-00001-of-00003.gguf and so on, as llama.cpp's gguf-split writes them. The
// first shard carries the metadata; each carries split.no (from 0), split.count and
// split.tensors.count (of all shards). Described in docs/formats/gguf.md.
#pragma once

#include <memory>

#include "base/result.h"
#include "tensor/model_file.h"

namespace cutaway::formats {

// Whether a file says that it is one of several shards. Error kInvalidFile: split.count is none.
Result<bool> is_shard(const ModelFile& file);

// The whole model, of which `first` is the first shard: the others are found by their names, which
// must be those of shards. The metadata of the result is that of all shards, without split.*; its
// files are in the shards' order. Errors name the shard: kInvalidArgument (`first` is another one:
// which to give instead), kNotFound (a shard is missing), kInvalidFile (a shard of another model,
// another number, tensors twice or too few), and those of open_gguf.
Result<std::shared_ptr<const ModelFile>> open_shards(std::shared_ptr<ModelFile> first);

}  // namespace cutaway::formats
