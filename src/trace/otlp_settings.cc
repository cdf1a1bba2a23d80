#include "trace/otlp_settings.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "base/http_client.h"
#include "base/utf8.h"

namespace cutaway::trace {
namespace {

constexpr const char* kDefaultEndpoint = "http://localhost:4318";
constexpr std::string_view kTracesPath = "/v1/traces";

std::string value_of(const Environment& environment, const char* name) {
  const char* value = environment(name);
  return value == nullptr ? "" : value;  // empty counts as unset
}

// The variable of traces alone goes before the one of all signals. The name of the one that is set.
std::pair<std::string, std::string> signal_value(const Environment& environment,
                                                 const std::string& suffix) {
  for (const char* prefix : {"OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"}) {
    const std::string name = prefix + suffix;
    if (std::string value = value_of(environment, name.c_str()); !value.empty()) {
      return {name, std::move(value)};
    }
  }
  return {};
}

std::string_view trimmed(std::string_view text) {
  const auto space = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

bool is_header_name(std::string_view text) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  for (const char c : text) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!letter && !(c >= '0' && c <= '9') && kOthers.find(c) == kOthers.npos) return false;
  }
  return !text.empty();
}

// "key=value,key=value" with values percent-encoded. What is no pair is reported by its number: it
// may be a key.
Result<std::vector<std::pair<std::string, std::string>>> parse_pairs(const std::string& name,
                                                                     std::string_view text) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find(','), text.size());
    const std::string_view pair = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (pair.empty()) continue;
    const size_t equals = pair.find('=');
    const std::string_view key = trimmed(pair.substr(0, std::min(equals, pair.size())));
    if (equals == pair.npos || !is_header_name(key)) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("{}: entry {} is not NAME=VALUE; entries go between commas, values "
                               "are percent-encoded",
                               name, number),
                   name};
    }
    std::string value = url_decode(trimmed(pair.substr(equals + 1)));
    for (const char c : value) {
      if (static_cast<unsigned char>(c) >= 0x20 || c == '\t') continue;
      return Error{
          ErrorCode::kInvalidArgument,
          fmt::format("{}: the value of entry {} has a control character, which is not accepted",
                      name, number),
          name};
    }
    pairs.emplace_back(std::string(key), std::move(value));
  }
  return pairs;
}

bool is_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == text.npos;
}

uint64_t from_hex(std::string_view text) {
  uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

// `base` without what follows the path, and with the path of traces.
std::string with_traces_path(std::string_view base, bool may_be_there) {
  std::string url(base.substr(0, base.find_first_of("?#")));
  while (url.ends_with('/')) url.pop_back();
  if (may_be_there && url.ends_with(kTracesPath)) return url;
  return url + std::string(kTracesPath);
}

Status set_url(OtlpSettings& settings, std::string_view target, const Environment& environment) {
  std::string from = "trace-out";
  if (target == "otlp") {
    const auto [name, endpoint] = signal_value(environment, "ENDPOINT");
    if (!name.empty()) from = name;
    settings.url = name == "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
                       ? endpoint
                       : with_traces_path(name.empty() ? kDefaultEndpoint : endpoint, false);
  } else {
    if (target.starts_with("otlp:")) target.remove_prefix(5);
    settings.url = with_traces_path(target, true);
  }
  const auto parsed = parse_url(settings.url);
  if (parsed.ok()) return {};
  if (parsed.error().code != ErrorCode::kInvalidArgument) return parsed.error();
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("{}: '{}' is no URL of a collector; it takes http://HOST:PORT or "
                           "https://HOST:PORT",
                           from, url_without_secrets(settings.url)),
               from};
}

Status set_timeout(OtlpSettings& settings, const Environment& environment) {
  const auto [name, text] = signal_value(environment, "TIMEOUT");
  if (name.empty()) return {};
  int64_t ms = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), ms);
  constexpr int64_t kDay = 86'400'000;
  if (fault != std::errc() || end != text.data() + text.size() || ms < 1 || ms > kDay) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} is '{}'; it takes milliseconds, 1 … {}", name,
                             utf8_replace_invalid(text), kDay),
                 name};
  }
  settings.timeout = std::chrono::milliseconds(ms);
  return {};
}

