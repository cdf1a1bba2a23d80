// Layers that see the last few keys only, between layers that see all of them.
#pragma once

#include <vector>

#include "arch/config.h"

namespace cutaway::arch {

struct LocalLayers {
  int64_t window = 0;       // keys that a query of a local layer sees, its own included; 0: all
  std::vector<bool> local;  // [n_layers]; all false when window is 0
};

// The window is attention.sliding_window / sliding_window, or `default_window` where the file names
// none; 0 is no window. Which layers are local is in
// attention.sliding_window_pattern (GGUF: one truth value a layer, or the period) or in layer_types
// (Hugging Face); where it is in neither, each layer but every `period`-th is.
Result<LocalLayers> read_local_layers(const ConfigReader& config, const ModelShape& shape,
                                      int64_t default_window, int64_t period);

}  // namespace cutaway::arch
