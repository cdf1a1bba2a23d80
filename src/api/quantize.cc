#include <fmt/format.h>

#include "api/output_file.h"
#include "base/clock.h"
#include "base/guard.h"
#include "base/thread_pool.h"
#include "cutaway/model_store.h"
#include "cutaway/quantization.h"
#include "formats/open.h"
#include "model/quantization.h"
#include "trace/trace.h"

namespace cutaway {
namespace {

constexpr int kMaxThreads = 1024;

std::vector<int64_t> dims(const Shape& shape) {
  std::vector<int64_t> out;
  for (int i = 0; i < shape.rank(); ++i) out.push_back(shape[i]);
  return out;
}

Json tensors_json(const model::QuantizationPlan& plan) {
  Json out = Json::array();
  for (const model::PlannedTensor& tensor : plan.tensors) {
    out.push_back({{"name", tensor.source->name},
                   {"shape", dims(tensor.source->shape)},
                   {"from", dtype_name(tensor.source->dtype)},
                   {"to", dtype_name(tensor.type)},
                   {"from_bytes", tensor.source->size},
                   {"to_bytes", tensor.bytes()},
                   {"importance", tensor.importance != nullptr},
                   {"fell_back", tensor.fell_back}});
  }
  return out;
}

double bits_per_weight(const model::QuantizationPlan& plan) {
  uint64_t weights = 0;
  for (const model::PlannedTensor& tensor : plan.tensors) {
    weights += static_cast<uint64_t>(tensor.source->shape.elements());
  }
  return weights == 0 ? 0 : 8 * static_cast<double>(plan.bytes()) / static_cast<double>(weights);
}

struct Inputs {
  std::shared_ptr<const ModelFile> file;
  std::optional<formats::ImportanceMatrix> importance;
  model::QuantizationOptions options;
};

Result<Inputs> read_inputs(const QuantizationRequest& request) {
  Inputs out;
  CUTAWAY_ASSIGN(out.options.recipe, model::find_recipe(request.type));
  out.options.pure = request.pure;
  out.options.allow_requantize = request.allow_requantize;
  for (const auto& [pattern, type] : request.tensor_types) {
    CUTAWAY_ASSIGN(const DType asked, model::find_quantized_type(type));
    out.options.overrides.push_back({pattern, asked});
  }
  if (request.threads < 0 || request.threads > kMaxThreads) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("threads is {}, must be 1 to {}, or 0 for what the machine can use",
                             request.threads, kMaxThreads),
                 "threads"};
  }
  if (!request.dry_run || !request.output.empty()) {
    CUTAWAY_TRY(api::check_output(request.output, request.overwrite || request.dry_run));
  }
  CUTAWAY_ASSIGN(const std::string path, ModelStore().resolve(request.input));
  CUTAWAY_ASSIGN(out.file, formats::open_model_file(path));
  if (!request.importance.empty()) {
    CUTAWAY_ASSIGN(out.importance, formats::read_importance(request.importance));
  }
  return out;
}

Result<Json> quantize_file(const QuantizationRequest& request, const ProgressFn& progress) {
  CUTAWAY_SPAN(span, "api::quantize", "input", request.input, "output", request.output, "type",
               request.type, "importance", request.importance, "dry_run", request.dry_run);
  const int64_t start = now_ns();
  CUTAWAY_ASSIGN(Inputs inputs, read_inputs(request));
  inputs.options.importance = inputs.importance ? &*inputs.importance : nullptr;
  CUTAWAY_ASSIGN(const model::QuantizationPlan plan,
                 model::plan_quantization(*inputs.file, inputs.options));
  ThreadPool pool(request.threads);
  formats::GgufWriter writer;
  const auto report = [&](uint64_t done, uint64_t total) {
    return !progress || progress({"quantize", done, total});
  };
  model::add_quantized(*inputs.file, inputs.options, plan, pool, report, writer);
  CUTAWAY_TRY(writer.check());
  const uint64_t bytes = writer.file_bytes();
  if (!request.dry_run) {
    CUTAWAY_TRY(api::check_space(request.output, bytes));
    const Status written = writer.write(request.output, request.overwrite);
    if (!written.ok()) {
      // What came there meanwhile says it better.
      CUTAWAY_TRY(api::check_output(request.output, request.overwrite));
      return written.error();
    }
  }
  Json out = {{"file", request.dry_run ? Json(nullptr) : Json(request.output)},
              {"type", inputs.options.recipe.name},
              {"input", inputs.file->path},
              {"input_bytes", inputs.file->total_bytes()},
              {"bytes", bytes},
              {"bits_per_weight", bits_per_weight(plan)},
              {"importance", nullptr},
              {"tensors", tensors_json(plan)},
              {"timings", {{"total_ms", static_cast<double>(now_ns() - start) / 1e6}}},
              {"warnings", plan.warnings}};
  if (inputs.importance) {
    out["importance"] = {{"file", request.importance},
                         {"tensors", inputs.importance->tensors.size()},
                         {"chunks", inputs.importance->chunks}};
  }
  CUTAWAY_OUT(span, "bytes", bytes, "tensors", plan.tensors.size());
  return out;
}

}  // namespace

std::vector<QuantizationType> quantization_types() {
  CUTAWAY_SPAN(span, "api::quantization_types");
  std::vector<QuantizationType> out;
  for (const model::QuantizationRecipe& recipe : model::quantization_recipes()) {
    out.push_back({recipe.name, recipe.about});
  }
  CUTAWAY_OUT(span, "n", out.size());
  return out;
}

Result<Json> quantize(const QuantizationRequest& request, const ProgressFn& progress) {
  return guarded("quantising the model", [&] { return quantize_file(request, progress); });
}

}  // namespace cutaway