Status check_protocol(const Environment& environment) {
  const auto [name, text] = signal_value(environment, "PROTOCOL");
  if (name.empty() || text == "http/json") return {};
  return Error{
      ErrorCode::kUnsupported,
      fmt::format("{} is '{}'; traces are sent as http/json alone, which a collector takes "
                  "where it takes http/protobuf (port 4318): "
                  "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json",
                  name, utf8_replace_invalid(text)),
      name};
}

void add_warnings(OtlpSettings& settings, const Environment& environment) {
  const auto warn = [&](std::string text) {
    settings.resource.warnings.push_back(std::move(text));
  };
  if (const auto [name, text] = signal_value(environment, "COMPRESSION");
      !name.empty() && text != "none") {
    warn(fmt::format("{} is '{}'; traces are sent without compression", name,
                     utf8_replace_invalid(text)));
  }
  for (const char* suffix : {"CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"}) {
    const auto [name, text] = signal_value(environment, suffix);
    if (name.empty()) continue;
    warn(fmt::format("{} has no effect; SSL_CERT_FILE names certificates to trust", name));
  }
}

}  // namespace

std::optional<TraceParent> parse_traceparent(std::string_view text) {
  // version-trace-parent-flags: 2, 32, 16 and 2 digits.
  constexpr size_t kSize = 2 + 1 + 32 + 1 + 16 + 1 + 2;
  text = trimmed(text);
  if (text.size() < kSize || text[2] != '-' || text[35] != '-' || text[52] != '-') return {};
  const std::string_view version = text.substr(0, 2), trace = text.substr(3, 32),
                         span = text.substr(36, 16), flags = text.substr(53, 2);
  if (!is_hex(version) || !is_hex(trace) || !is_hex(span) || !is_hex(flags)) return {};
  if (version == "ff") return {};
  if (version == "00" ? text.size() != kSize : text.size() > kSize && text[kSize] != '-') return {};
  TraceParent parent{
      {from_hex(trace.substr(0, 16)), from_hex(trace.substr(16))}, from_hex(span), ""};
  if (parent.trace == Hash128{} || parent.span == 0) return {};
  return parent;
}

Environment process_environment() {
  return [](const char* name) { return std::getenv(name); };
}

OtlpResource otlp_resource(const Environment& environment) {
  OtlpResource resource;
  const std::string service = value_of(environment, "OTEL_SERVICE_NAME");
  std::string named;  // by the attributes
  auto pairs =
      parse_pairs("OTEL_RESOURCE_ATTRIBUTES", value_of(environment, "OTEL_RESOURCE_ATTRIBUTES"));
  if (!pairs.ok()) {
    resource.warnings.push_back(pairs.error().message);
  } else {
    for (auto& [key, value] : *pairs) {
      value = utf8_replace_invalid(value);
      if (key == "service.name") {
        named = value;
      } else {
        resource.attributes.emplace_back(key, value);
      }
    }
  }
  const std::string name = !service.empty() ? utf8_replace_invalid(service) : named;
  resource.attributes.emplace(resource.attributes.begin(), "service.name",
                              name.empty() ? "cutaway" : name);
  if (const std::string text = value_of(environment, "TRACEPARENT"); !text.empty()) {
    resource.parent = parse_traceparent(text);
    if (!resource.parent) {
      resource.warnings.push_back(fmt::format(
          "TRACEPARENT is '{}', which is not 00-TRACE-PARENT-FLAGS in lower-case hex: the trace is "
          "one of its own",
          utf8_replace_invalid(text.substr(0, 80))));
    } else if (const std::string state = value_of(environment, "TRACESTATE"); state.size() <= 512) {
      resource.parent->state = utf8_replace_invalid(state);
    }
  }
  return resource;
}

bool is_otlp_target(std::string_view target) {
  return target == "otlp" || target.starts_with("otlp:") || target.starts_with("http://") ||
         target.starts_with("https://");
}

Result<OtlpSettings> otlp_settings(std::string_view target, const Environment& environment) {
  OtlpSettings settings;
  CUTAWAY_TRY(check_protocol(environment));
  CUTAWAY_TRY(set_url(settings, target, environment));
  CUTAWAY_TRY(set_timeout(settings, environment));
  if (const auto [name, text] = signal_value(environment, "HEADERS"); !name.empty()) {
    CUTAWAY_ASSIGN(settings.headers, parse_pairs(name, text));
  }
  settings.resource = otlp_resource(environment);
  add_warnings(settings, environment);
  return settings;
}

}  // namespace cutaway::trace
