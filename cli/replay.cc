// cutaway replay: computes a recorded run again, and proves that it is the same.
#include <fmt/format.h>

#include <cmath>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/exit_status.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "cutaway/recording.h"

namespace cutaway::cli {
namespace {

struct ReplayArgs {
  std::optional<std::string> directory, model, taps, output;
  std::optional<int64_t> step, threads;
  TapArgs part;
  AliasArgs aliases;
  TraceArgs trace;
  bool verify = false, json = false;

  void add_to(Args& args) {
    args.positional("DIR", directory, "The recording: a folder that run --record has made");
    args.flag("--verify", verify, "Only whether everything is the same, and what was compared");
    args.integer("--step", step, 0, 1 << 30, "N",
                 "Go as far as choice N of the answer, from 0, and show it");
    args.text("--tap", taps, "NAME,…",
              "Compute these taps again, of the positions up to there (with -o)");
    args.text("-o,--output", output, "FILE", "The .safetensors file for --tap");
    part.add_to(args, true);
    args.flag("--json", json, "One JSON document on stdout");
    args.group("Model and computation");
    args.text("-m,--model", model, "MODEL", "Where the model is now (default: where it was)");
    aliases.add_to(args);
    args.integer("-t,--threads", threads, 1, 1024, "N",
                 "Threads (default: what the machine can really use); they change no bit");
    args.group("Trace");
    trace.add_to(args);
    args.footer(
        "Exit status 0: the same; 1: not the same, or it could not be found out. The kernels are "
        "those of the recording where this machine has them; CUTAWAY_FORCE_ISA chooses others.");
  }

