#include "cli/args.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/suggest.h"
#include "cli/exit_status.h"
#include "cli/output.h"
#include "cli/terminal.h"

namespace cutaway::cli {
namespace {

constexpr size_t kHelpColumn = 28;  // where descriptions begin

template <typename T>
bool whole(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end;
}

std::string range_text(int64_t min, int64_t max) {
  return max == std::numeric_limits<int64_t>::max() ? fmt::format("{} or more", min)
                                                    : fmt::format("{} … {}", min, max);
}

Error bad_value(const std::string& field, const std::string& text, const std::string& accepted) {
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("{}: '{}' is not accepted; it takes {}", field, text, accepted), field};
}

// CLI11 takes the next word as the value of "--stop=": make the empty value a word of its own.
std::vector<std::string> words_of(int argc, char** argv, int first) {
  std::vector<std::string> words;
  bool only_positionals = false;
  for (int i = first; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--") only_positionals = true;
    if (!only_positionals && word.size() > 3 && word.starts_with("--") && word.back() == '=' &&
        word.find('=') == word.size() - 1) {
      word.pop_back();
      words.push_back(word);
      word.clear();
    }
    words.push_back(word);
  }
  return words;
}

// CLI11's help with long descriptions on several lines, and one blank line between groups.
std::string wrapped(const std::string& help, int columns) {
  const size_t width = static_cast<size_t>(std::clamp(columns, 60, 100));
  std::string out;
  bool blank = false;
  for (size_t begin = 0; begin < help.size();) {
    const size_t end = std::min(help.find('\n', begin), help.size());
    std::string line = help.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty() && blank) continue;
    blank = line.empty();
    const size_t indent = line.starts_with("  ") ? kHelpColumn : 0;
    // CLI11 pads to a count of bytes; "ID,…" has more of them than columns.
    if (indent > 0 && line.size() > indent && line[indent - 1] == ' ' && line[indent] != ' ') {
      line.insert(indent, indent - display_width(line.substr(0, indent)), ' ');
    }
    while (display_width(line) > width) {
      size_t cut = line.rfind(' ', width);
      if (cut == std::string::npos || cut <= indent) break;
      out += line.substr(0, cut) + "\n";
      line = std::string(indent, ' ') + line.substr(cut + 1);
    }
    out += line + "\n";
  }
  return out;
}

}  // namespace

struct Args::Impl {
  CLI::App app;
  std::string name;
  std::string group = "Options";
  std::vector<std::string> known;        // "-m", "--model", …
  std::vector<std::string> positionals;  // names, for messages

  using Take = std::function<Status(const std::string&)>;
  CLI::Option* add(const std::string& flags, const std::string& type, const std::string& help,
                   bool list, const Take& take) {
    const std::string field = flags.substr(flags.rfind(',') + 1);
    const auto callback = [=](const CLI::results_t& values) {
      if (values.size() > 1 && !list) {
        throw CLI::ValidationError(
            fmt::format("{} is there {} times; it takes one value", field, values.size()),
            CLI::ExitCodes::ValidationError);
      }
      for (const std::string& value : values) {
        if (const Status status = take(value); !status.ok()) {
          // The message names the flag already.
          throw CLI::ValidationError(status.error().message, CLI::ExitCodes::ValidationError);
        }
      }
      return true;
    };
    CLI::Option* option = app.add_option(flags, callback, help);
    // CLI11 would refuse a second value in words of its own.
    option->type_name(type)->group(group)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    remember(flags);
    return option;
  }
  void remember(const std::string& flags) {
    for (const std::string& flag : CLI::detail::split(flags, ',')) known.push_back(flag);
  }
};

Args::Args(const std::string& name, const std::string& help) : impl_(std::make_unique<Impl>()) {
  impl_->app.name(name);
  impl_->app.description(help);
  impl_->app.get_formatter()->column_width(kHelpColumn);
  impl_->app.set_help_flag("-h,--help", "Print this help")->group("Options");
  impl_->name = name;
  impl_->remember("-h,--help");
}
Args::~Args() = default;

void Args::group(const std::string& name) { impl_->group = name; }
void Args::footer(const std::string& text) { impl_->app.footer(text); }

void Args::flag(const std::string& flags, bool& out, const std::string& help) {
  impl_->app.add_flag(flags, out, help)->group(impl_->group);
  impl_->remember(flags);
}

void Args::text(const std::string& flags, std::optional<std::string>& out, const std::string& type,
                const std::string& help) {
  impl_->add(flags, type, help, false, [&out](const std::string& value) {
    out = value;
    return Status();
  });
}

