// cutaway quantize: a model file in another type.
#include <fmt/format.h>

#include <map>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/exit_status.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "cutaway/quantization.h"

namespace cutaway::cli {
namespace {

struct QuantizeArgs {
  std::optional<std::string> input, output, type, importance;
  std::vector<std::string> tensor_types;
  std::optional<int64_t> threads;
  bool pure = false, dry_run = false, allow_requantize = false, force = false, json = false;

  void add_to(Args& args) {
    args.positional("IN", input, "The model: a .gguf file or an installed name");
    args.positional("OUT.gguf", output, "The file to write (left out with --dry-run)");
    args.positional("TYPE", type, "What to make of it (below)");
    args.text("--imatrix", importance, "FILE",
              "How much each column counts, by `cutaway imatrix` or llama.cpp (GGUF or .dat)");
    args.texts(
        "--tensor-type", tensor_types, "PATTERN=TYPE",
        "Tensors whose name holds PATTERN (a regular expression) get TYPE; the first counts");
    args.flag("--pure", pure, "Every matrix in TYPE: no mix");
    args.flag("--dry-run", dry_run, "Print what each tensor would become, and the size");
    args.flag("--allow-requantize", allow_requantize,
              "Begin with a file that is quantised already: it loses once more");
    args.flag("--force", force, "Replace OUT.gguf when it exists");
    args.integer("-t,--threads", threads, 1, 1024, "N",
                 "Threads (default: what the machine can use)");
    args.flag("--json", json, "One JSON document on stdout");
    std::string footer = "TYPE, by what it costs:\n";
    for (const QuantizationType& known : quantization_types()) {
      footer += fmt::format("  {:<10} {}\n", known.name, known.about);
    }
    args.footer(footer + "  cutaway quantize model-F16.gguf model-Q4_K_M.gguf Q4_K_M");
  }

  Result<QuantizationRequest> request() const;
};

Result<QuantizationRequest> QuantizeArgs::request() const {
  const auto wrong = [](const char* field, const std::string& message) {
    return Error{ErrorCode::kInvalidArgument, message, field};
  };
  if (!input) return wrong("input", "IN is missing");
  QuantizationRequest out;
  out.input = *input;
  // `quantize IN TYPE --dry-run` names no file.
  const bool no_output = dry_run && output && !type;
  out.output = no_output ? "" : output.value_or("");
  out.type = no_output ? *output : type.value_or("");
  if (!output) return wrong("output", "OUT.gguf is missing");
  if (out.type.empty()) return wrong("type", "TYPE is missing; --help lists them");
  for (const std::string& asked : tensor_types) {
    const size_t at = asked.rfind('=');
    if (at == std::string::npos || at == 0 || at + 1 == asked.size()) {
      return wrong("tensor-type", fmt::format("--tensor-type: '{}' must be PATTERN=TYPE, like "
                                              "ffn_down=Q6_K",
                                              asked));
    }
    out.tensor_types.emplace_back(asked.substr(0, at), asked.substr(at + 1));
  }
  out.importance = importance.value_or("");
  out.pure = pure;
  out.dry_run = dry_run;
  out.allow_requantize = allow_requantize;
  out.overwrite = force;
  out.threads = static_cast<int>(threads.value_or(0));
  return out;
}

std::string plan_table(const Json& tensors) {
  std::string out =
      fmt::format("{:<28} {:>18} {:>8} {:>8} {:>10}\n", "tensor", "shape", "from", "to", "size");
  for (const Json& tensor : tensors) {
    std::string shape;
    for (const Json& size : tensor.at("shape")) {
      shape += (shape.empty() ? "" : ",") + std::to_string(size.get<int64_t>());
    }
    out += fmt::format("{:<28} {:>18} {:>8} {:>8} {:>10}{}{}\n",
                       printable(tensor.at("name").get<std::string>()), shape,
                       tensor.at("from").get<std::string>(), tensor.at("to").get<std::string>(),
                       human_bytes(tensor.at("to_bytes").get<double>()),
                       tensor.at("fell_back").get<bool>() ? "  in place of a larger block" : "",
                       tensor.at("importance").get<bool>() ? "  weighted" : "");
  }
  return out;
}

std::string summary(const Json& result) {
  std::map<std::string, int> counts;
  for (const Json& tensor : result.at("tensors")) ++counts[tensor.at("to").get<std::string>()];
  std::string types;
  for (const auto& [type, count] : counts) {
    types += fmt::format("{}{} {}", types.empty() ? "" : ", ", count, type);
  }
  const Json& file = result.at("file");
  return fmt::format(
      "{}: {}, {} ({:.2f} bits a weight; {}) from {}{}\n",
      file.is_null() ? "would be" : printable(file.get<std::string>()),
      result.at("type").get<std::string>(), human_bytes(result.at("bytes").get<double>()),
      result.at("bits_per_weight").get<double>(), types,
      human_bytes(result.at("input_bytes").get<double>()),
      file.is_null()
          ? ""
          : fmt::format(" in {:.1f} s", result.at("timings").at("total_ms").get<double>() / 1e3));
}

}  // namespace

int quantize_command(int argc, char** argv) {
  Args args("cutaway quantize",
            "Writes a model file in another type: smaller, faster, a bit worse.");
  QuantizeArgs quantize_args;
  quantize_args.add_to(args);
  if (const auto status = args.parse(argc, argv, 2)) return *status;
  auto request = quantize_args.request();
  if (!request.ok()) return args.wrong_usage(request.error().message);
  ProgressBar bar(300);
  auto result = quantize(*request, bar.callback());
  bar.clear();
  if (!result.ok()) return report(result.error());
  for (const Json& warning : result->at("warnings")) print_warning(warning.get<std::string>());
  if (quantize_args.json) {
    write_json(*result);
  } else {
    if (request->dry_run) write_out(plan_table(result->at("tensors")));
    write_out(summary(*result));
  }
  return end_output(kDone);
}

}  // namespace cutaway::cli