  Status check() const {
    const auto wrong = [](const char* field, const std::string& message) {
      return Error{ErrorCode::kInvalidArgument, message, field};
    };
    if (!directory) return wrong("DIR", "DIR is missing: the folder of a recording");
    const bool kept = taps || part.attention_top;
    if (!kept) CUTAWAY_TRY(part.check_unused("--tap or --attention-top"));
    if (kept != output.has_value()) {
      return wrong("tap", kept ? "--tap needs -o FILE" : "-o has no effect without --tap");
    }
    if (verify && (step || kept)) {
      return wrong("verify", "--verify compares everything; leave --step and --tap out");
    }
    CUTAWAY_TRY(trace.check());
    return aliases.apply();
  }
};

std::string count(int64_t n, const char* what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

std::string verdict(const Json& result) {
  const Json& compared = result.at("compared");
  const Json& kernels = result.at("kernels");
  const auto number = [&](const char* key) { return compared.at(key).get<int64_t>(); };
  std::string out;
  if (result.at("equal").get<bool>()) {
    out = fmt::format("the same: {} over {}, {}", fmt::format("{} layer hashes", number("hashes")),
                      count(number("positions"), "position"),
                      count(number("choices"), "choice") + " with their logits");
  } else {
    const Json& difference = result.at("difference");
    out = "NOT the same:";
    if (difference.contains("layer")) {
      out += fmt::format(" layer {} at position {};", difference["layer"]["layer"].get<int64_t>(),
                         difference["layer"]["position"].get<int64_t>());
    }
    if (difference.contains("logits")) {
      out += fmt::format(" the logits of step {};", difference["logits"]["step"].get<int64_t>());
    }
    if (difference.contains("choice")) {
      const Json& choice = difference["choice"];
      out += fmt::format(" the choice of step {}: {} was recorded, here it is {};",
                         choice["step"].get<int64_t>(), choice["recorded"].get<int64_t>(),
                         choice["here"].get<int64_t>());
    }
    out += " " + difference.at("why").get<std::string>();
  }
  return fmt::format("{} (kernels {}, {:.0f} ms)\n", out, kernels.at("here").get<std::string>(),
                     result.at("timings").at("replay_ms").get<double>());
}

std::string heading(const Json& recording) {
  return fmt::format("run {} of {}, {} after {}, recorded {} with the kernels {}\n",
                     printable(recording.value("run", "")),
                     printable(recording.at("model").value("name", "")),
                     count(static_cast<int64_t>(recording.at("tokens").size()), "token"),
                     count(static_cast<int64_t>(recording.at("prompt_tokens").size()), "token"),
                     printable(recording.value("created", "")),
                     printable(recording.at("session").value("kernels", "")));
}

// One line a token: what was chosen, and how likely the model itself found it.
std::string choices(const Json& recording) {
  std::string out = fmt::format("{:>5} {:>8} {:>8} {:>7} {:>5}  {}\n", "step", "position", "id",
                                "prob", "rank", "piece");
  for (const Json& token : recording.at("tokens")) {
    const Json& ledger = token.at("ledger");
    const Json& chosen = ledger.at("chosen");
    out += fmt::format("{:>5} {:>8} {:>8} {:>7.4f} {:>5}  {}\n", ledger.at("step").get<int64_t>(),
                       ledger.at("position").get<int64_t>(), token.at("id").get<int64_t>(),
                       chosen.at("raw_prob").get<double>(), chosen.at("rank").get<int64_t>(),
                       in_quotes(token.at("piece").get<std::string>()));
  }
  return out;
}

std::string step_text(const Json& step) {
  const Json& ledger = step.at("ledger");
  const Json& chosen = ledger.at("chosen");
  const Json& draw = ledger.at("draw");
  std::string out = fmt::format(
      "step {} at position {}: {} (id {}), probability {:.4f}, rank {} of the model's own "
      "distribution, entropy {:.3f} nats\n",
      step.at("step").get<int64_t>(), ledger.at("position").get<int64_t>(),
      in_quotes(step.at("piece").get<std::string>()), step.at("id").get<int64_t>(),
      chosen.at("raw_prob").get<double>(), chosen.at("rank").get<int64_t>(),
      ledger.at("raw").at("entropy").get<double>());
  if (draw.at("u").is_null()) {
    out += "chosen: the likeliest (temperature 0)\n";
  } else {
    out += fmt::format("drawn: {:.6f} fell into its interval {:.6f} … {:.6f}\n",
                       draw.at("u").get<double>(), draw.at("interval")[0].get<double>(),
                       draw.at("interval")[1].get<double>());
  }
  for (const Json& stage : ledger.at("stages")) {
    out += fmt::format("  {:<20} {} candidates, then {}\n", stage.at("name").get<std::string>(),
                       stage.at("before").at("count").get<int64_t>(),
                       stage.at("after").at("count").get<int64_t>());
  }
  out += fmt::format("{:>8} {:>9} {:>9}\n", "id", "logit", "prob");
  size_t shown = 0;
  for (const Json& token : ledger.at("raw").at("top")) {
    if (++shown > 10) break;
    out +=
        fmt::format("{:>8} {:>9.4f} {:>9.4f}\n", token.at("id").get<int64_t>(),
                    token.at("logit").get<double>(), std::exp(token.at("logprob").get<double>()));
  }
  return out;
}

std::string shown(const ReplayArgs& args, const Json& recording, const Json& result) {
  std::string out = heading(recording);
  if (args.step) {
    out += step_text(result.at("step"));
  } else if (!args.verify) {
    out += choices(recording);
  }
  if (result.contains("taps")) {
    for (const Json& tap : result.at("taps")) {
      out += fmt::format("{} {}\n", printable(tap.at("name").get<std::string>()),
                         tap.at("shape").dump());
    }
    out += fmt::format("written to {}\n", printable(result.at("file").get<std::string>()));
  }
  return out + verdict(result);
}

}  // namespace

int replay_command(int argc, char** argv) {
  Args args("cutaway replay", "Computes a recorded run again, and proves that it is the same.");
  ReplayArgs replay_args;
  replay_args.add_to(args);
  if (const auto status = args.parse(argc, argv, 2)) return *status;
  if (const Status status = replay_args.check(); !status.ok()) {
    return args.wrong_usage(status.error().message);
  }
  const auto recording = read_recording(*replay_args.directory);
  if (!recording.ok()) return report(recording.error());
  const Json& model = recording->value("model", Json::object());
  auto engine = engine_of_recording(replay_args.threads.value_or(0), *recording);
  if (!engine.ok()) return args.wrong_usage(engine.error().message);
  if (const Status status = replay_args.trace.attach(**engine); !status.ok()) {
    return report(status.error());
  }
  auto loaded =
      load_model(**engine, replay_args.model.value_or(model.value("path", std::string())));
  if (!loaded.ok()) return finish(**engine, report(loaded.error()));
  ReplayRequest request;
  request.directory = *replay_args.directory;
  request.step = replay_args.step;
  if (replay_args.taps) request.taps = {*replay_args.taps};
  request.window = replay_args.part.window();
  request.attention_top = replay_args.part.attention_top.value_or(0);
  request.output = replay_args.output.value_or("");
  request.cancelled = interrupted;
  const auto result = replay(**loaded, request);
  if (!result.ok()) return finish(**engine, report(result.error()));
  for (const Json& warning : result->at("warnings")) print_warning(warning.get<std::string>());
  if (replay_args.json) {
    write_json(*result);
  } else {
    write_out(shown(replay_args, *recording, *result));
  }
  return finish(**engine, result->at("equal").get<bool>() ? kDone : kFailed);
}

}  // namespace cutaway::cli
