// OpenTelemetry's OTLP in JSON, as its file exporter writes it: one ExportTraceServiceRequest a
// line (opentelemetry.io/docs/specs/otlp, "JSON Protobuf Encoding": ids are hex, 64-bit numbers are
// text). A run's request follows the semantic conventions for generative AI (gen_ai.*).

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "trace/batch_sink.h"
#include "trace/line_format.h"
#include "trace/sinks.h"

namespace cutaway::trace {
namespace {

constexpr size_t kSpansPerLine = 512;

void append_key(std::string& out, std::string_view key) {
  out += out.ends_with('[') ? "{\"key\":\"" : ",{\"key\":\"";
  out += key;
  out += "\",\"value\":{";
}

void append_text(std::string& out, std::string_view key, std::string_view value) {
  append_key(out, key);
  out += "\"stringValue\":\"";
  append_escaped(out, value);
  out += "\"}}";
}

void append_integer(std::string& out, std::string_view key, int64_t value) {
  append_key(out, key);
  out += fmt::format("\"intValue\":\"{}\"}}}}", value);
}

void append_number(std::string& out, std::string_view key, double value) {
  append_key(out, key);
  out += fmt::format("\"doubleValue\":{}}}}}", value);
}

// A field under `prefix` and its key: numbers, flags and text as such, everything else as the JSON
// that the JSONL sink has.
void append_attribute(std::string& out, const std::string& prefix, const Field& field) {
  const std::string key = prefix + field.key;
  switch (field.kind) {
    case FieldKind::kInt:
      return append_integer(out, key, field.i);
    case FieldKind::kUnsigned:
      return append_integer(out, key, static_cast<int64_t>(field.u));
    case FieldKind::kBool:
      append_key(out, key);
      out += field.b ? "\"boolValue\":true}}" : "\"boolValue\":false}}";
      return;
    case FieldKind::kText:
      return append_text(out, key, {field.text.bytes, field.text.kept});
    default: {
      std::string json;
      append_json_fields(json, std::span(&field, 1));
      return append_text(out, key, json.substr(json.find(':') + 1));
    }
  }
}

// What the conventions call the fields of a request (opentelemetry.io/docs/specs/semconv/gen-ai).
struct Convention {
  const char* key;
  const char* name;
};
constexpr Convention kConventions[] = {
    {"model", "gen_ai.request.model"},
    {"run", "gen_ai.response.id"},
    {"temperature", "gen_ai.request.temperature"},
    {"top_p", "gen_ai.request.top_p"},
    {"seed", "gen_ai.request.seed"},
    {"input_tokens", "gen_ai.usage.input_tokens"},
    {"tokens", "gen_ai.usage.output_tokens"},
};

void append_convention(std::string& out, const Field& field) {
  const std::string_view key = field.key;
  if (key == "finish" && field.kind == FieldKind::kText) {
    append_key(out, "gen_ai.response.finish_reasons");
    out += "\"arrayValue\":{\"values\":[{\"stringValue\":\"";
    append_escaped(out, {field.text.bytes, field.text.kept});
    out += "\"}]}}}";
    return;
  }
  if (key == "error" && field.kind == FieldKind::kText) {
    return append_text(out, "error.type", {field.text.bytes, field.text.kept});
  }
  for (const Convention& convention : kConventions) {
    if (key != convention.key) continue;
    if (field.kind == FieldKind::kText) {
      append_text(out, convention.name, {field.text.bytes, field.text.kept});
      if (key == "model")
        append_text(out, "gen_ai.response.model", {field.text.bytes, field.text.kept});
    } else if (field.kind == FieldKind::kFloat) {
      append_number(out, convention.name, field.f);
    } else {
      append_integer(out, convention.name,
                     field.kind == FieldKind::kUnsigned ? static_cast<int64_t>(field.u) : field.i);
    }
  }
}

class OtlpSink final : public FileSink {
 public:
  OtlpSink(const std::string& path, int fd)
      : FileSink(path, fd), process_trace_(hash_text(new_ulid())), seed_(process_trace_.low) {}
  ~OtlpSink() override { flush(); }

 private:
  struct Span {
    uint64_t id;
    int64_t start_ns;  // since the Unix epoch
    std::string attributes;
    std::string events;
    std::string model;  // of a request
  };

  static Hash128 hash_text(std::string_view text) { return xxh3_128(text.data(), text.size()); }

  uint64_t next_id() {
    const uint64_t value[2] = {seed_, ++counter_};
    const uint64_t id = xxh3_128(value, sizeof value).low;
    return id != 0 ? id : 1;
  }

  // By the monotonic clock, so that a span lies within its parent to the nanosecond.
  int64_t epoch_ns(const Record& record) {
    if (epoch_at_start_ns_ == 0) epoch_at_start_ns_ = record.wall_us * 1000 - record.time_ns;
    return epoch_at_start_ns_ + record.time_ns;
  }

  static bool is_request(const Record& record) {
    return record.phase == Phase::kRequest && record.level == Level::kPhases && record.at.run >= 0;
  }

