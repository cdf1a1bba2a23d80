#include "cli/chat.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/suggest.h"
#include "cli/exit_status.h"
#include "cli/interrupt.h"
#include "cli/line_editor.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "cutaway/model_store.h"

namespace cutaway::cli {
namespace {

constexpr const char* kHelp =
    "  /help          this list\n"
    "  /clear         begin a new conversation\n"
    "  /system TEXT   begin a new one with this system message (none: without)\n"
    "  /stats         tokens, speed and the last answer's settings\n"
    "  /exit          leave (Ctrl-D too)\n"
    "A line that ends with \\ goes on in the next one. Ctrl-C ends an answer, not the chat.\n";

class Chat {
 public:
  Chat(const Model& model, const SessionOptions& options, const GenerateRequest& request,
       std::string system, Engine* traced_here)
      : model_(model),
        options_(options),
        request_(request),
        system_(std::move(system)),
        traced_here_(traced_here) {}

  int run() {
    if (const Status started = start_over(); !started.ok()) return report(started.error());
    LineEditor editor("cutaway", ModelStore().home() + "/history");
    write_out(
        fmt::format("{} · /help lists the commands, Ctrl-D leaves\n", printable(model_.name())));
    while (!leaving_ && !output_failed()) {
      clear_interrupt();
      const LineEditor::Line line = read(editor);
      if (line.end == LineEditor::End::kClosed) break;
      if (line.end == LineEditor::End::kInterrupted || line.text.empty()) continue;
      if (line.text.front() == '/') {
        command(line.text);
      } else {
        answer(line.text);
      }
    }
    return kDone;
  }

 private:
  // One input: lines joined while they end with a backslash.
  LineEditor::Line read(LineEditor& editor) {
    std::string all;
    for (const char* prompt = "> ";; prompt = ". ") {
      LineEditor::Line line = editor.read(prompt);
      if (line.end != LineEditor::End::kLine) return line;
      all += line.text;
      if (!all.ends_with('\\')) break;
      all.back() = '\n';
    }
    return {all, LineEditor::End::kLine};
  }

  Status start_over() {
    CUTAWAY_ASSIGN(session_, model_.start(options_));
    messages_ = Json::array();
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
    return {};
  }

  void command(const std::string& line) {
    const size_t space = line.find_first_of(" \n");
    const std::string name = line.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "/help") {
      write_out(kHelp);
    } else if (name == "/exit" || name == "/quit") {
      leaving_ = true;
    } else if (name == "/stats") {
      stats();
    } else if (name == "/clear" || name == "/system") {
      if (name == "/system") system_ = rest;
      if (const Status status = start_over(); !status.ok()) {
        report(status.error());
      } else {
        write_out("A new conversation.\n");
      }
    } else {
      const std::string near =
          nearest_word(name, {"/help", "/clear", "/system", "/stats", "/exit"});
      print_error(fmt::format(
          "unknown command '{}'{}", name,
          near.empty() ? "; /help lists them" : fmt::format("; did you mean {}?", near)));
    }
  }

  void answer(const std::string& text) {
    messages_.push_back({{"role", "user"}, {"content", text}});
    request_.messages = messages_;
    auto generation = session_->generate(request_, [this](const StreamEvent& event) {
      if (traced_here_ == nullptr) write_out(printable_lines(event.text));
      return !interrupted() && !output_failed();
    });
    if (!generation.ok()) {
      messages_.erase(messages_.size() - 1);
      report(generation.error());
      if (generation.error().code == ErrorCode::kTooLarge) {
        print_error("/clear begins a new conversation.");
      }
      return;
    }
    if (traced_here_ != nullptr) {
      // The end of the program reports a trace that failed.
      [[maybe_unused]] const Status flushed = traced_here_->flush_trace();
      write_out(printable_lines(generation->text));
    }
    if (!generation->text.ends_with('\n')) write_out("\n");
    if (generation->finish_reason != "stop") {
      print_error(fmt::format("({})", generation->finish_reason));
    }
    // What was said is said, also when it was cut short.
    messages_.push_back({{"role", "assistant"}, {"content", generation->text}});
    for (const std::string& warning : generation->warnings) {
      if (warning != last_warning_) print_warning(warning);
      last_warning_ = warning;
    }
    last_ = std::move(*generation);
    answered_ = true;
  }

  void stats() {
    if (!answered_) {
      write_out("No answer yet.\n");
      return;
    }
    write_out(fmt::format(
        "last answer: {} tokens in ({} from the cache), {} out · prefill {:.0f} tok/s, decode "
        "{:.0f} tok/s · first token after {:.0f} ms · {}\nsampling: {} · seed {}\n"
        "logits {} · peak memory {:.0f} MB · model loaded in {:.0f} ms\n",
        last_.usage.input_tokens, last_.usage.cached_tokens, last_.usage.output_tokens,
        last_.timings.prefill_tps, last_.timings.decode_tps, last_.timings.ttft_ms,
        last_.finish_reason, to_text(last_.sampling), last_.seed, last_.logits_hash,
        last_.timings.peak_rss_mb, model_.load_ms()));
  }

  const Model& model_;
  SessionOptions options_;
  GenerateRequest request_;
  std::string system_;
  Engine* traced_here_;
  std::unique_ptr<Session> session_;
  Json messages_;
  Generation last_;
  bool answered_ = false;
  std::string last_warning_;
  bool leaving_ = false;
};

}  // namespace

int chat(const Model& model, const SessionOptions& options, const GenerateRequest& request,
         const std::string& system, Engine* traced_here) {
  return Chat(model, options, request, system, traced_here).run();
}

}  // namespace cutaway::cli
