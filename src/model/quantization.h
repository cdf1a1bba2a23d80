// A model file in other tensor types: which tensor gets which, and writing it. Names are GGUF's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "formats/gguf.h"
#include "formats/imatrix.h"
#include "tensor/model_file.h"

namespace cutaway::model {

// A recipe: the type of most matrices, and what the others get. Q4_K_M is one; so is Q8_0.
struct QuantizationRecipe {
  const char* name;
  DType type;
  uint32_t file_type;  // general.file_type
  const char* about;   // one line for people
};
std::span<const QuantizationRecipe> quantization_recipes();
// In any case; "Q4_K" is Q4_K_M. Error kInvalidArgument names the recipes.
Result<QuantizationRecipe> find_recipe(const std::string& name);
// A tensor type that can be written, in any case. Error kInvalidArgument names them.
Result<DType> find_quantized_type(const std::string& name);

// Tensors whose name holds `pattern` (a regular expression) get `type`; the first that fits counts.
struct TypeOverride {
  std::string pattern;
  DType type;
};

struct QuantizationOptions {
  QuantizationRecipe recipe;
  bool pure = false;  // every matrix has the recipe's type
  std::vector<TypeOverride> overrides;
  bool allow_requantize = false;  // from one quantised type to another
  const formats::ImportanceMatrix* importance = nullptr;
};

struct PlannedTensor {
  const StoredTensor* source = nullptr;
  DType type = DType::kF32;  // what it becomes; source->dtype: copied as it is
  // Of the input's columns, null when there is none.
  const formats::Importance* importance = nullptr;
  bool fell_back = false;  // rows that the recipe's type has no blocks for

  uint64_t bytes() const;
};

struct QuantizationPlan {
  std::vector<PlannedTensor> tensors;  // the file's order
  std::vector<std::string> warnings;
  uint64_t bytes() const;  // of the tensors
};

// What each tensor becomes; reads no weight. `file` and the options' importance outlive the plan.
// Errors (kInvalidArgument): a pattern that is no regular expression or fits no matrix; a type that
// an override asks for and the rows cannot have; a quantised source without allow_requantize;
// importance of another size than the tensor's.
Result<QuantizationPlan> plan_quantization(const ModelFile& file,
                                           const QuantizationOptions& options);

// Adds metadata (the file's, its types kept, with general.file_type and
// general.quantization_version set; of the split form nothing) and every tensor, made while the
// file is written, by the pool's threads. `report` (may be empty): source bytes done, of all;
// false ends it with kCancelled. Everything outlives the writing. Writing can fail with
// kInvalidFile: a weight that is not finite, or larger than its type can hold (tensor and row
// named).
using ReportBytes = std::function<bool(uint64_t done, uint64_t total)>;
void add_quantized(const ModelFile& file, const QuantizationOptions& options,
                   const QuantizationPlan& plan, ThreadPool& pool, const ReportBytes& report,
                   formats::GgufWriter& writer);

}  // namespace cutaway::model
