// Chrome's JSON trace format ("Trace Event Format"), as an array that is written event by event.
// Process 1 holds a track for each run, process 2 the threads with their spans.

#include <algorithm>
#include <map>
#include <set>

#include "trace/batch_sink.h"
#include "trace/line_format.h"
#include "trace/sinks.h"

namespace cutaway::trace {
namespace {

constexpr int kRuns = 1, kThreads = 2;  // process ids; the UI shows them in this order

// Perfetto loses slices that are nested deeper than 512, without a word: those are folded into the
// last one that is written, with their count.
constexpr uint64_t kMaxDepth = 500;

void append_number(std::string& out, const char* key, int64_t value) {
  out += key;
  out += std::to_string(value);
}

class PerfettoSink final : public FileSink {
 public:
  PerfettoSink(const std::string& path, int fd) : FileSink(path, fd) {
    buffer() += "[\n";
    name(buffer(), kRuns, "process_name", 0, "cutaway: runs");
    name(buffer(), kThreads, "process_name", 0, "cutaway: functions by thread");
  }
  ~PerfettoSink() override {
    buffer() += "\n]\n";
    flush();
  }

 private:
  // The spans of a thread that are open.
  struct Open {
    uint64_t depth = 0;   // written and folded ones
    uint64_t folded = 0;  // within the slice at kMaxDepth
  };

  void append(std::string& out, const Record& record) override {
    const auto thread = static_cast<int64_t>(record.thread) + 1;
    if (named_threads_.insert(record.thread).second) {
      name(out, kThreads, "thread_name", thread, "thread " + std::to_string(record.thread));
    }
    append_slice(out, record, kThreads, thread, open_[record.thread]);
    if (record.level == Level::kPhases && record.at.run >= 0) append_run(out, record);
  }

  // What is known of a run while its request is open.
  struct Run {
    Open open;
    int64_t last_token_ns = 0;  // when its last token was there; 0: none yet
  };

  // A phase of a run, on the run's own track, and what the end of one says about speed.
  void append_run(std::string& out, const Record& record) {
    const int64_t track = record.at.run + 1;
    const auto [entry, is_new] = runs_.try_emplace(record.at.run);
    if (is_new) name(out, kRuns, "thread_name", track, "run " + std::string(record.run));
    Run& run = entry->second;
    if (record.phase != Phase::kGenerate || record.at.step < 0) {
      append_slice(out, record, kRuns, track, run.open);
      if (record.kind == RecordKind::kExit && run.open.depth == 0) runs_.erase(entry);
      return;
    }
    if (record.kind != RecordKind::kExit) return;  // a token has its text when it ends
    event(out, record, 'X', kRuns, track, 0);
    if (run.last_token_ns > 0 && record.time_ns > run.last_token_ns) {
      counter(out, record, "tokens per second",
              1e9 / static_cast<double>(record.time_ns - run.last_token_ns));
    }
    run.last_token_ns = record.time_ns;
    if (record.at.position >= 0) counter(out, record, "context (tokens)", record.at.position + 1);
  }

  void append_slice(std::string& out, const Record& record, int process, int64_t track,
                    Open& open) {
    switch (record.kind) {
      case RecordKind::kEnter:
        if (++open.depth > kMaxDepth) {
          ++open.folded;
          return;
        }
        return event(out, record, 'B', process, track, 0);
      case RecordKind::kExit:
        if (open.depth == 0) return;  // its beginning was before this sink
        if (open.depth-- > kMaxDepth) return;
        event(out, record, 'E', process, track, open.depth == kMaxDepth - 1 ? open.folded : 0);
        if (open.depth == kMaxDepth - 1) open.folded = 0;
        return;
      case RecordKind::kEvent:
        return event(out, record, 'i', process, track, 0);
    }
  }

  void event(std::string& out, const Record& record, char kind, int process, int64_t track,
             uint64_t folded) {
    begin(out, kind, process, track);
    out += ",\"ts\":";
    const int64_t back = kind == 'X' ? record.duration_ns : 0;
    append_us(out, std::max<int64_t>(record.time_ns - back, 0));
    if (kind == 'X') {
      out += ",\"dur\":";
      append_us(out, record.duration_ns);
    }
    if (kind == 'i') out += ",\"s\":\"t\"";
    out += ",\"name\":\"";
    append_title(out, record, process);
    out += "\",\"cat\":\"";
    out += phase_name(record.phase);
    out += "\",\"args\":{";
    const size_t empty = out.size();
    append_json_fields(out, record.fields);
    const auto coordinate = [&](const char* key, int64_t value) {
      if (value >= 0) append_number(out, out.size() == empty ? key + 1 : key, value);
    };
    if (kind != 'E') {
      coordinate(",\"seq\":", record.at.seq);
      coordinate(",\"step\":", record.at.step);
      coordinate(",\"position\":", record.at.position);
      coordinate(",\"layer\":", record.at.layer);
    }
    if (folded > 0) coordinate(",\"folded_spans\":", static_cast<int64_t>(folded));
    out += "}}";
  }

  // On a run's track a token is called by its text and a phase by its name; elsewhere a span by its
  // function.
  static void append_title(std::string& out, const Record& record, int process) {
    if (process == kThreads || record.kind == RecordKind::kEvent) {
      out += record.name;
      return;
    }
    for (const Field& field : record.fields) {
      if (field.kind != FieldKind::kText || std::string_view(field.key) != "piece") continue;
      return append_escaped(out, {field.text.bytes, field.text.kept});
    }
    out += phase_name(record.phase);
  }

  void counter(std::string& out, const Record& record, const char* title, double value) {
    begin(out, 'C', kRuns, 0);
    out += ",\"ts\":";
    append_us(out, std::max<int64_t>(record.time_ns, 0));
    out += ",\"name\":\"";
    out += title;
    out += "\",\"args\":{\"value\":";
    out += std::to_string(value);
    out += "}}";
  }

  void name(std::string& out, int process, const char* what, int64_t track,
            const std::string& text) {
    begin(out, 'M', process, track);
    out += ",\"name\":\"";
    out += what;
    out += "\",\"args\":{\"name\":\"";
    append_escaped(out, text);
    out += "\"}}";
  }

  void begin(std::string& out, char kind, int process, int64_t track) {
    if (!first_) out += ",\n";
    first_ = false;
    out += "{\"ph\":\"";
    out += kind;
    append_number(out, "\",\"pid\":", process);
    append_number(out, ",\"tid\":", track);
  }

  bool first_ = true;
  std::set<uint32_t> named_threads_;
  std::map<uint32_t, Open> open_;
  std::map<int64_t, Run> runs_;
};

}  // namespace

Result<std::shared_ptr<Sink>> make_perfetto_sink(const std::string& path) {
  CUTAWAY_ASSIGN(const int fd, open_trace_file(path));
  return std::shared_ptr<Sink>(std::make_shared<PerfettoSink>(path, fd));
}

}  // namespace cutaway::trace
