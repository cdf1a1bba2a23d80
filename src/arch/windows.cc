#include "arch/windows.h"

#include "trace/trace.h"

namespace cutaway::arch {
namespace {

Error wrong_length(const std::string& key, size_t found, int64_t layers) {
  return {ErrorCode::kInvalidFile,
          "metadata " + key + " has " + std::to_string(found) +
              " values, expected one for each of " + std::to_string(layers) + " layers",
          key};
}

Result<std::vector<bool>> from_layer_types(const Metadata& metadata, const std::string& key,
                                           int64_t layers) {
  CUTAWAY_ASSIGN(const std::vector<std::string>* types, metadata.strings(key));
  if (static_cast<int64_t>(types->size()) != layers) {
    return wrong_length(key, types->size(), layers);
  }
  std::vector<bool> out;
  for (const std::string& type : *types) {
    if (type != "sliding_attention" && type != "full_attention") {
      return Error{ErrorCode::kUnsupported,
                   "metadata " + key + " holds \"" + type +
                       "\"; this version knows sliding_attention and full_attention",
                   key};
    }
    out.push_back(type == "sliding_attention");
  }
  return out;
}

std::vector<bool> every(int64_t period, int64_t layers) {
  std::vector<bool> out;
  for (int64_t layer = 0; layer < layers; ++layer) out.push_back((layer + 1) % period != 0);
  return out;
}

Result<std::vector<bool>> read_pattern(const ConfigReader& config, int64_t layers, int64_t period) {
  const Metadata& metadata = config.metadata();
  if (metadata.has("layer_types")) return from_layer_types(metadata, "layer_types", layers);
  const std::string key = config.key("attention.sliding_window_pattern", "sliding_window_pattern");
  const MetaValue* value = metadata.find(key);
  if (value == nullptr) return every(period, layers);
  if (const auto* flags = std::get_if<std::vector<bool>>(value)) {
    if (static_cast<int64_t>(flags->size()) != layers) {
      return wrong_length(key, flags->size(), layers);
    }
    return *flags;
  }
  // A period of 0 is how writers say that every layer is local.
  CUTAWAY_ASSIGN(const int64_t stated, metadata.integer(key, 0, INT32_MAX));
  return stated == 0 ? std::vector<bool>(static_cast<size_t>(layers), true) : every(stated, layers);
}

}  // namespace

Result<LocalLayers> read_local_layers(const ConfigReader& config, const ModelShape& shape,
                                      int64_t default_window, int64_t period) {
  CUTAWAY_SPAN(span, "arch::read_local_layers", "layers", shape.n_layers, "period", period);
  LocalLayers out;
  CUTAWAY_ASSIGN(out.window, config.integer_or("attention.sliding_window", "sliding_window",
                                               default_window, 0, INT64_MAX));
  CUTAWAY_ASSIGN(out.local, read_pattern(config, shape.n_layers, period));
  if (out.window == 0) out.local.assign(static_cast<size_t>(shape.n_layers), false);
  CUTAWAY_OUT(span, "window", out.window);
  return out;
}

}  // namespace cutaway::arch
