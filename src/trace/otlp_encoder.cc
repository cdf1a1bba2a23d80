#include "trace/otlp_encoder.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "trace/line_format.h"

namespace cutaway::trace {
namespace {

void append_key(std::string& out, std::string_view key) {
  out += out.ends_with('[') ? "{\"key\":\"" : ",{\"key\":\"";
  append_escaped(out, key);
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

std::string_view text_of(const Field& field) { return {field.text.bytes, field.text.kept}; }

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
      return append_text(out, key, text_of(field));
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
    {"operation", "gen_ai.operation.name"},
    {"model", "gen_ai.request.model"},
    {"run", "gen_ai.response.id"},
    {"max_tokens", "gen_ai.request.max_tokens"},
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
    append_escaped(out, text_of(field));
    out += "\"}]}}}";
    return;
  }
  for (const Convention& convention : kConventions) {
    if (key != convention.key) continue;
    if (field.kind == FieldKind::kText) {
      append_text(out, convention.name, text_of(field));
      if (key == "model") append_text(out, "gen_ai.response.model", text_of(field));
    } else if (field.kind == FieldKind::kFloat) {
      append_number(out, convention.name, field.f);
    } else if (field.kind == FieldKind::kUnsigned) {
      append_integer(out, convention.name, static_cast<int64_t>(field.u));
    } else if (field.i >= 0) {  // −1: no limit was asked for
      append_integer(out, convention.name, field.i);
    }
  }
}

Hash128 hash_text(std::string_view text) { return xxh3_128(text.data(), text.size()); }

bool is_request(const Record& record) {
  return record.phase == Phase::kRequest && record.level == Level::kPhases && record.at.run >= 0;
}

}  // namespace

OtlpEncoder::OtlpEncoder(const OtlpResource& resource)
    : parent_(resource.parent),
      process_trace_(parent_ ? parent_->trace : hash_text(new_ulid())),
      seed_(hash_text(new_ulid()).low) {
  std::string list = "[";
  for (const auto& [key, value] : resource.attributes) append_text(list, key, value);
  head_ = "{\"resourceSpans\":[{\"resource\":{\"attributes\":" + list +
          "]},\"scopeSpans\":[{\"scope\":{\"name\":\"cutaway\"},\"spans\":[";
}

uint64_t OtlpEncoder::next_id() {
  const uint64_t value[2] = {seed_, ++counter_};
  const uint64_t id = xxh3_128(value, sizeof value).low;
  return id != 0 ? id : 1;
}

// By the monotonic clock, so that a span lies within its parent to the nanosecond.
int64_t OtlpEncoder::epoch_ns(const Record& record) {
  if (epoch_at_start_ns_ == 0) epoch_at_start_ns_ = record.wall_us * 1000 - record.time_ns;
  return epoch_at_start_ns_ + record.time_ns;
}

Hash128 OtlpEncoder::trace_of(const Record& record) const {
  return record.at.run < 0 || parent_ ? process_trace_ : hash_text(record.run);
}

bool OtlpEncoder::add(const Record& record, std::string& out) {
  std::vector<Span>& open = open_[record.thread];
  switch (record.kind) {
    case RecordKind::kEnter: {
      Span span{next_id(), epoch_ns(record), trace_of(record), is_request(record), "", "", "", ""};
      add_attributes(span, record, "cutaway.in.");
      open.push_back(std::move(span));
      return false;
    }
    case RecordKind::kEvent:
      if (!open.empty()) add_event(open.back(), record);
      return false;
    case RecordKind::kExit:
      if (open.empty()) return false;  // it began before this sink
      add_attributes(open.back(), record, "cutaway.out.");
      append_span(out, record, open);
      open.pop_back();
      return true;
  }
  return false;
}

void OtlpEncoder::add_attributes(Span& span, const Record& record, const std::string& prefix) {
  std::string list = "[" + span.attributes;
  if (record.kind == RecordKind::kEnter) {
    if (span.request) append_text(list, "gen_ai.provider.name", "cutaway");
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
  std::string_view operation = "chat", model;
  for (const Field& field : record.fields) {
    append_attribute(list, prefix, field);
    if (field.kind == FieldKind::kText) {
      const std::string_view key = field.key;
      if (key == "error") span.error = text_of(field);
      if (key == "operation") operation = text_of(field);
      if (key == "model") model = text_of(field);
    }
    if (span.request) append_convention(list, field);
  }
  // The conventions want few different values here; the message is the status's.
  if (!span.error.empty()) append_text(list, "error.type", "_OTHER");
  if (span.request && !model.empty()) span.name = fmt::format("{} {}", operation, model);
  span.attributes = list.substr(1);
}

void OtlpEncoder::add_event(Span& span, const Record& record) {
  if (!span.events.empty()) span.events += ',';
  span.events += fmt::format("{{\"timeUnixNano\":\"{}\",\"name\":\"{}\",\"attributes\":[",
                             epoch_ns(record), record.name);
  std::string list = "[";
  for (const Field& field : record.fields) append_attribute(list, "cutaway.", field);
  span.events += list.substr(1) + "]}";
}

void OtlpEncoder::append_span(std::string& out, const Record& record,
                              const std::vector<Span>& open) const {
  const Span& span = open.back();
  out += fmt::format("{{\"traceId\":\"{}\",\"spanId\":\"{:016x}\",", span.trace.hex(), span.id);
  // A span around it that is of another trace (the process's own, around a run) is no parent.
  if (open.size() > 1 && open[open.size() - 2].trace == span.trace) {
    out += fmt::format("\"parentSpanId\":\"{:016x}\",", open[open.size() - 2].id);
  } else if (parent_) {
    out += fmt::format("\"parentSpanId\":\"{:016x}\",", parent_->span);
  }
  if (parent_ && !parent_->state.empty()) {
    out += "\"traceState\":\"";
    append_escaped(out, parent_->state);
    out += "\",";
  }
  out += "\"name\":\"";
  append_escaped(out, span.name.empty() ? record.name : span.name);
  // Kind 1: the model runs in this process.
  out += fmt::format(
      "\",\"kind\":1,\"startTimeUnixNano\":\"{}\",\"endTimeUnixNano\":\"{}\",\"attributes\":[{}],"
      "\"events\":[{}],\"status\":",
      span.start_ns, span.start_ns + std::max<int64_t>(record.duration_ns, 0), span.attributes,
      span.events);
  if (span.error.empty()) {
    out += "{}}";
  } else {
    out += "{\"code\":2,\"message\":\"";
    append_escaped(out, span.error);
    out += "\"}}";
  }
}

}  // namespace cutaway::trace
