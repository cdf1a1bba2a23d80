// cutaway report: a recorded run as one page that opens offline.
#include <fmt/format.h>

#include <filesystem>

#include "base/whole_file.h"
#include "cli/commands.h"
#include "cli/exit_status.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "cli/view_args.h"
#include "cutaway/recording.h"
#include "cutaway/report.h"

namespace cutaway::cli {
namespace {

struct ReportArgs {
  std::optional<std::string> directory, model, output;
  std::optional<int64_t> threads;
  AliasArgs aliases;
  TraceArgs trace;
  bool no_model = false, json = false;

  void add_to(Args& args) {
    args.positional("DIR", directory, "The recording: a folder that run --record has made");
    args.text("-o,--output", output, "FILE", "The page: one .html file, or .json for its data");
    args.flag("--json", json, "One JSON document on stdout");
    args.group("Model and computation");
    args.text("-m,--model", model, "MODEL", "Where the model is now (default: where it was)");
    args.flag("--no-model", no_model,
              "Only what the recording says by itself: no proof, no lens, no attention");
    aliases.add_to(args);
    args.integer("-t,--threads", threads, 1, 1024, "N",
                 "Threads (default: what the machine can really use); they change no bit");
    args.group("Trace");
    trace.add_to(args);
    args.footer(
        "Where the model is not there any more, the page says so and shows the rest. A long run is "
        "shown in part: the page lists what was left out, and the command that gives it.");
  }

  Status check() const {
    const auto wrong = [](const char* field, const std::string& message) {
      return Error{ErrorCode::kInvalidArgument, message, field};
    };
    if (!directory) return wrong("DIR", "DIR is missing: the folder of a recording");
    if (output.has_value() == json) {
      return wrong("output", json ? "--json writes to stdout and -o to a file; one is needed"
                                  : "-o FILE is missing: the page to write, like -o report.html");
    }
    if (output && !output->ends_with(".html") && !output->ends_with(".json")) {
      return wrong("output", fmt::format("-o: '{}' must end in .html (a page) or .json", *output));
    }
    if (no_model && model) return wrong("no-model", "--no-model and -m contradict each other");
    CUTAWAY_TRY(trace.check());
    return aliases.apply();
  }
};

// A model that is not where it was, or is another one there, leaves a report without it; one that
// the user names must be the right one.
Result<Json> make_report(const ReportArgs& args, Engine& engine, const Json& recording) {
  ReportRequest request;
  request.directory = *args.directory;
  request.cancelled = interrupted;
  if (args.no_model) {
    request.without_model = "left out as asked (--no-model)";
    return report(request, nullptr);
  }
  const std::string where = recording.at("model").at("path").get<std::string>();
  std::error_code code;
  if (!args.model && !std::filesystem::exists(where, code)) {
    request.without_model = where + " is not there any more; -m says where the model is now";
    return report(request, nullptr);
  }
  auto model = load_model(engine, args.model.value_or(where));
  if (model.ok()) {
    auto made = report(request, model->get());
    if (made.ok() || args.model || made.error().field != "model") return made;
    request.without_model = made.error().message;
  } else if (args.model || model.error().code == ErrorCode::kCancelled) {
    return model.error();
  } else {
    request.without_model = model.error().message;
  }
  return report(request, nullptr);
}

int write_report(const ReportArgs& args, const Json& made) {
  const Json& why = made.at("without_model");
  if (why.is_string()) print_warning("without the model: " + why.get<std::string>());
  if (args.json) {
    write_json(made);
    return kDone;
  }
  std::string text = to_text(made) + "\n";
  if (args.output->ends_with(".html")) {
    auto page = html_page("report", made);
    if (!page.ok()) return report(page.error());
    text = std::move(*page);
  }
  if (const Status status = write_whole_file(*args.output, text); !status.ok()) {
    return report(status.error());
  }
  for (const Json& part : made.at("left_out")) {
    print_warning(fmt::format("{} of {} {} are shown; all of them: {}",
                              part.at("shown").get<int64_t>(), part.at("of").get<int64_t>(),
                              part.at("what").get<std::string>(),
                              part.at("how").get<std::string>()));
  }
  write_out(fmt::format("written to {} ({})\n", printable(*args.output),
                        human_bytes(static_cast<double>(text.size()))));
  return kDone;
}

}  // namespace

int report_command(int argc, char** argv) {
  Args args("cutaway report", "A recorded run as one page that opens offline.");
  ReportArgs wanted;
  wanted.add_to(args);
  if (const auto status = args.parse(argc, argv, 2)) return *status;
  if (const Status status = wanted.check(); !status.ok()) {
    return args.wrong_usage(status.error().message);
  }
  auto recording = read_recording(*wanted.directory);
  if (!recording.ok()) return report(recording.error());
  auto engine = engine_of_recording(wanted.threads.value_or(0), *recording);
  if (!engine.ok()) return args.wrong_usage(engine.error().message);
  if (const Status status = wanted.trace.attach(**engine); !status.ok()) {
    return report(status.error());
  }
  auto made = make_report(wanted, **engine, *recording);
  if (!made.ok()) return finish(**engine, report(made.error()));
  return finish(**engine, write_report(wanted, *made));
}

}  // namespace cutaway::cli
