#include "cli/line_editor.h"

#include <histedit.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cwchar>
#include <filesystem>

#include "cli/interrupt.h"
#include "cli/output.h"

namespace cutaway::cli {

struct LineEditor::Impl {
  EditLine* edit = nullptr;
  History* history = nullptr;
  HistEvent event = {};
  std::string prompt, history_file, last_line;

  static char* show_prompt(EditLine* edit) {
    void* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return static_cast<Impl*>(self)->prompt.data();
  }

  // libedit's own reader retries after a signal, so that Ctrl-C would do nothing.
  static int get_character(EditLine*, wchar_t* out) {
    std::mbstate_t state = {};
    for (;;) {
      // A SIGINT that comes just before the wait does not end it: look again now and then.
      constexpr int kLookAgainMs = 100;
      pollfd input = {STDIN_FILENO, POLLIN, 0};
      const int ready = ::poll(&input, 1, kLookAgainMs);
      if (interrupted()) return -1;
      if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
      char byte;
      const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
      if (n == 0) return 0;
      if (n < 0 && errno == EINTR && !interrupted()) continue;
      if (n < 0) return -1;
      const size_t used = std::mbrtowc(out, &byte, 1, &state);
      if (used == static_cast<size_t>(-2)) continue;  // inside a character
      if (used == static_cast<size_t>(-1)) {          // no UTF-8: begin again after it
        state = {};
        continue;
      }
      return 1;
    }
  }
};

LineEditor::LineEditor(const std::string& program, const std::string& history_file)
    : impl_(std::make_unique<Impl>()) {
  constexpr int kKeptLines = 1000;
  impl_->history_file = history_file;
  impl_->history = history_init();
  if (impl_->history != nullptr) {
    history(impl_->history, &impl_->event, H_SETSIZE, kKeptLines);
    history(impl_->history, &impl_->event, H_SETUNIQUE, 1);
    history(impl_->history, &impl_->event, H_LOAD, history_file.c_str());
  }
  impl_->edit = el_init(program.c_str(), stdin, stdout, stderr);
  if (impl_->edit == nullptr) return;
  el_set(impl_->edit, EL_CLIENTDATA, impl_.get());
  el_set(impl_->edit, EL_PROMPT, Impl::show_prompt);
  el_set(impl_->edit, EL_EDITOR, "emacs");
  if (impl_->history != nullptr) el_set(impl_->edit, EL_HIST, history, impl_->history);
  el_source(impl_->edit, nullptr);  // ~/.editrc, the user's own keys
  el_set(impl_->edit, EL_GETCFN, Impl::get_character);
}

LineEditor::~LineEditor() {
  if (impl_->edit != nullptr) el_end(impl_->edit);
  if (impl_->history != nullptr) history_end(impl_->history);
}

LineEditor::Line LineEditor::read(const std::string& prompt) {
  if (impl_->edit == nullptr) return {"", End::kClosed};
  impl_->prompt = prompt;
  // Else libedit shows the prompt first and then takes the terminal: what is typed in between would
  // be echoed twice, and a Ctrl-D lost.
  el_set(impl_->edit, EL_PREP_TERM, 1);
  int count = 0;
  const char* line = el_gets(impl_->edit, &count);
  if (line == nullptr || count <= 0) {
    write_out("\n");
    if (!interrupted()) return {"", End::kClosed};
    el_reset(impl_->edit);
    return {"", End::kInterrupted};
  }
  std::string text(line, static_cast<size_t>(count));
  if (text.ends_with('\n')) text.pop_back();
  if (impl_->history != nullptr && text.find_first_not_of(" \t") != std::string::npos) {
    history(impl_->history, &impl_->event, H_ENTER, text.c_str());
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(impl_->history_file).parent_path(),
                                        ignored);
    // What people write is theirs: the file is readable by its owner only.
    const mode_t mask = ::umask(0077);
    history(impl_->history, &impl_->event, H_SAVE, impl_->history_file.c_str());
    ::umask(mask);
  }
  return {text, End::kLine};
}

}  // namespace cutaway::cli
