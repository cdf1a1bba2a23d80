// cutaway synth: a file with random weights at a real model's shape.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/exit_status.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "cutaway/synthesis.h"

namespace cutaway::cli {
namespace {

struct SynthArgs {
  std::optional<std::string> shape, type, output;
  std::optional<int64_t> layers, threads;
  std::optional<uint64_t> seed;
  bool list = false, force = false, json = false;

  void add_to(Args& args) {
    args.positional("SHAPE", shape, "A model's name; --list shows them");
    args.positional("TYPE", type,
                    fmt::format("Of the matrices: {}", fmt::join(synthesis_types(), ", ")));
    args.positional("OUT.gguf", output, "The file to write");
    args.flag("--list", list, "Print every SHAPE, its parameters and the size per TYPE");
    args.integer("--layers", layers, 1, 1 << 20, "N", "Only the first N layers of the shape");
    args.unsigned_integer("--seed", seed, "S",
                          "Other weights (default: 0); the same seed gives the same bytes");
    args.flag("--force", force, "Replace OUT.gguf when it exists");
    args.integer("-t,--threads", threads, 1, 1024, "N",
                 "Threads (default: what the machine can use)");
    args.flag("--json", json, "One JSON document on stdout");
    args.footer(
        "The file loads in Cutaway and in llama.cpp. It is as fast as the real model "
        "with every matrix of that type; what it writes means nothing.\n"
        "  cutaway synth llama-3.1-8b Q4_1 8b.gguf && cutaway bench -m 8b.gguf");
  }
};

double millions(uint64_t n) { return static_cast<double>(n) / 1e6; }

int print_list(bool json) {
  const std::vector<SynthesisShape> shapes = synthesis_shapes();
  if (json) {
    Json list = Json::array();
    for (const SynthesisShape& s : shapes) {
      Json bytes = Json::object();
      for (const auto& [type, size] : s.bytes) bytes[type] = size;
      list.push_back({{"name", s.name},
                      {"architecture", s.architecture},
                      {"parameters", s.parameters},
                      {"layers", s.layers},
                      {"d_model", s.d_model},
                      {"n_heads", s.n_heads},
                      {"n_kv_heads", s.n_kv_heads},
                      {"d_head", s.d_head},
                      {"d_mlp", s.d_mlp},
                      {"vocab", s.vocab},
                      {"context", s.context},
                      {"tied", s.tied},
                      {"bytes", std::move(bytes)}});
    }
    write_json({{"shapes", std::move(list)}});
    return end_output(kDone);
  }
  // One of each size: --json has every type.
  const std::vector<std::string> shown = {"F32",  "F16",  "Q8_0", "Q6_K", "Q5_K",
                                          "Q4_1", "Q4_K", "Q3_K", "Q2_K"};
  std::string out = fmt::format("{:<17} {:<8} {:>10}", "shape", "arch", "parameters");
  for (const std::string& type : shown) out += fmt::format(" {:>9}", type);
  out += "\n";
  for (const SynthesisShape& s : shapes) {
    out += fmt::format("{:<17} {:<8} {:>8.1f} M", s.name, s.architecture, millions(s.parameters));
    for (const auto& [type, size] : s.bytes) {
      if (std::find(shown.begin(), shown.end(), type) == shown.end()) continue;
      out += fmt::format(" {:>9}", human_bytes(static_cast<double>(size)));
    }
    out += "\n";
  }
  write_out(out);
  return end_output(kDone);
}

int print_result(const SynthesisResult& made, bool json) {
  if (json) {
    write_json({{"file", made.file},
                {"shape", made.shape},
                {"architecture", made.architecture},
                {"type", made.type},
                {"layers", made.layers},
                {"parameters", made.parameters},
                {"tensors", made.tensors},
                {"bytes", made.bytes},
                {"seed", made.seed},
                {"timings", {{"write_ms", made.write_ms}}}});
  } else {
    write_out(fmt::format("{}: {}, {} layer{}, {:.1f} M random parameters, {}, {} in {:.1f} s\n",
                          printable(made.file), made.shape, made.layers,
                          made.layers == 1 ? "" : "s", millions(made.parameters), made.type,
                          human_bytes(static_cast<double>(made.bytes)), made.write_ms / 1e3));
  }
  return end_output(kDone);
}

}  // namespace

int synth_command(int argc, char** argv) {
  Args args("cutaway synth", "Writes a GGUF file with random weights at a real model's shape.");
  SynthArgs synth;
  synth.add_to(args);
  if (const auto status = args.parse(argc, argv, 2)) return *status;
  if (synth.list) {
    if (synth.shape || synth.layers || synth.seed || synth.force || synth.threads) {
      return args.wrong_usage("--list takes no other argument than --json");
    }
    return print_list(synth.json);
  }
  if (!synth.shape) return args.wrong_usage("SHAPE is missing; --list shows what there is");
  if (!synth.type) {
    return args.wrong_usage(
        fmt::format("TYPE is missing; it is one of {}", fmt::join(synthesis_types(), ", ")));
  }
  if (!synth.output) return args.wrong_usage("OUT.gguf is missing");
  SynthesisRequest request{*synth.shape, *synth.type, *synth.output};
  request.layers = synth.layers.value_or(0);
  request.seed = synth.seed.value_or(0);
  request.threads = static_cast<int>(synth.threads.value_or(0));
  request.overwrite = synth.force;
  interrupt_on_termination();
  ProgressBar bar(300);
  auto made = synthesize(request, bar.callback());
  bar.clear();
  if (!made.ok()) return report(made.error());
  return print_result(*made, synth.json);
}

}  // namespace cutaway::cli