void Args::texts(const std::string& flags, std::vector<std::string>& out, const std::string& type,
                 const std::string& help) {
  impl_->add(flags, type, help, true, [&out](const std::string& value) {
    out.push_back(value);
    return Status();
  });
}

void Args::integer(const std::string& flags, std::optional<int64_t>& out, int64_t min, int64_t max,
                   const std::string& type, const std::string& help) {
  const std::string field = flags.substr(flags.rfind(',') + 1);
  impl_->add(flags, type, help, false, [=, &out](const std::string& value) -> Status {
    CUTAWAY_ASSIGN(out, parse_integer(field, value, min, max));
    return {};
  });
}

void Args::unsigned_integer(const std::string& flags, std::optional<uint64_t>& out,
                            const std::string& type, const std::string& help) {
  const std::string field = flags.substr(flags.rfind(',') + 1);
  impl_->add(flags, type, help, false, [=, &out](const std::string& value) -> Status {
    uint64_t parsed = 0;
    if (!whole(value, parsed)) return bad_value(field, value, "an integer, 0 … 2^64 − 1");
    out = parsed;
    return {};
  });
}

void Args::number(const std::string& flags, std::optional<double>& out, const std::string& type,
                  const std::string& help) {
  const std::string field = flags.substr(flags.rfind(',') + 1);
  impl_->add(flags, type, help, false, [=, &out](const std::string& value) -> Status {
    CUTAWAY_ASSIGN(out, parse_number(field, value));
    return {};
  });
}

void Args::positional(const std::string& name, std::optional<std::string>& out,
                      const std::string& help) {
  impl_->positionals.push_back(name);
  impl_->add(name, "", help, false, [&out](const std::string& value) {
    out = value;
    return Status();
  });
}

std::optional<int> Args::parse(int argc, char** argv, int first) {
  std::vector<std::string> words = words_of(argc, argv, first);
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  try {
    impl_->app.parse(words);
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    write_out(wrapped(impl_->app.help(), terminal_width(STDOUT_FILENO)));
    return end_output(kDone);
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> extras = impl_->app.remaining();
    const std::string extra = extras.empty() ? "" : extras.front();
    if (extra.size() < 2 || extra.front() != '-') {
      return wrong_usage(fmt::format(
          "unexpected argument '{}'{}", extra,
          impl_->positionals.size() != 1
              ? ""
              : fmt::format("; {} is one argument: quote it", impl_->positionals.front())));
    }
    const std::string flag = extra.substr(0, extra.find('='));
    std::vector<std::string> same_form;  // a long flag for a long one
    std::copy_if(impl_->known.begin(), impl_->known.end(), std::back_inserter(same_form),
                 [&](const auto& f) { return f.starts_with("--") == flag.starts_with("--"); });
    const std::string near = nearest_word(flag, same_form);
    return wrong_usage(fmt::format(
        "unknown flag '{}'{}{}", flag, near.empty() ? "" : fmt::format("; did you mean {}?", near),
        impl_->positionals.empty()
            ? ""
            : fmt::format(" ({} that begins with '-' goes after --)", impl_->positionals.front())));
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string what = error.what();  // "--model: 1 required MODEL missing"
    return wrong_usage(what.substr(0, what.find(':')) + ": its value is missing");
  } catch (const CLI::Error& error) {
    return wrong_usage(error.what());
  }
}

int Args::wrong_usage(const std::string& message) const {
  print_error(fmt::format("{}: {}", impl_->name, message));
  print_error(fmt::format("`{} --help` shows what there is.", impl_->name));
  return kWrongUsage;
}

Result<int64_t> parse_integer(const std::string& field, const std::string& text, int64_t min,
                              int64_t max) {
  int64_t value = 0;
  if (!whole(text, value) || value < min || value > max) {
    return bad_value(field, text, "an integer, " + range_text(min, max));
  }
  return value;
}

Result<double> parse_number(const std::string& field, const std::string& text) {
  double value = 0;
  if (!whole(text, value) || !std::isfinite(value)) {
    return bad_value(field, text, "a finite number");
  }
  return value;
}

Result<std::vector<int64_t>> parse_integers(const std::string& field, const std::string& text,
                                            int64_t min, int64_t max) {
  std::vector<int64_t> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    CUTAWAY_ASSIGN(const int64_t value,
                   parse_integer(field, text.substr(begin, end - begin), min, max));
    out.push_back(value);
    begin = end + 1;
  }
  return out;
}

}  // namespace cutaway::cli
