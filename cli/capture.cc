// cutaway capture: runs a text through the model and keeps the named taps as safetensors.
#include <fmt/format.h>

#include <limits>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/exit_status.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/terminal.h"

namespace cutaway::cli {
namespace {

// TransformerLens's names. docs/capture.md has their shapes and the names that mean the same.
constexpr const char* kTapNames =
    "Taps ({l} is a layer, 0 is the first):\n"
    "  logits, hook_tokens, hook_embed, ln_final.hook_scale, ln_final.hook_normalized\n"
    "  blocks.{l}.hook_resid_pre, .hook_resid_mid, .hook_resid_post,\n"
    "            .hook_attn_out, .hook_mlp_out\n"
    "  blocks.{l}.ln1.hook_scale, .hook_normalized; blocks.{l}.ln2 likewise\n"
    "  blocks.{l}.attn.hook_q, .hook_k, .hook_v, .hook_rot_q, .hook_rot_k,\n"
    "            .hook_attn_scores, .hook_pattern, .hook_z, .hook_result\n"
    "  blocks.{l}.mlp.hook_pre, .hook_pre_linear, .hook_post; in a mixture of experts also\n"
    "            .hook_router_logits, .hook_expert_indices, .hook_expert_weights\n"
    "Names of Hugging Face and ggml work too: model.layers.3.mlp, l_out-3.\n"
    "Many at once: all; pattern (of every layer), pattern-3; blocks.0-3.hook_resid_post;\n"
    "blocks.*.attn.hook_pattern, where * is any text.";

std::string table(const Json& result) {
  std::string out;
  for (const Json& tap : result.at("taps")) {
    std::string shape;
    for (const Json& size : tap.at("shape")) {
      shape += (shape.empty() ? "" : ",") + std::to_string(size.get<int64_t>());
    }
    out += fmt::format("{:<6} {:<24} {}\n", tap.at("dtype").get<std::string>(), shape,
                       printable(tap.at("name").get<std::string>()));
  }
  const Json& timings = result.at("timings");
  return out + fmt::format("written to {} (forward {:.1f} ms, write {:.1f} ms)\n",
                           printable(result.at("file").get<std::string>()),
                           timings.at("forward_ms").get<double>(),
                           timings.at("write_ms").get<double>());
}

struct CaptureArgs {
  ModelArgs model;
  EngineArgs engine;
  SessionArgs session;
  TraceArgs trace;
  TextArgs text;
  TapArgs part;
  std::optional<std::string> tokens, taps, output, intervene;
  bool special = false, json = false;

  void add_to(Args& args);
  Result<CaptureRequest> request() const;
};

void CaptureArgs::add_to(Args& args) {
  text.add_to(args, "TEXT", "The text, raw; - reads stdin, to the last byte");
  args.text("--tokens", tokens, "ID,ID,…", "Token ids instead of TEXT");
  args.text("--taps", taps, "NAME,…",
            "What to keep: logits, pattern-3, blocks.*.hook_resid_post, all, … (below)");
  args.text("-o,--output", output, "FILE", "The .safetensors file to write");
  args.flag("--special", special, "Control tokens that TEXT spells are those tokens");
  args.text("--intervene", intervene, "FILE|{…}",
            "Change values at taps: a specification in JSON, or a file of it "
            "(docs/interventions.md)");
  args.flag("--json", json, "One JSON document on stdout");
  args.group("What of it");
  part.add_to(args, false);
  args.group("Model and computation");
  model.add_to(args);
  engine.add_to(args);
  session.add_to(args);
  args.group("Trace");
  trace.add_to(args);
  args.footer(kTapNames);
}

Result<CaptureRequest> CaptureArgs::request() const {
  const auto wrong = [](const std::string& field, const std::string& message) {
    return Error{ErrorCode::kInvalidArgument, message, field};
  };
  CaptureRequest request;
  if (!taps && !part.attention_top) {
    return wrong("taps", "--taps is missing; it names what to keep, like --taps logits");
  }
  if (!output) return wrong("output", "-o FILE is missing");
  if (taps) request.taps = {*taps};
  request.window = part.window();
  request.attention_top = part.attention_top.value_or(0);
  request.output = *output;
  request.parse_special = special;
  request.cancelled = interrupted;
  if (intervene) {
    CUTAWAY_ASSIGN(request.interventions, interventions_of(*intervene));
  }
  if (!tokens) return request;
  if (text.text || text.file) {
    return wrong("tokens", "--tokens and TEXT are both there; one is needed");
  }
  if (special) return wrong("special", "--special has no effect on --tokens; leave it out");
  CUTAWAY_ASSIGN(const auto ids,
                 parse_integers("--tokens", *tokens, 0, std::numeric_limits<int32_t>::max()));
  request.tokens.emplace(ids.begin(), ids.end());
  return request;
}

}  // namespace

int capture_command(int argc, char** argv) {
  Args args("cutaway capture", "Runs a text through the model and keeps what is inside.");
  CaptureArgs capture;
  capture.add_to(args);
  if (const auto status = args.parse(argc, argv, 2)) return *status;
  auto request = capture.request();
  if (!request.ok()) {
    const Error& error = request.error();
    return error.field == "intervene" ? report(error) : args.wrong_usage(error.message);
  }
  auto options = capture.session.options();
  if (!options.ok()) return args.wrong_usage(options.error().message);
  if (!request->tokens) {
    auto read = capture.text.read();
    if (!read.ok()) return report(read.error());
    if (!read->has_value()) return args.wrong_usage("TEXT or --tokens is missing");
    request->text = std::move(**read);
  }
  interrupt_on_termination();  // the file is large: what there is of it is not left behind
  Loaded loaded = load(capture.engine, capture.model, &capture.trace);
  if (loaded.status) return *loaded.status;
  auto result = loaded.model->capture(*request, *options);
  if (!result.ok()) return finish(*loaded.engine, report(result.error()));
  for (const Json& warning : result->at("warnings")) print_warning(warning.get<std::string>());
  if (capture.json) {
    write_json(*result);
  } else {
    write_out(table(*result));
  }
  return finish(*loaded.engine, kDone);
}

}  // namespace cutaway::cli
