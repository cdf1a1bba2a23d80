// OTLP: what the environment says, the caller's trace, and a collector that does not answer.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <map>

#include "base/json.h"
#include "tests/unit/trace_testing.h"
#include "trace/otlp_encoder.h"
#include "trace/otlp_http_sink.h"

namespace cutaway::trace {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

using Variables = std::map<std::string, std::string>;

Environment in(const Variables& variables) {
  return [&variables](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  };
}

std::string url_of(const std::string& target, const Variables& variables = {}) {
  const auto settings = otlp_settings(target, in(variables));
  return settings.ok() ? settings->url : "error: " + settings.error().message;
}

constexpr const char* kTrace = "0af7651916cd43dd8448eb211c80319c";
constexpr const char* kParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(OtlpSettings, TheUrlOfTraces) {
  EXPECT_EQ(url_of("http://h:4318"), "http://h:4318/v1/traces");
  EXPECT_EQ(url_of("http://h:4318/"), "http://h:4318/v1/traces");
  EXPECT_EQ(url_of("otlp:https://h/otlp/"), "https://h/otlp/v1/traces");
  EXPECT_EQ(url_of("http://h:4318/v1/traces"), "http://h:4318/v1/traces");
  EXPECT_EQ(url_of("otlp"), "http://localhost:4318/v1/traces");
  const Variables base = {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://h:1/x"}};
  EXPECT_EQ(url_of("otlp", base), "http://h:1/x/v1/traces");
  EXPECT_EQ(url_of("http://other:2", base), "http://other:2/v1/traces");
  const Variables both = {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://h:1"},
                          {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://h:2/as/it/is"}};
  EXPECT_EQ(url_of("otlp", both), "http://h:2/as/it/is");
  EXPECT_EQ(url_of("otlp", {{"OTEL_EXPORTER_OTLP_ENDPOINT", ""}}),
            "http://localhost:4318/v1/traces");
  EXPECT_THAT(url_of("otlp:h:4318"), HasSubstr("http://HOST:PORT"));
  EXPECT_THAT(url_of("otlp", {{"OTEL_EXPORTER_OTLP_ENDPOINT", "grpc://u:secret@h"}}),
              testing::AllOf(HasSubstr("OTEL_EXPORTER_OTLP_ENDPOINT"), Not(HasSubstr("secret"))));
}

TEST(OtlpSettings, HeadersAreDecodedAndNeverShown) {
  const Variables good = {{"OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b%2Cc , x-other = y"},
                          {"OTEL_EXPORTER_OTLP_TIMEOUT", "1500"}};
  const auto settings = otlp_settings("otlp", in(good));
  ASSERT_TRUE(settings.ok());
  const std::vector<std::pair<std::string, std::string>> expected = {{"api-key", "a b,c"},
                                                                     {"x-other", "y"}};
  EXPECT_EQ(settings->headers, expected);
  EXPECT_EQ(settings->timeout, milliseconds(1500));
  for (const char* bad : {"a=1,topsecret", "a b=topsecret", "k=topsecret%0D%0AX: y"}) {
    const Variables variables = {{"OTEL_EXPORTER_OTLP_TRACES_HEADERS", bad}};
    const auto refused = otlp_settings("otlp", in(variables));
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_THAT(refused.error().message, HasSubstr("OTEL_EXPORTER_OTLP_TRACES_HEADERS"));
    EXPECT_THAT(refused.error().message, Not(HasSubstr("topsecret")));
  }
}

TEST(OtlpSettings, WhatCannotBeFollowedIsSaid) {
  const Variables grpc = {{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}};
  EXPECT_THAT(url_of("otlp", grpc), HasSubstr("http/json"));
  EXPECT_THAT(url_of("otlp", {{"OTEL_EXPORTER_OTLP_TIMEOUT", "soon"}}), HasSubstr("milliseconds"));
  const Variables odd = {{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"},
                         {"OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"},
                         {"OTEL_EXPORTER_OTLP_CERTIFICATE", "ca.pem"},
                         {"TRACEPARENT", "00-xyz"}};
  const auto settings = otlp_settings("otlp", in(odd));
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(settings->resource.warnings.size(), 3U);
  EXPECT_FALSE(settings->resource.parent);
}

TEST(OtlpSettings, TheResource) {
  const Variables variables = {{"OTEL_RESOURCE_ATTRIBUTES", "service.name=a,host=b%20c"},
                               {"TRACEPARENT", kParent},
                               {"TRACESTATE", "v=1"}};
  OtlpResource resource = otlp_resource(in(variables));
  const std::vector<std::pair<std::string, std::string>> expected = {{"service.name", "a"},
                                                                     {"host", "b c"}};
  EXPECT_EQ(resource.attributes, expected);
  ASSERT_TRUE(resource.parent);
  EXPECT_EQ(resource.parent->trace.hex(), kTrace);
  EXPECT_EQ(resource.parent->span, 0xb7ad6b7169203331U);
  EXPECT_EQ(resource.parent->state, "v=1");
  EXPECT_TRUE(resource.warnings.empty());
  const Variables named = {{"OTEL_RESOURCE_ATTRIBUTES", "service.name=a"},
                           {"OTEL_SERVICE_NAME", "b"}};
  EXPECT_EQ(otlp_resource(in(named)).attributes.at(0).second, "b");
  EXPECT_EQ(otlp_resource(in({})).attributes.at(0).second, "cutaway");
}

TEST(OtlpSettings, TraceParents) {
  EXPECT_TRUE(parse_traceparent(kParent));
  const std::string later = std::string("cc") + (kParent + 2) + "-more";
  EXPECT_TRUE(parse_traceparent(later));
  for (const std::string& bad :
       std::vector<std::string>{"", "00", std::string(kParent) + "-more",
                                std::string(kParent) + "0", std::string("ff") + (kParent + 2),
                                "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                                "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                                "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                                "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                                std::string("cc") + (kParent + 2) + "more"}) {
    EXPECT_FALSE(parse_traceparent(bad)) << bad;
  }
}

// Every span of the process and its runs, in the caller's trace and below its span.
TEST(OtlpEncoder, ARunJoinsItsCallersTrace) {
  class Encode : public Sink {
   public:
    explicit Encode(const OtlpResource& resource) : encoder(resource) {}
    void write(const Record& record) override {
      std::string span;
      if (encoder.add(record, span)) spans.push_back(parse_json(span).value());
    }
    OtlpEncoder encoder;
    std::vector<Json> spans;
  };
  for (const bool joined : {true, false}) {
    const Variables variables = {{"TRACEPARENT", kParent}};
    auto sink = std::make_shared<Encode>(otlp_resource(joined ? in(variables) : in({})));
    Tracer tracer;
    tracer.add_sink(sink, Level::kFunctions);
    {
      const Attach attach(&tracer);
      inner(1);
      CUTAWAY_SPAN(process, "test::process");
      const At at({.run = tracer.name_run("01RUN")});
      CUTAWAY_PHASE(request, Phase::kRequest, "test::request", "model", "m", "operation",
                    "text_completion", "max_tokens", -1);
      inner(2);
    }
    ASSERT_TRUE(tracer.flush().ok());
    ASSERT_EQ(sink->spans.size(), 4U);
    const Json &first = sink->spans[0], &inside = sink->spans[1], &request = sink->spans[2],
               &process = sink->spans[3];
    EXPECT_EQ(request.at("name"), "text_completion m");
    EXPECT_THAT(request.at("attributes").dump(), Not(HasSubstr("gen_ai.request.max_tokens")));
    EXPECT_EQ(inside.at("parentSpanId"), request.at("spanId"));
    EXPECT_EQ(inside.at("traceId"), request.at("traceId"));
    if (joined) {
      EXPECT_EQ(first.at("traceId"), kTrace);
      EXPECT_EQ(first.at("parentSpanId"), "b7ad6b7169203331");
      EXPECT_EQ(process.at("parentSpanId"), "b7ad6b7169203331");
      EXPECT_EQ(request.at("traceId"), kTrace);
      EXPECT_EQ(request.at("parentSpanId"), process.at("spanId"));
    } else {
      EXPECT_NE(request.at("traceId"), process.at("traceId"));
      EXPECT_EQ(first.at("traceId"), process.at("traceId"));
      EXPECT_FALSE(request.contains("parentSpanId"));
      EXPECT_FALSE(process.contains("parentSpanId"));
    }
  }
}

// A port that takes connections and never answers; or, closed, one where nobody listens.
class Port {
 public:
  Port() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    EXPECT_EQ(::listen(fd_, 16), 0);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  ~Port() { close(); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  const std::string& url() const { return url_; }

 private:
  int fd_;
  std::string url_;
};

OtlpSettings quick(const Port& port) {
  OtlpSettings settings = otlp_settings(port.url(), in({})).value();
  settings.timeout = milliseconds(600);
  settings.first_backoff = milliseconds(20);
  settings.delay = milliseconds(10);
  return settings;
}

struct Traced {
  int64_t writing_ms, finishing_ms;
  OtlpHttpSink::Counts counts;
  std::vector<std::string> warnings;
};

Traced trace_into(OtlpSettings settings, int spans) {
  const auto sink = make_otlp_http_sink(std::move(settings)).value();
  Tracer tracer;
  tracer.add_sink(sink, Level::kFunctions);
  Traced traced;
  const int64_t begin = now_ns();
  {
    const Attach attach(&tracer);
    for (int i = 0; i < spans; ++i) inner(i);
  }
  EXPECT_TRUE(tracer.flush().ok());
  const int64_t written = now_ns();
  EXPECT_TRUE(tracer.finish().ok());
  traced.warnings = tracer.warnings();
  traced.writing_ms = (written - begin) / 1'000'000;
  traced.finishing_ms = (now_ns() - written) / 1'000'000;
  traced.counts = sink->counts();
  const auto& c = traced.counts;
  EXPECT_EQ(c.spans, static_cast<uint64_t>(spans));
  EXPECT_EQ(c.spans, c.delivered + c.queue_full + c.given_up + c.refused);
  return traced;
}

TEST(OtlpHttp, ACollectorThatHangsCostsSpansNotTime) {
  const Port port;
  OtlpSettings settings = quick(port);
  settings.queue_bytes = 100'000;
  const Traced traced = trace_into(std::move(settings), 20'000);
  EXPECT_EQ(traced.counts.delivered, 0U);
  EXPECT_GT(traced.counts.queue_full, 10'000U);
  EXPECT_LT(traced.writing_ms, 5'000);
  EXPECT_LT(traced.finishing_ms, 600 + 1'500);
  ASSERT_EQ(traced.warnings.size(), 1U);
  EXPECT_THAT(traced.warnings[0], HasSubstr("20000 of 20000 spans"));
}

TEST(OtlpHttp, NobodyListeningEndsTheWaitAtOnce) {
  Port port;
  port.close();
  const Traced traced = trace_into(quick(port), 3'000);
  EXPECT_EQ(traced.counts.given_up + traced.counts.queue_full, 3'000U);
  EXPECT_LT(traced.finishing_ms, 500);
  ASSERT_EQ(traced.warnings.size(), 1U);
  EXPECT_THAT(traced.warnings[0], HasSubstr(port.url()));
}

TEST(OtlpHttp, NothingToSendIsNothingToWaitFor) {
  const Port port;
  const Traced traced = trace_into(quick(port), 0);
  EXPECT_LT(traced.finishing_ms, 300);
  EXPECT_TRUE(traced.warnings.empty());
  EXPECT_EQ(traced.counts.requests, 0U);
}

}  // namespace
}  // namespace cutaway::trace