  void append(std::string& out, const Record& record) override {
    std::vector<Span>& open = open_[record.thread];
    switch (record.kind) {
      case RecordKind::kEnter: {
        Span span{next_id(), epoch_ns(record), "", "", ""};
        add_attributes(span, record, "cutaway.in.");
        open.push_back(std::move(span));
        return;
      }
      case RecordKind::kEvent:
        if (!open.empty()) add_event(open.back(), record);
        return;
      case RecordKind::kExit:
        if (open.empty()) return;  // it began before this sink
        add_attributes(open.back(), record, "cutaway.out.");
        append_span(out, record, open);
        open.pop_back();
        return;
    }
  }

  static void add_attributes(Span& span, const Record& record, const std::string& prefix) {
    std::string list = "[" + span.attributes;
    const size_t begin = 1;
    const bool request = is_request(record);
    if (record.kind == RecordKind::kEnter) {
      if (request) {
        append_text(list, "gen_ai.operation.name", "chat");
        append_text(list, "gen_ai.provider.name", "cutaway");
      }
      append_text(list, "cutaway.phase", phase_name(record.phase));
      const auto coordinate = [&](const char* key, int64_t value) {
        if (value >= 0) append_integer(list, key, value);
      };
      coordinate("cutaway.seq", record.at.seq);
      coordinate("cutaway.step", record.at.step);
      coordinate("cutaway.position", record.at.position);
      coordinate("cutaway.layer", record.at.layer);
      append_integer(list, "thread.id", static_cast<int64_t>(record.thread) + 1);
    }
    for (const Field& field : record.fields) {
      append_attribute(list, prefix, field);
      if (!request) continue;
      append_convention(list, field);
      if (std::string_view(field.key) == "model" && field.kind == FieldKind::kText) {
        span.model.assign(field.text.bytes, field.text.kept);
      }
    }
    span.attributes = list.substr(begin);
  }

  void add_event(Span& span, const Record& record) {
    if (!span.events.empty()) span.events += ',';
    span.events += fmt::format("{{\"timeUnixNano\":\"{}\",\"name\":\"{}\",\"attributes\":[",
                               epoch_ns(record), record.name);
    std::string list = "[";
    for (const Field& field : record.fields) append_attribute(list, "cutaway.", field);
    span.events += list.substr(1) + "]}";
  }

  void append_span(std::string& out, const Record& record, const std::vector<Span>& open) {
    const Span& span = open.back();
    const Hash128 trace = record.at.run >= 0 ? hash_text(record.run) : process_trace_;
    // A parent of another trace (the process's own, around a run) is none.
    const bool child = open.size() > 1 && (record.at.run < 0 || !is_request(record));
    if (spans_ == 0) {
      out += "{\"resourceSpans\":[{\"resource\":{\"attributes\":[";
      std::string list = "[";
      append_text(list, "service.name", "cutaway");
      out += list.substr(1) + "]},\"scopeSpans\":[{\"scope\":{\"name\":\"cutaway\"},\"spans\":[";
    } else {
      out += ',';
    }
    const std::string parent =
        child ? fmt::format("\"parentSpanId\":\"{:016x}\",", open[open.size() - 2].id) : "";
    out += fmt::format("{{\"traceId\":\"{}\",\"spanId\":\"{:016x}\",{}\"name\":\"", trace.hex(),
                       span.id, parent);
    if (is_request(record) && !span.model.empty()) {
      append_escaped(out, "chat " + span.model);
    } else {
      out += record.name;
    }
    const bool failed = std::any_of(record.fields.begin(), record.fields.end(), [](const Field& f) {
      return std::string_view(f.key) == "error";
    });
    out += fmt::format(
        "\",\"kind\":{},\"startTimeUnixNano\":\"{}\",\"endTimeUnixNano\":\"{}\",\"attributes\":[{}]"
        ","
        "\"events\":[{}],\"status\":{}}}",
        is_request(record) ? 2 : 1, span.start_ns,
        span.start_ns + std::max<int64_t>(record.duration_ns, 0), span.attributes, span.events,
        failed ? "{\"code\":2}" : "{}");
    if (++spans_ == kSpansPerLine) end_line(out);
  }

  void settle(std::string& out) override { end_line(out); }

  void end_line(std::string& out) {
    if (spans_ > 0) out += "]}]}]}\n";
    spans_ = 0;
  }

  const Hash128 process_trace_;  // of spans that belong to no run
  const uint64_t seed_;
  int64_t epoch_at_start_ns_ = 0;  // 0: not known yet
  uint64_t counter_ = 0;
  size_t spans_ = 0;  // in the line that is being written
  std::map<uint32_t, std::vector<Span>> open_;
};

}  // namespace

Result<std::shared_ptr<Sink>> make_otlp_sink(const std::string& path) {
  CUTAWAY_ASSIGN(const int fd, open_trace_file(path));
  return std::shared_ptr<Sink>(std::make_shared<OtlpSink>(path, fd));
}

}  // namespace cutaway::trace
