#include "cutaway/synthesis.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "api/output_file.h"
#include "base/clock.h"
#include "base/guard.h"
#include "base/suggest.h"
#include "base/thread_pool.h"
#include "formats/quantize_row.h"
#include "model/synthesis.h"
#include "trace/trace.h"

namespace cutaway {
namespace {

constexpr int kMaxThreads = 1024;

struct Found {
  const arch::Architecture* architecture = nullptr;
  arch::PublishedShape shape;
};

std::vector<Found> all_shapes() {
  std::vector<Found> out;
  for (const arch::Architecture& architecture : arch::architectures()) {
    for (arch::PublishedShape& shape : architecture.published_shapes()) {
      out.push_back({&architecture, std::move(shape)});
    }
  }
  return out;
}

Error unknown(const char* field, const std::string& value, const std::vector<std::string>& known) {
  const std::string near = nearest_word(value, known);
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("there is no {} '{}'{} ({}s: {})", field, value,
                           near.empty() ? "" : fmt::format("; did you mean '{}'?", near), field,
                           fmt::join(known, ", ")),
               field};
}

Result<Found> find_shape(const std::string& name) {
  std::vector<Found> shapes = all_shapes();
  std::vector<std::string> names;
  for (Found& found : shapes) {
    if (found.shape.name == name) return std::move(found);
    names.push_back(found.shape.name);
  }
  return unknown("shape", name, names);
}

std::string upper_case(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

Result<DType> find_type(const std::string& name) {
  for (const DType type : formats::row_types()) {
    if (upper_case(name) == dtype_name(type)) return type;
  }
  return unknown("type", name, synthesis_types());
}

Result<SynthesisShape> describe(const Found& found) {
  CUTAWAY_ASSIGN(const model::Synthesis plan,
                 model::plan_synthesis(*found.architecture, found.shape, 0));
  const arch::ModelShape& m = plan.shape;
  SynthesisShape out{found.shape.name,
                     plan.architecture,
                     plan.parameters,
                     m.n_layers,
                     m.d_model,
                     m.n_heads,
                     m.n_kv_heads,
                     m.d_head,
                     m.d_mlp,
                     m.vocab,
                     m.context_length,
                     plan.tied,
                     {}};
  for (const DType type : formats::row_types()) {
    out.bytes.emplace_back(dtype_name(type), plan.tensor_bytes(type));
  }
  return out;
}

}  // namespace

std::vector<SynthesisShape> synthesis_shapes() {
  CUTAWAY_SPAN(span, "api::synthesis_shapes");
  std::vector<SynthesisShape> out;
  for (const Found& found : all_shapes()) {
    auto shape = describe(found);
    CUTAWAY_CHECK(shape.ok());  // our own table
    out.push_back(std::move(*shape));
  }
  CUTAWAY_OUT(span, "n", out.size());
  return out;
}

std::vector<std::string> synthesis_types() {
  CUTAWAY_SPAN(span, "api::synthesis_types");
  std::vector<std::string> out;
  for (const DType type : formats::row_types()) out.emplace_back(dtype_name(type));
  CUTAWAY_OUT(span, "n", out.size());
  return out;
}

Result<SynthesisResult> synthesize(const SynthesisRequest& request, const ProgressFn& progress) {
  return guarded("making the model", [&]() -> Result<SynthesisResult> {
    CUTAWAY_SPAN(span, "api::synthesize", "shape", request.shape, "type", request.type, "output",
                 request.output, "layers", request.layers, "seed", request.seed, "threads",
                 request.threads);
    const int64_t start = now_ns();
    CUTAWAY_ASSIGN(const Found found, find_shape(request.shape));
    CUTAWAY_ASSIGN(const DType type, find_type(request.type));
    if (request.threads < 0 || request.threads > kMaxThreads) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("threads is {}, must be 1 to {}, or 0 for what the machine can use",
                               request.threads, kMaxThreads),
                   "threads"};
    }
    CUTAWAY_ASSIGN(const model::Synthesis plan,
                   model::plan_synthesis(*found.architecture, found.shape, request.layers));
    CUTAWAY_TRY(api::check_output(request.output, request.overwrite));
    ThreadPool pool(request.threads);
    formats::GgufWriter writer;
    model::add_synthesis_metadata(plan, found.shape.name, type, writer);
    const auto report = [&](uint64_t done, uint64_t total) {
      return !progress || progress({"write", done, total});
    };
    model::add_synthesis_tensors(plan, type, request.seed, pool, report, writer);
    CUTAWAY_TRY(writer.check());
    const uint64_t bytes = writer.file_bytes();
    CUTAWAY_TRY(api::check_space(request.output, bytes));
    const Status written = writer.write(request.output, request.overwrite);
    if (!written.ok()) {
      CUTAWAY_TRY(api::check_output(
          request.output, request.overwrite));  // what came there meanwhile says it better
      return written.error();
    }
    const double write_ms = static_cast<double>(now_ns() - start) / 1e6;
    CUTAWAY_OUT(span, "bytes", bytes, "parameters", plan.parameters, "ms", write_ms);
    return SynthesisResult{
        request.output,      found.shape.name, plan.architecture,   dtype_name(type),
        plan.shape.n_layers, plan.parameters,  plan.tensors.size(), bytes,
        request.seed,        write_ms};
  });
}

}  // namespace cutaway
