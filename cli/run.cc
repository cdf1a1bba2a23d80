// cutaway run: one answer to one prompt; without a prompt on a terminal, a chat (chat.cc).
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <limits>

#include "cli/chat.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/exit_status.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/terminal.h"

namespace cutaway::cli {
namespace {

constexpr int64_t kMaxTopLogprobs = 20;
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

struct RunArgs {
  ModelArgs model;
  EngineArgs engine;
  SessionArgs session;
  TraceArgs trace;
  TextArgs prompt;
  std::optional<std::string> system;
  bool raw = false, json = false, ledger = false;
  std::optional<int64_t> max_tokens, top_logprobs;
  SamplingOptions sampling;
  std::vector<std::string> logit_bias, stop;
  std::optional<std::string> record, record_taps, record_trace, intervene;
  TapArgs record_part;

  void add_to(Args& args);
  // What is wrong with the flags before anything is read or loaded.
  Status check() const;
  Result<GenerateRequest> request() const;
};

void RunArgs::add_to(Args& args) {
  prompt.add_to(args, "PROMPT",
                "What to answer; - reads stdin. From stdin and files one final newline is no part "
                "of it. Without PROMPT on a terminal: chat");
  args.group("Model");
  model.add_to(args);
  args.group("Prompt");
  args.text("--system", system, "TEXT", "The system message");
  args.flag("--raw", raw, "No chat template: the model continues PROMPT as it is");
  args.group("Answer");
  args.integer("-n,--max-tokens", max_tokens, 0, kNoLimit, "N",
               "At most N tokens (default: what is left of the context)");
  args.texts("--stop", stop, "TEXT", "End before TEXT (may be repeated)");
  args.integer("--top-logprobs", top_logprobs, 0, kMaxTopLogprobs, "N",
               "With --json: N alternatives per token, of the model's own distribution");
  args.flag("--ledger", ledger,
            "With --json: for each token what every sampling stage did, the draw and its interval");
  args.flag("--json", json, "One JSON document on stdout");
  args.group("Recording");
  args.text("--record", record, "DIR",
            "Leave a recording in the new folder DIR: cutaway replay computes any step again");
  args.text("--record-taps", record_taps, "NAME,…",
            "Keep these taps in it (cutaway capture --help lists them)");
  args.text("--record-trace", record_trace, "LEVEL",
            "Keep the run's own trace in it: off, phases (default: two lines a token), functions "
            "or tensors");
  record_part.add_to(args, true);
  args.group("Interventions");
  args.text("--intervene", intervene, "FILE|{…}",
            "Change values at taps, force or ban tokens: a specification in JSON, or a file of it "
            "(docs/interventions.md). With --json: how often each took effect");
  args.group("Sampling (default: what the model file recommends, else temperature 0)");
  args.number("--temperature", sampling.temperature, "T", "0: always the likeliest token");
  args.integer("--top-k", sampling.top_k, std::numeric_limits<int64_t>::min(), kNoLimit, "K",
               "Keep the K likeliest");
  args.number("--top-p", sampling.top_p, "P", "Keep the likeliest whose mass reaches P");
  args.number("--min-p", sampling.min_p, "P", "Keep those of at least P times the likeliest's");
  args.number("--typical-p", sampling.typical_p, "P", "Keep the most typical of mass P");
  args.number("--repeat-penalty", sampling.repeat_penalty, "R",
              "Divides positive logits of tokens seen in prompt and output");
  args.number("--presence-penalty", sampling.presence_penalty, "R",
              "Subtracted once from tokens of the output");
  args.number("--frequency-penalty", sampling.frequency_penalty, "R",
              "Subtracted per occurrence in the output");
  args.texts("--logit-bias", logit_bias, "ID=B", "Adds B to a token's logit (may be repeated)");
  args.unsigned_integer("--seed", sampling.seed, "S",
                        "Of the random draws (default: from the system; echoed)");
  args.group("Computation");
  engine.add_to(args);
  session.add_to(args);
  args.group("Trace");
  trace.add_to(args);
  args.footer(
      "Ctrl-C ends the generation: what there is stays, exit status 130. A closed stdout ends it "
      "too: exit status 1.\nCUTAWAY_FORCE_ISA=ref|avx2|avx512|neon forces a kernel table.");
}

Status RunArgs::check() const {
  const auto wrong = [](const std::string& field, const std::string& message) {
    return Error{ErrorCode::kInvalidArgument, message, field};
  };
  if (system && raw) {
    return wrong("system",
                 "--system and --raw contradict each other: a raw prompt has no system message");
  }
  if (prompt.text && prompt.file) {
    return wrong("file", "PROMPT and --file are both there; one is needed");
  }
  if (top_logprobs && !json) {
    return wrong("top_logprobs", "--top-logprobs has no effect without --json; add it");
  }
  if (record_taps && !record) {
    return wrong("record_taps", "--record-taps has no effect without --record DIR; add it");
  }
  if (record_trace && !record) {
    return wrong("record_trace", "--record-trace has no effect without --record DIR; add it");
  }
  if (!record) CUTAWAY_TRY(record_part.check_unused("--record DIR"));
  if (!record_taps && !record_part.attention_top) {
    CUTAWAY_TRY(record_part.check_unused("--record-taps or --attention-top"));
  }
  if (ledger && !json) {
    return wrong("ledger", "--ledger has no effect without --json; add it");
  }
  CUTAWAY_TRY(trace.check());
  CUTAWAY_TRY(model.aliases.apply());
  CUTAWAY_ASSIGN([[maybe_unused]] const SessionOptions options, session.options());
  return {};
}

// "ID=B". Ids of other models are for the library to refuse.
Result<std::pair<int64_t, double>> parse_bias(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) {
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("--logit-bias: '{}' is not accepted; it takes ID=B, like 42=-1.5", text),
        "logit_bias"};
  }
  CUTAWAY_ASSIGN(const int64_t id,
                 parse_integer("--logit-bias: ID", text.substr(0, equals), 0, kNoLimit));
  CUTAWAY_ASSIGN(const double bias, parse_number("--logit-bias: B", text.substr(equals + 1)));
  return std::pair{id, bias};
}

