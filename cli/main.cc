// cutaway: the program. Chooses the subcommand; each has a file of its own.
#include <fmt/format.h>

#include <new>
#include <string>
#include <vector>

#include "base/suggest.h"
#include "cli/commands.h"
#include "cli/exit_status.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "cutaway/engine.h"

namespace cutaway::cli {
namespace {

struct Command {
  const char* name;
  const char* summary;
  int (*main)(int argc, char** argv);
};

constexpr Command kCommands[] = {
    {"run", "One answer to a prompt, or a chat on a terminal", run_command},
    {"tokenize", "Ids, pieces and byte ranges of a text; every merge", tokenize_command},
    {"capture", "Run a text and keep what is inside as safetensors", capture_command},
    {"lens", "What each layer would have said, by token", lens_command},
    {"attention", "Where each head looked", attention_command},
    {"replay", "Compute a recorded run again, and prove that it is the same", replay_command},
    {"report", "A recorded run as one page that opens offline", report_command},
    {"info", "The machine, the kernels chosen; a model's metadata", info_command},
    {"bench", "Prefill and decode speed", bench_command},
    {"eval", "Perplexity of a text; what a quantised file lost", eval_command},
    {"quantize", "A model file in another type: smaller, a bit worse", quantize_command},
    {"imatrix", "What counts in a model, for a better quantize", imatrix_command},
    {"synth", "A file with random weights at a real model's shape", synth_command},
    {"pull", "Install a model", pull_command},
    {"list", "The installed models", list_command},
    {"rm", "Remove an installed model", rm_command},
};

std::string help_text() {
  std::string text =
      "cutaway: an LLM inference engine with its housing cut away\n\n"
      "usage: cutaway COMMAND [FLAGS]   cutaway help COMMAND   cutaway --version\n\n";
  for (const Command& command : kCommands) {
    text += fmt::format("  {:<10}{}\n", command.name, command.summary);
  }
  text +=
      "\n  cutaway pull smollm2-135m\n"
      "  cutaway run \"What is 2 + 2?\"\n"
      "  cutaway run --trace phases \"What is 2 + 2?\"\n\n"
      "Models live in $CUTAWAY_HOME/models (default ~/.cache/cutaway/models).\n"
      "Exit status: 0 done, 1 failed, 2 wrong usage, 130 Ctrl-C.\n";
  return text;
}

const Command* find(const std::string& name) {
  for (const Command& command : kCommands) {
    if (name == command.name) return &command;
  }
  return nullptr;
}

int unknown_command(const std::string& name) {
  std::vector<std::string> known = {"help", "--help", "--version"};
  for (const Command& command : kCommands) known.emplace_back(command.name);
  const std::string near = nearest_word(name, known);
  print_error(fmt::format("cutaway: unknown {} '{}'{}", name.starts_with("-") ? "flag" : "command",
                          name, near.empty() ? "" : fmt::format("; did you mean {}?", near)));
  print_error("`cutaway --help` shows what there is.");
  return kWrongUsage;
}

int help_command(int argc, char** argv) {
  if (argc < 3) {
    write_out(help_text());
    return end_output(kDone);
  }
  const Command* command = find(argv[2]);
  if (command == nullptr) return unknown_command(argv[2]);
  std::string name = command->name, flag = "--help", program = argv[0];
  char* words[] = {program.data(), name.data(), flag.data(), nullptr};
  return command->main(3, words);
}

int main(int argc, char** argv) {
  hold_standard_descriptors();
  set_utf8_locale();
  handle_signals();
  if (argc < 2) {
    print_error("cutaway: a command is needed; `cutaway --help` shows what there is.");
    return kWrongUsage;
  }
  const std::string first = argv[1];
  if (first == "help" || first == "--help" || first == "-h") return help_command(argc, argv);
  if (first == "--version" || first == "-V") {
    write_out(fmt::format("cutaway {}\n", version()));
    return end_output(kDone);
  }
  const Command* command = find(first);
  return command != nullptr ? command->main(argc, argv) : unknown_command(first);
}

}  // namespace

}  // namespace cutaway::cli

int main(int argc, char** argv) try {
  return cutaway::cli::main(argc, argv);
} catch (const std::bad_alloc&) {
  cutaway::cli::print_error("cutaway: not enough memory");
  return cutaway::cli::kFailed;
}
