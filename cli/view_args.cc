#include "cli/view_args.h"

#include <fmt/format.h>

#include <limits>

#include "base/whole_file.h"
#include "cli/exit_status.h"
#include "cli/output.h"
#include "cli/terminal.h"

namespace cutaway::cli {

void ViewArgs::add_to(Args& args) {
  text.add_to(args, "TEXT", "The text, raw; - reads stdin, to the last byte");
  args.text("--tokens", tokens, "ID,ID,…", "Token ids instead of TEXT");
  args.text("-o,--output", output, "FILE",
            "Write it to FILE: .html for one page that opens offline, .json for the data");
  args.flag("--special", special, "Control tokens that TEXT spells are those tokens");
  args.text("--intervene", intervene, "FILE|{…}",
            "Change values at taps: a specification in JSON, or a file of it "
            "(docs/interventions.md)");
  args.flag("--json", json, "One JSON document on stdout");
  args.group("Model and computation");
  model.add_to(args);
  engine.add_to(args);
  session.add_to(args);
  args.group("Trace");
  trace.add_to(args);
}

Status ViewArgs::check() const {
  const auto wrong = [](const char* field, const std::string& message) {
    return Error{ErrorCode::kInvalidArgument, message, field};
  };
  if (output && !output->ends_with(".html") && !output->ends_with(".json")) {
    return wrong("output", fmt::format("-o: '{}' must end in .html (a page) or .json", *output));
  }
  if (output && json) {
    return wrong("json", "--json writes to stdout and -o to a file; one is needed");
  }
  if (tokens && (text.text || text.file)) {
    return wrong("tokens", "--tokens and TEXT are both there; one is needed");
  }
  if (tokens && special) {
    return wrong("special", "--special has no effect on --tokens; leave it out");
  }
  CUTAWAY_TRY(trace.check());
  return session.options().ok() ? Status() : Status(session.options().error());
}

bool ViewArgs::wants_page() const { return output && output->ends_with(".html"); }

ViewInput read_input(const Args& args, const ViewArgs& view) {
  ViewInput out;
  if (const Status status = view.check(); !status.ok()) {
    out.status = args.wrong_usage(status.error().message);
    return out;
  }
  if (view.intervene) {
    auto what = interventions_of(*view.intervene);
    if (!what.ok()) {
      out.status = report(what.error());
      return out;
    }
    out.interventions = ViewInterventions{std::move(*what), std::nullopt};
  }
  if (view.tokens) {
    auto ids = parse_integers("--tokens", *view.tokens, 0, std::numeric_limits<int32_t>::max());
    if (!ids.ok()) {
      out.status = args.wrong_usage(ids.error().message);
      return out;
    }
    out.tokens.emplace(ids->begin(), ids->end());
    return out;
  }
  auto read = view.text.read();
  if (!read.ok()) {
    out.status = report(read.error());
  } else if (!read->has_value()) {
    out.status = args.wrong_usage("TEXT or --tokens is missing");
  } else {
    out.text = std::move(**read);
  }
  return out;
}

int write_view(const ViewArgs& view, const std::string& name, const Json& result,
               const std::string& table) {
  for (const Json& warning : result.at("warnings")) print_warning(warning.get<std::string>());
  if (view.json) {
    write_json(result);
    return kDone;
  }
  if (!view.output) {
    write_out(table);
    return kDone;
  }
  std::string text;
  if (view.wants_page()) {
    auto page = html_page(name, result);
    if (!page.ok()) return report(page.error());
    text = std::move(*page);
  } else {
    text = to_text(result) + "\n";
  }
  if (const Status status = write_whole_file(*view.output, text); !status.ok()) {
    return report(status.error());
  }
  write_out(fmt::format("written to {} ({})\n", printable(*view.output),
                        human_bytes(static_cast<double>(text.size()))));
  return kDone;
}

}  // namespace cutaway::cli