Result<GenerateRequest> RunArgs::request() const {
  GenerateRequest request;
  request.max_tokens = max_tokens.value_or(request.max_tokens);
  request.sampling = sampling;
  request.stop = stop;
  request.logprobs = json;          // nothing else shows them
  request.cancelled = interrupted;  // in the middle of a long prompt, too
  request.ledger = ledger;
  if (record) {
    request.record = {*record, record_taps ? std::vector{*record_taps} : std::vector<std::string>(),
                      record_part.window(), record_part.attention_top.value_or(0)};
    if (record_trace) {
      CUTAWAY_ASSIGN(request.record->trace, parse_trace_level(*record_trace));
    }
  }
  if (intervene) {
    CUTAWAY_ASSIGN(request.interventions, interventions_of(*intervene));
  }
  request.top_logprobs = static_cast<int32_t>(top_logprobs.value_or(0));
  for (const std::string& text : logit_bias) {
    CUTAWAY_ASSIGN(const auto bias, parse_bias(text));
    if (!request.sampling.logit_bias.insert(bias).second) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("--logit-bias: token {} is there twice", bias.first), "logit_bias"};
    }
  }
  return request;
}

std::string without_final_newline(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

void print_summary(const Generation& generation) {
  const Timings& t = generation.timings;
  print_error(
      fmt::format("{} tokens in, {} out · {:.0f} tok/s · first token after {:.0f} ms · {}{}",
                  generation.usage.input_tokens, generation.usage.output_tokens, t.decode_tps,
                  t.ttft_ms, generation.finish_reason,
                  generation.stop.empty() ? "" : " (" + in_quotes(generation.stop) + ")"));
}

// Writes the answer as it comes, unless it is to be shown as a whole. On a terminal the model's
// control characters do not reach it.
StreamFn streaming(bool whole) {
  const bool terminal = is_terminal(STDOUT_FILENO);
  return [whole, terminal](const StreamEvent& event) {
    if (!whole && !event.text.empty()) {
      write_out(terminal ? printable_lines(event.text) : std::string(event.text));
    }
    return !interrupted() && !output_failed();
  };
}

int answer(const RunArgs& args, Loaded& loaded, GenerateRequest request, std::string prompt) {
  if (args.raw) {
    request.prompt = std::move(prompt);
  } else {
    request.messages = Json::array();
    if (args.system) request.messages.push_back({{"role", "system"}, {"content", *args.system}});
    request.messages.push_back({{"role", "user"}, {"content", prompt}});
  }
  auto options = args.session.options();
  if (!options.ok()) return report(options.error());
  auto session = loaded.model->start(*options);
  if (!session.ok()) return finish(*loaded.engine, report(session.error()));
  const bool traced_here = args.trace.on_terminal() && is_terminal(STDOUT_FILENO) && !args.json;
  auto generation = (*session)->generate(request, streaming(args.json || traced_here));
  session->reset();  // its last records belong before the answer
  if (!generation.ok()) return finish(*loaded.engine, report(generation.error()));

  if (args.json) {
    write_json(to_json(*generation));
  } else {
    if (traced_here) {
      // finish() reports a trace that failed.
      [[maybe_unused]] const Status flushed = loaded.engine->flush_trace();
      write_out(printable_lines(generation->text));
    }
    if (!generation->text.ends_with('\n')) write_out("\n");
  }
  for (const std::string& warning : generation->warnings) print_warning(warning);
  const bool stopped = interrupted() && generation->finish_reason == "cancelled";
  const int status = finish(*loaded.engine, stopped ? interrupt_status() : kDone);
  if (!args.json && !output_failed() && is_terminal(STDERR_FILENO)) print_summary(*generation);
  return status;
}

}  // namespace

