#include "trace/sinks.h"

#include <cerrno>

#include "trace/batch_sink.h"
#include "trace/line_format.h"

namespace cutaway::trace {
namespace {

class ConsoleSink final : public BatchSink {
 public:
  ConsoleSink(std::FILE* stream, bool colour)
      : BatchSink("the console"), stream_(stream), colour_(colour) {}

 private:
  void append(std::string& out, const Record& record) override {
    format_.append_console(out, record, colour_);
    out += '\n';
  }
  int send(std::string_view bytes, bool now) override {
    errno = 0;
    const bool sent = std::fwrite(bytes.data(), 1, bytes.size(), stream_) == bytes.size() &&
                      (!now || std::fflush(stream_) == 0);
    return sent ? 0 : errno != 0 ? errno : EIO;
  }

  std::FILE* const stream_;
  const bool colour_;
  LineFormat format_;
};

class JsonlSink final : public FileSink {
 public:
  using FileSink::FileSink;

 private:
  void append(std::string& out, const Record& record) override {
    const size_t begin = out.size();
    format_.append_json(out, record);
    out += '\n';
    keep_whole(out, begin);
  }

  LineFormat format_;
};

}  // namespace

std::shared_ptr<Sink> make_console_sink(std::FILE* stream, bool colour) {
  return std::make_shared<ConsoleSink>(stream, colour);
}

Result<std::shared_ptr<Sink>> make_jsonl_sink(const std::string& path) {
  CUTAWAY_ASSIGN(const int fd, open_trace_file(path));
  return std::shared_ptr<Sink>(std::make_shared<JsonlSink>(path, fd));
}

}  // namespace cutaway::trace
