// Rings, threads, sinks, and the schema of what they write.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <cstdio>
#include <cstring>
#include <random>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include "base/json.h"
#include "tests/unit/trace_testing.h"
#include "trace/line_format.h"
#include "trace/ring.h"

namespace cutaway::trace {
namespace {

using testing::HasSubstr;

// ---- rings and threads -------------------------------------------------------------------------

// Every record of every thread arrives, in the order of its thread, through rings that wrap many
// times.
TEST(Rings, AMillionRecordsOfFourThreads) {
  constexpr int kThreads = 4, kEach = 250'000;
  class Check : public Sink {
   public:
    void write(const Record& record) override {
      const int64_t thread = record.fields[0].i, i = record.fields[1].i;
      auto& next = next_[thread];
      if (i != next || record.fields.size() != 2 + static_cast<size_t>(i % 3)) ++wrong_;
      if (i % 3 > 0 && record.fields[2].text.kept != i % 97) ++wrong_;
      next = i + 1;
      if (!threads_.emplace(thread, record.thread).second && threads_[thread] != record.thread) {
        ++wrong_;
      }
      out_of_order_ += record.time_ns < last_ns_;
      last_ns_ = record.time_ns;
      ++count_;
    }
    std::map<int64_t, int64_t> next_;
    std::map<int64_t, uint32_t> threads_;
    int64_t count_ = 0, wrong_ = 0, out_of_order_ = 0, last_ns_ = 0;
  };
  auto sink = std::make_shared<Check>();
  Tracer tracer;
  tracer.add_sink(sink, Level::kFunctions);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const Attach attach(&tracer);
      const std::string text(97, 'x');
      for (int i = 0; i < kEach; ++i) {
        const std::string_view part(text.data(), static_cast<size_t>(i % 97));
        if (i % 3 == 0) event("e", "t", t, "i", i);
        if (i % 3 == 1) event("e", "t", t, "i", i, "x", part);
        if (i % 3 == 2) event("e", "t", t, "i", i, "x", part, "y", 1.0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(tracer.flush().ok());
  EXPECT_EQ(sink->count_, kThreads * kEach);
  EXPECT_EQ(sink->wrong_, 0);
  EXPECT_EQ(sink->threads_.size(), 4U);
  EXPECT_EQ(tracer.stats().records, uint64_t{kThreads} * kEach);
  GTEST_LOG_(INFO) << "out of time order: " << sink->out_of_order_ << " of 1000000; blocked "
                   << tracer.stats().blocked_ns / 1000 << " µs";
}

TEST(Rings, ThreadsAreMergedInTheOrderOfTime) {
  auto sink = std::make_shared<Collect>();
  sink->format = false;
  Tracer tracer;
  tracer.add_sink(sink, Level::kFunctions);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      const Attach attach(&tracer);
      for (int i = 0; i < 200; ++i) {
        event("e", "i", i);
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(tracer.flush().ok());
  ASSERT_EQ(sink->kept.size(), 600U);
  int64_t out_of_order = 0;
  for (size_t i = 1; i < sink->kept.size(); ++i) {
    out_of_order += sink->kept[i].record.time_ns < sink->kept[i - 1].record.time_ns;
  }
  // A thread that loses its processor between the stamp and the ring may come late.
  EXPECT_LE(out_of_order, 6);
}

TEST(Rings, EndedThreadsAreCountedAndTheirRingsFreed) {
  auto sink = std::make_shared<Collect>();
  Tracer tracer;
  tracer.add_sink(sink, Level::kFunctions);
  for (int i = 0; i < 50; ++i) {
    std::thread([&] {
      const Attach attach(&tracer);
      inner(i);
    }).join();
  }
  ASSERT_TRUE(tracer.flush().ok());
  ASSERT_TRUE(tracer.flush().ok());  // a second pass finds the rings empty
  EXPECT_EQ(sink->kept.size(), 100U);
  EXPECT_EQ(tracer.stats().records, 100U);
  EXPECT_EQ(sink->kept.back().record.thread, 49U);
}

TEST(Rings, ASlowSinkHoldsTheWriterBackAndLosesNothing) {
  auto sink = std::make_shared<Collect>();
  sink->format = false;
  sink->delay_us = 20;
  Tracer tracer;
  tracer.add_sink(sink, Level::kFunctions);
  constexpr int kRecords = 6000;  // more than a ring holds
  const std::string text(96, 'x');
  {
    const Attach attach(&tracer);
    for (int i = 0; i < kRecords; ++i) event("e", "i", i, "text", text);
  }
  EXPECT_GT(tracer.stats().blocked_ns, 1'000'000);
  ASSERT_TRUE(tracer.flush().ok());
  ASSERT_EQ(sink->kept.size(), static_cast<size_t>(kRecords));
  for (int i = 0; i < kRecords; ++i) ASSERT_EQ(sink->kept[static_cast<size_t>(i)].fields[0].i, i);
}

TEST(Rings, ARecordAfterARestArrivesWithoutAFlush) {
  auto sink = std::make_shared<Collect>();
  Tracer tracer;
  tracer.add_sink(sink, Level::kFunctions);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const Attach attach(&tracer);
  inner(1);
  const int64_t end = now_ns() + 2'000'000'000;
  while (sink->lines().size() < 2 && now_ns() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(sink->lines().size(), 2U);
}

TEST(Rings, FlushFromManyThreads) {
  auto sink = std::make_shared<Collect>();
  Tracer tracer;
  tracer.add_sink(sink, Level::kFunctions);
  std::vector<std::thread> threads;
  std::atomic<int> missing{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const Attach attach(&tracer);
      for (int i = 0; i < 50; ++i) {
        event("e", "t", t, "i", i);
        (void)tracer.flush();
        const std::lock_guard lock(sink->mutex);
        int seen = 0;
        for (const auto& kept : sink->kept) seen += kept.fields[0].i == t;
        missing += seen != i + 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(missing.load(), 0);
}

TEST(Rings, ATracerDrainsWhenItEnds) {
  auto sink = std::make_shared<Collect>();
  {
    Tracer tracer;
    tracer.add_sink(sink, Level::kFunctions);
    const Attach attach(&tracer);
    for (int i = 0; i < 1000; ++i) inner(i);
  }
  EXPECT_EQ(sink->kept.size(), 2000U);
}

// ---- sinks -------------------------------------------------------------------------------------

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Sinks, JsonlWritesOneObjectALine) {
  const TempDir dir;
  {
    Tracer tracer;
    tracer.add_sink(make_jsonl_sink(dir.file("t.jsonl")).value(), Level::kFunctions);
    const Attach attach(&tracer);
    outer(5);
    ASSERT_TRUE(tracer.flush().ok());
    EXPECT_EQ(std::ranges::count(read_file(dir.file("t.jsonl")), '\n'), 6);
    outer(6);
  }
  std::istringstream lines(read_file(dir.file("t.jsonl")));
  std::string line;
  double last = 0;
  int n = 0;
  for (; std::getline(lines, line); ++n) {
    const Json json = parse_json(line).value();
    EXPECT_GE(json["t_us"].get<double>(), last);
    last = json["t_us"].get<double>();
    EXPECT_EQ(json.contains("duration_us"), json["kind"] == "exit");
  }
  EXPECT_EQ(n, 12);
}

TEST(Sinks, ConsoleWritesWholeLines) {
  const TempDir dir;
  std::FILE* file = std::fopen(dir.file("console").c_str(), "w");
  {
    Tracer tracer;
    tracer.add_sink(make_console_sink(file, false), Level::kFunctions);
    const Attach attach(&tracer);
    for (int i = 0; i < 5000; ++i) inner(i);
  }
  std::fclose(file);
  std::istringstream lines(read_file(dir.file("console")));
  std::string line;
  int n = 0;
  for (; std::getline(lines, line); ++n) {
    ASSERT_THAT(line, HasSubstr(n % 2 == 0 ? " > test::inner IN x=" : " < test::inner OUT y="));
  }
  EXPECT_EQ(n, 10000);
}

// Chrome's format: an array of events in which every slice that begins ends, whatever ends first.
Json perfetto_events(const std::string& path) {
  const std::string text = read_file(path);
  EXPECT_TRUE(Json::accept(text));
  return Json::parse(text);
}

TEST(Sinks, PerfettoSlicesBalanceAndDeepOnesAreFoldedAndCounted) {
  const TempDir dir;
  const std::string path = dir.file("t.perfetto.json");
  constexpr int kDepth = 700, kWritten = 500;
  {
    Tracer tracer;
    tracer.add_sink(make_perfetto_sink(path).value(), Level::kFunctions);
    const Attach attach(&tracer);
    const std::function<void(int)> nest = [&](int depth) {
      CUTAWAY_SPAN(span, "test::nest", "depth", depth);
      if (depth < kDepth) nest(depth + 1);
      CUTAWAY_OUT(span, "text", "한국어 \"x\"\n\x1b[31m");
    };
    nest(1);
    nest(kDepth);
  }
  int begun = 0, ended = 0, folded = 0;
  for (const Json& event : perfetto_events(path)) {
    const auto kind = event.at("ph").get<std::string>();
    begun += kind == "B";
    ended += kind == "E";
    if (kind == "E") EXPECT_EQ(event.at("args").at("text"), "한국어 \"x\"\n\x1b[31m");
    if (event.at("args").contains("folded_spans"))
      folded += event["args"]["folded_spans"].get<int>();
  }
  EXPECT_EQ(begun, kWritten + 1);
  EXPECT_EQ(ended, begun);
  EXPECT_EQ(folded, kDepth - kWritten);
}

TEST(Sinks, PerfettoGivesEachRunATrackOfItsPhasesAndTokens) {
  const TempDir dir;
  const std::string path = dir.file("t.perfetto.json");
  {
    Tracer tracer;
    tracer.add_sink(make_perfetto_sink(path).value(), Level::kFunctions);
    const Attach attach(&tracer);
    const int64_t run = tracer.name_run("01RUN");
    const At at({.run = run, .seq = 0});
    CUTAWAY_PHASE(request, Phase::kRequest, "test::request");
    for (int step = 0; step < 3; ++step) {
      const At token_at({.run = run, .seq = 0, .step = step, .position = 7 + step});
      CUTAWAY_PHASE(token, Phase::kGenerate, "test::token");
      inner(step);
      CUTAWAY_OUT(token, "piece", step == 1 ? " 한" : "a");
    }
  }
  std::vector<std::string> tokens, tracks, context;
  int slices = 0;
  for (const Json& event : perfetto_events(path)) {
    const auto kind = event.at("ph").get<std::string>(), name = event.at("name").get<std::string>();
    if (kind == "M" && name == "thread_name") tracks.push_back(event["args"]["name"]);
    if (kind == "X") tokens.push_back(name);
    if (kind == "B") ++slices;
    if (kind == "C" && name == "context (tokens)") context.push_back(event["args"]["value"].dump());
  }
  EXPECT_EQ(tokens, (std::vector<std::string>{"a", " 한", "a"}));
  EXPECT_THAT(tracks, testing::Contains("run 01RUN"));
  EXPECT_EQ(context, (std::vector<std::string>{"8.0", "9.0", "10.0"}));
  EXPECT_EQ(slices, 1 + 1 + 3 + 3);  // the request on both tracks; tokens and what is in them
}

TEST(Sinks, OtlpLinesAreWholeAndSpansNest) {
  const TempDir dir;
  const std::string path = dir.file("t.otlp.jsonl");
  constexpr int kSpans = 1300;  // more than one line's
  {
    Tracer tracer;
    tracer.add_sink(make_otlp_sink(path).value(), Level::kFunctions);
    const Attach attach(&tracer);
    const int64_t run = tracer.name_run("01RUN");
    const At at({.run = run, .seq = 0});
    CUTAWAY_PHASE(request, Phase::kRequest, "test::request", "model", "m \"q\"");
    for (int i = 0; i < kSpans; ++i) inner(i);
    event("decided", "why", "because");
    CUTAWAY_OUT(request, "finish", "stop", "tokens", 3, "temperature", 0.5, "error", "none");
  }
  std::map<std::string, Json> spans;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    const Json request = Json::parse(line);
    for (const Json& span : request.at("resourceSpans")[0].at("scopeSpans")[0].at("spans")) {
      EXPECT_EQ(span.at("traceId").get<std::string>().size(), 32U);
      EXPECT_TRUE(spans.emplace(span.at("spanId").get<std::string>(), span).second);
    }
  }
  ASSERT_EQ(spans.size(), size_t{kSpans} + 1);
  int roots = 0;
  for (const auto& [id, span] : spans) {
    if (span.contains("parentSpanId")) {
      const Json& parent = spans.at(span["parentSpanId"].get<std::string>());
      EXPECT_EQ(parent.at("traceId"), span.at("traceId"));
      EXPECT_LE(parent.at("startTimeUnixNano").get<std::string>(),
                span.at("startTimeUnixNano").get<std::string>());
      EXPECT_GE(parent.at("endTimeUnixNano").get<std::string>(),
                span.at("endTimeUnixNano").get<std::string>());
      continue;
    }
    ++roots;
    EXPECT_EQ(span.at("name"), "chat m \"q\"");
    EXPECT_EQ(span.at("status"), Json({{"code", 2}, {"message", "none"}}));
    EXPECT_EQ(span.at("events")[0].at("name"), "decided");
    const std::string attributes = span.at("attributes").dump();
    EXPECT_THAT(attributes, HasSubstr("gen_ai.usage.output_tokens"));
    EXPECT_THAT(attributes, HasSubstr("gen_ai.response.finish_reasons"));
  }
  EXPECT_EQ(roots, 1);
}

TEST(Sinks, AFileThatCannotBeMadeIsAnError) {
  const auto sink = make_jsonl_sink("/nonexistent-folder/trace.jsonl");
  ASSERT_FALSE(sink.ok());
  EXPECT_EQ(sink.error().code, ErrorCode::kIo);
  EXPECT_THAT(sink.error().message, HasSubstr("/nonexistent-folder/trace.jsonl"));
}

TEST(Sinks, AFullDiskIsReportedOnceAndBlocksNobody) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  std::FILE* full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  auto file_sink = make_jsonl_sink("/dev/full").value();
  auto console_sink = make_console_sink(full, false);
  auto good = std::make_shared<Collect>();
  good->format = false;
  {
    Tracer tracer;
    tracer.add_sink(file_sink, Level::kFunctions);
    tracer.add_sink(console_sink, Level::kFunctions);
    tracer.add_sink(good, Level::kFunctions);
    const Attach attach(&tracer);
    inner(0);
    const Status status = tracer.flush();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_THAT(status.error().message, HasSubstr("No space left"));
    for (int i = 0; i < 20000; ++i) inner(i);
  }
  EXPECT_FALSE(file_sink->status().ok());
  EXPECT_FALSE(console_sink->status().ok());
  EXPECT_EQ(good->kept.size(), 40002U);  // one sink's failure is not another's
  std::fclose(full);
}

TEST(Sinks, AClosedPipeIsAnErrorNotADeath) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  std::FILE* stream = ::fdopen(ends[1], "w");
  auto sink = make_console_sink(stream, false);
  {
    Tracer tracer;
    tracer.add_sink(sink, Level::kFunctions);
    const Attach attach(&tracer);
    for (int i = 0; i < 10000; ++i) inner(i);
    const Status status = tracer.flush();
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message, HasSubstr("Broken pipe"));
  }
  (void)std::fclose(stream);
}

TEST(Sinks, RemoveSinkDeliversWhatCameBefore) {
  auto sink = std::make_shared<Collect>();
  Tracer tracer;
  tracer.add_sink(sink, Level::kFunctions);
  const Attach attach(&tracer);
  for (int i = 0; i < 100; ++i) inner(i);
  tracer.remove_sink(sink);
  EXPECT_EQ(sink->kept.size(), 200U);
  inner(0);  // still attached at the old level: counted, dropped
  ASSERT_TRUE(tracer.flush().ok());
  EXPECT_EQ(sink->kept.size(), 200U);
  EXPECT_EQ(tracer.stats().records, 202U);
}

// ---- the schema --------------------------------------------------------------------------------

// As much of JSON Schema as schema/trace.schema.json uses; an unknown keyword fails the test.
class Schema {
 public:
  explicit Schema(Json root) : root_(std::move(root)) {}
  bool accepts(const Json& value) const { return check(root_, value); }

 private:
  bool check(const Json& schema, const Json& v) const {
    if (schema.is_boolean()) return schema.get<bool>();
    for (const auto& [keyword, arg] : schema.items()) {
      if (!check_keyword(schema, keyword, arg, v)) return false;
    }
    return true;
  }
  bool check_keyword(const Json& schema, const std::string& keyword, const Json& arg,
                     const Json& v) const {
    if (keyword == "$ref") {
      return check(root_.at(Json::json_pointer(arg.get<std::string>().substr(1))), v);
    }
    if (keyword == "type") return is_type(arg, v);
    if (keyword == "enum") return std::ranges::find(arg, v) != arg.end();
    if (keyword == "const") return v == arg;
    if (keyword == "minimum") return !v.is_number() || v.get<double>() >= arg.get<double>();
    if (keyword == "maxItems") return !v.is_array() || v.size() <= arg.get<size_t>();
    if (keyword == "maxProperties") return !v.is_object() || v.size() <= arg.get<size_t>();
    if (keyword == "pattern") {
      return !v.is_string() ||
             testing::internal::RE::PartialMatch(v.get<std::string>(), arg.get<std::string>());
    }
    if (keyword == "items") {
      return !v.is_array() || std::ranges::all_of(v, [&](const auto& i) { return check(arg, i); });
    }
    if (keyword == "oneOf") {
      return std::ranges::count_if(arg, [&](const auto& s) { return check(s, v); }) == 1;
    }
    if (keyword == "required") {
      return !v.is_object() || std::ranges::all_of(arg, [&](const auto& key) {
        return v.contains(key.template get<std::string>());
      });
    }
    if (keyword == "properties") {
      for (const auto& [key, sub] : arg.items()) {
        if (v.is_object() && v.contains(key) && !check(sub, v[key])) return false;
      }
      return true;
    }
    if (keyword == "additionalProperties") {
      for (const auto& [key, item] : v.items()) {
        if (v.is_object() && !schema.value("properties", Json::object()).contains(key) &&
            !check(arg, item)) {
          return false;
        }
      }
      return true;
    }
    if (keyword == "if") {
      const bool holds = check(arg, v);
      return check(schema.value(holds ? "then" : "else", Json(true)), v);
    }
    for (const char* note : {"$schema", "$id", "$defs", "title", "description", "then", "else"}) {
      if (keyword == note) return true;
    }
    ADD_FAILURE() << "this test does not know the keyword " << keyword;
    return false;
  }
  static bool is_type(const Json& type, const Json& v) {
    const auto& name = type.get_ref<const std::string&>();
    if (name == "object") return v.is_object();
    if (name == "array") return v.is_array();
    if (name == "string") return v.is_string();
    if (name == "integer") return v.is_number_integer();
    if (name == "number") return v.is_number();
    if (name == "boolean") return v.is_boolean();
    ADD_FAILURE() << "unknown type " << name;
    return false;
  }
  Json root_;
};

TEST(JsonSchema, HoldsForEveryKindOfRecordAndField) {
  const Schema schema(
      parse_json(read_file(CUTAWAY_SOURCE_DIR "/schema/trace.schema.json")).value());
  auto sink = std::make_shared<Collect>();
  Tracer tracer;
  tracer.add_sink(sink, Level::kTensors);
  const std::vector<float> data = {1, std::nanf(""), HUGE_VALF, -HUGE_VALF, 5, 6};
  const std::vector<float> none = {std::nanf(""), std::nanf("")};
  {
    const Attach attach(&tracer);
    CUTAWAY_PHASE(phase, Phase::kGenerate, "test::phase", "level", "tensors");
    outer(1);
    (void)fails_early(true);
    const At at({tracer.name_run("01J"), 2, 3, 4, 5});
    event("e", "int", -1, "unsigned", 1U, "float", 0.1, "nan", std::nan(""), "bool", true, "text",
          "a\xFF", "ids", std::vector<int32_t>(30, 1), "x", TensorView{data.data(), {2, 3}});
    event("e", "text", std::string(200, 'x'), "hash", Hash128{1, 2}, "inf", -HUGE_VAL, "empty",
          TensorView{nullptr, {0, 3}}, "nans", TensorView{none.data(), {2}});
  }
  ASSERT_TRUE(tracer.flush().ok());
  ASSERT_GE(sink->kept.size(), 12U);
  for (const auto& kept : sink->kept) {
    EXPECT_TRUE(schema.accepts(parse_json(kept.json).value())) << kept.json;
  }
  // The schema is no rubber stamp.
  const Json good = parse_json(sink->kept.back().json).value();
  ASSERT_EQ(good["kind"], "exit");
  const auto rejects = [&](auto&& spoil) {
    Json bad = good;
    spoil(bad);
    return !schema.accepts(bad);
  };
  EXPECT_TRUE(rejects([](Json& j) { j.erase("t_us"); }));
  EXPECT_TRUE(rejects([](Json& j) { j.erase("duration_us"); }));
  EXPECT_TRUE(rejects([](Json& j) { j["phase"] = "warmup"; }));
  EXPECT_TRUE(rejects([](Json& j) { j["wall"] = "yesterday"; }));
  EXPECT_TRUE(rejects([](Json& j) { j["extra"] = 1; }));
  EXPECT_TRUE(rejects([](Json& j) { j["layer"] = -1; }));
  EXPECT_TRUE(rejects([](Json& j) { j["fields"]["x"] = nullptr; }));
  EXPECT_TRUE(rejects([](Json& j) { j["fields"]["x"] = {{"dtype", "f32"}}; }));
}

TEST(LineFormat, FourDigitsAreThoseOfPrintf) {
  std::mt19937 random(4);
  std::vector<uint32_t> bits = {0, 0x80000000, 1, 0x80000001, 0x7F7FFFFF, 0x00800000, 0x7F800000};
  for (const float x : {1.0F, 10.0F, 9999.0F, 9999.5F, 10000.0F, 2048.5F, 2049.5F, 0.0001F, 1e-4F,
                        9.9995e-5F, 0.99995F, 1e10F, 123456.0F, 0.5F, 100.25F, -7.0F}) {
    uint32_t b;
    std::memcpy(&b, &x, sizeof b);
    bits.push_back(b);
  }
  for (int i = 0; i < 500'000; ++i) bits.push_back(static_cast<uint32_t>(random()));
  // Integers and halves, where ties are.
  for (int i = 0; i < 200'000; ++i) {
    const float x = static_cast<float>(i) / 2;
    uint32_t b;
    std::memcpy(&b, &x, sizeof b);
    bits.push_back(b);
  }
  for (const uint32_t b : bits) {
    float x;
    std::memcpy(&x, &b, sizeof x);
    if (x != x) continue;
    char expected[32];
    std::snprintf(expected, sizeof expected, "%.4g", static_cast<double>(x));
    std::string got;
    append_4_digits(got, x);
    ASSERT_EQ(got, expected) << b;
  }
}

}  // namespace
}  // namespace cutaway::trace