int run_command(int argc, char** argv) {
  Args args("cutaway run", "Answers a prompt.");
  RunArgs run;
  run.add_to(args);
  if (const auto status = args.parse(argc, argv, 2)) return *status;
  if (const Status status = run.check(); !status.ok()) {
    return args.wrong_usage(status.error().message);
  }
  auto request = run.request();
  if (!request.ok()) {
    const Error& error = request.error();
    return error.field == "intervene" ? report(error) : args.wrong_usage(error.message);
  }

  if (run.record) interrupt_on_termination();  // what was recorded until then stays
  auto prompt = run.prompt.read();
  if (!prompt.ok()) return report(prompt.error());
  const bool chatting = !prompt->has_value();
  if (chatting && run.record) {
    return args.wrong_usage("PROMPT is missing: a recording is of one answer, not of a chat");
  }
  if (chatting && run.intervene) {
    return args.wrong_usage("PROMPT is missing: interventions are for one answer, not for a chat");
  }
  if (chatting && (run.json || run.raw || !is_terminal(STDOUT_FILENO))) {
    return args.wrong_usage(
        fmt::format("PROMPT is missing: a chat needs a terminal{}", run.json ? ", and has no --json"
                                                                    : run.raw ? ", and has no --raw"
                                                                              : ""));
  }
  std::string text = prompt->value_or("");
  if (!run.prompt.text || *run.prompt.text == "-") text = without_final_newline(std::move(text));
  if (!chatting && !run.raw && text.empty()) {
    return args.wrong_usage("PROMPT is empty; there is nothing to answer");
  }

  Loaded loaded = load(run.engine, {run.model.model, {}}, &run.trace);
  if (loaded.status) return *loaded.status;
  if (!run.raw && !loaded.model->has_chat_template()) {
    print_error(fmt::format(
        "cutaway: the model '{}' has no chat template; --raw lets it continue the prompt as it is",
        loaded.model->name()));
    return finish(*loaded.engine, kFailed);
  }
  if (interrupted()) return finish(*loaded.engine, kInterrupted);
  if (!chatting) return answer(run, loaded, *request, text);
  auto options = run.session.options();
  if (!options.ok()) return report(options.error());
  Engine* traced_here = run.trace.on_terminal() ? loaded.engine.get() : nullptr;
  return finish(*loaded.engine,
                chat(*loaded.model, *options, *request, run.system.value_or(""), traced_here));
}

}  // namespace cutaway::cli
