// Reading lines from a terminal with editing and a history that lasts. The only place that
// includes libedit.
#pragma once

#include <memory>
#include <string>

namespace cutaway::cli {

class LineEditor {
 public:
  enum class End { kLine, kInterrupted, kClosed };
  struct Line {
    std::string text;  // without the newline
    End end = End::kLine;
  };

  // `program` names the section of ~/.editrc. The history is read now and written as lines come;
  // a file that cannot be read or written costs the history only.
  LineEditor(const std::string& program, const std::string& history_file);
  ~LineEditor();

  // Ctrl-C gives kInterrupted (interrupt.h's flag is set), Ctrl-D on an empty line kClosed.
  Line read(const std::string& prompt);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cutaway::cli
