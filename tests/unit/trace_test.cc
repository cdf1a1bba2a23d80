#include "trace/trace.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "base/utf8.h"
#include "trace/ring.h"
#include "trace/sinks.h"
#include "trace/tracer.h"

namespace cutaway::trace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;

// Keeps what it was given, formatted at once (a record's fields live during write() only).
class Collect : public Sink {
 public:
  struct Kept {
    Record record;
    std::string line;
    std::string json;
    std::vector<Field> fields;
  };
  void write(const Record& record) override {
    if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    const std::lock_guard lock(mutex);
    Kept k{record, "", "", {record.fields.begin(), record.fields.end()}};
    if (format) {
      k.line = format_line(record, false).substr(13);  // without the time
      k.json = format_json(record);
    }
    k.record.fields = {};
    k.record.run = {};
    kept.push_back(std::move(k));
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex);
    std::vector<std::string> all;
    for (const Kept& k : kept) all.push_back(k.line);
    return all;
  }
  bool format = true;
  int delay_us = 0;
  std::mutex mutex;
  std::vector<Kept> kept;
};

class TempDir {
 public:
  TempDir() : path_(std::filesystem::temp_directory_path() / ("cutaway-trace-" + new_ulid())) {
    std::filesystem::create_directories(path_);
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// What is traced here stands for real code.
int inner(int x) {
  CUTAWAY_SPAN(span, "test::inner", "x", x);
  CUTAWAY_OUT(span, "y", x + 1);
  return x + 1;
}

int outer(int x) {
  CUTAWAY_SPAN(span, "test::outer", "x", x);
  const int y = inner(inner(x));
  CUTAWAY_OUT(span, "y", y);
  return y;
}

Status fails_early(bool fail) {
  CUTAWAY_SPAN(span, "test::fails_early", "fail", fail);
  if (fail) return Error{ErrorCode::kInvalidArgument, "no"};
  CUTAWAY_OUT(span, "ok", true);
  return {};
}

// Runs `body` traced at `level` and returns the lines.
template <typename Body>
std::vector<std::string> traced(Level level, Body&& body) {
  auto sink = std::make_shared<Collect>();
  Tracer tracer;
  tracer.add_sink(sink, level);
  {
    const Attach attach(&tracer);
    body();
  }
  EXPECT_TRUE(tracer.flush().ok());
  return sink->lines();
}

TEST(Levels, NamesAndParsing) {
  for (const Level level : {Level::kOff, Level::kPhases, Level::kFunctions, Level::kTensors}) {
    EXPECT_EQ(parse_level(level_name(level)).value(), level);
  }
  const auto wrong = parse_level("all\x1b");
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(wrong.error().message, HasSubstr("off, phases, functions, tensors"));
  EXPECT_EQ(wrong.error().field, "trace");
}

TEST(Levels, EachLevelShowsItsRecords) {
  const auto request = [] {
    CUTAWAY_PHASE(phase, Phase::kPrompt, "test::phase");
    inner(1);
    event("test::event", "n", 1);
  };
  EXPECT_EQ(traced(Level::kOff, request).size(), 0U);
  EXPECT_EQ(traced(Level::kPhases, request).size(), 2U);
  EXPECT_EQ(traced(Level::kFunctions, request).size(), 5U);
  EXPECT_EQ(traced(Level::kTensors, request).size(), 5U);
}

TEST(Levels, TheHighestSinkDecidesAndEachGetsItsOwn) {
  auto phases = std::make_shared<Collect>(), functions = std::make_shared<Collect>(),
       tensors = std::make_shared<Collect>();
  Tracer tracer;
  EXPECT_EQ(tracer.level(), Level::kOff);
  tracer.add_sink(phases, Level::kPhases);
  EXPECT_EQ(tracer.level(), Level::kPhases);
  tracer.add_sink(tensors, Level::kTensors);
  tracer.add_sink(functions, Level::kFunctions);
  EXPECT_EQ(tracer.level(), Level::kTensors);
  const std::vector<float> data(6, 2.0F);
  {
    const Attach attach(&tracer);
    CUTAWAY_PHASE(phase, Phase::kPrefill, "test::phase");
    CUTAWAY_SPAN(span, "test::op", "x", (TensorView{data.data(), {2, 3}}));
  }
  ASSERT_TRUE(tracer.flush().ok());
  EXPECT_EQ(phases->kept.size(), 2U);
  EXPECT_EQ(functions->kept.size(), 4U);
  EXPECT_EQ(tensors->kept.size(), 4U);
  EXPECT_THAT(functions->lines()[1], testing::EndsWith("x=f32[2,3]"));
  EXPECT_THAT(tensors->lines()[1],
              HasSubstr("x=f32[2,3] min=2 max=2 mean=2 l2=4.899 nan=0 [2,2,2,…] xxh3="));
  tracer.remove_sink(tensors);
  EXPECT_EQ(tracer.level(), Level::kFunctions);
}

TEST(Spans, OffEvaluatesNoArgument) {
  int evaluated = 0;
  const auto value = [&] { return ++evaluated; };
  const auto function = [&] {
    CUTAWAY_SPAN(span, "test::lazy", "v", value());
    CUTAWAY_OUT(span, "v", value());
  };
  function();
  EXPECT_EQ(evaluated, 0);
  Tracer tracer;  // without sinks: off
  {
    const Attach attach(&tracer);
    function();
    EXPECT_FALSE(enabled());
  }
  EXPECT_EQ(evaluated, 0);
  EXPECT_EQ(tracer.stats().records, 0U);
  EXPECT_EQ(traced(Level::kFunctions, function).size(), 2U);
  EXPECT_EQ(evaluated, 2);
}

TEST(Spans, NestAndReportInAndOut) {
  const auto lines = traced(Level::kFunctions, [] { outer(1); });
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_EQ(lines[0], "[TRACE] phase=startup > test::outer IN x=1");
  EXPECT_EQ(lines[1], "[TRACE] phase=startup   > test::inner IN x=1");
  EXPECT_THAT(lines[2], MatchesRegex("\\[TRACE\\] phase=startup   < test::inner OUT y=2 "
                                     "\\([0-9]+ µs\\)"));
  EXPECT_EQ(lines[3], "[TRACE] phase=startup   > test::inner IN x=2");
  EXPECT_THAT(lines[5], MatchesRegex("\\[TRACE\\] phase=startup < test::outer OUT y=3 "
                                     "\\([0-9]+ µs\\)"));
}

TEST(Spans, AnEarlyReturnReportsAnEmptyOut) {
  const auto lines = traced(Level::kFunctions, [] {
    EXPECT_FALSE(fails_early(true).ok());
    EXPECT_TRUE(fails_early(false).ok());
  });
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_THAT(lines[1], MatchesRegex(".*< test::fails_early OUT \\([0-9]+ µs\\)"));
  EXPECT_THAT(lines[3], HasSubstr("OUT ok=true ("));
  EXPECT_EQ(t_context.depth, 0);
}

TEST(Spans, APhaseHoldsForWhatIsInside) {
  const auto lines = traced(Level::kFunctions, [] {
    CUTAWAY_PHASE(request, Phase::kRequest, "test::request");
    {
      CUTAWAY_PHASE(prompt, Phase::kPrompt, "test::prompt");
      inner(1);
    }
    event("test::note");
  });
  ASSERT_EQ(lines.size(), 7U);
  EXPECT_THAT(lines[0], HasSubstr("phase=request > test::request IN"));
  EXPECT_THAT(lines[1], HasSubstr("phase=prompt   > test::prompt IN"));
  EXPECT_THAT(lines[2], HasSubstr("phase=prompt     > test::inner IN"));
  EXPECT_THAT(lines[4], HasSubstr("phase=prompt   < test::prompt OUT"));
  EXPECT_EQ(lines[5], "[TRACE] phase=request   * test::note");
  EXPECT_THAT(lines[6], HasSubstr("phase=request < test::request OUT"));
  EXPECT_EQ(t_context.phase, Phase::kStartup);
}

TEST(Spans, CoordinatesOfARun) {
  auto sink = std::make_shared<Collect>();
  Tracer tracer;
  tracer.add_sink(sink, Level::kFunctions);
  const int64_t run = tracer.name_run("01RUN");
  EXPECT_EQ(tracer.run_id(run), "01RUN");
  EXPECT_EQ(tracer.run_id(run + 1), "");
  {
    const Attach attach(&tracer);
    const At at({run, 0, 7, 41, 3});
    inner(1);
  }
  inner(2);
  ASSERT_TRUE(tracer.flush().ok());
  ASSERT_EQ(sink->kept.size(), 2U);
  EXPECT_EQ(sink->lines()[0], "[TRACE] phase=startup > test::inner IN x=1 l=3 p=41 s=7");
  const Json json = parse_json(sink->kept[1].json).value();
  EXPECT_EQ(json["run"], "01RUN");
  EXPECT_EQ(json["seq"], 0);
  EXPECT_EQ(json["step"], 7);
  EXPECT_EQ(json["position"], 41);
  EXPECT_EQ(json["layer"], 3);
}

TEST(Spans, AttachSurvivesNesting) {
  Tracer a, b;
  auto in_a = std::make_shared<Collect>(), in_b = std::make_shared<Collect>();
  a.add_sink(in_a, Level::kFunctions);
  b.add_sink(in_b, Level::kFunctions);
  for (int i = 0; i < 3; ++i) {
    const Attach to_a(&a);
    inner(1);
    {
      const Attach to_b(&b);
      inner(2);
      const Attach off(nullptr);
      inner(3);
    }
    inner(4);
  }
  ASSERT_TRUE(a.flush().ok() && b.flush().ok());
  EXPECT_EQ(in_a->kept.size(), 12U);
  EXPECT_EQ(in_b->kept.size(), 6U);
  EXPECT_EQ(in_a->kept[2].fields[0].i, 4);
}

std::string json_of(std::string_view text) {
  auto sink = std::make_shared<Collect>();
  Tracer tracer;
  tracer.add_sink(sink, Level::kFunctions);
  {
    const Attach attach(&tracer);
    event("test::text", "text", text);
  }
  (void)tracer.flush();
  return sink->kept.at(0).json;
}

std::string value_of(std::string_view text) {
  const auto lines = traced(Level::kFunctions, [&] { event("test::text", "text", text); });
  return lines.at(0).substr(lines[0].find("text=") + 5);
}

TEST(Text, HostileTextStaysOneHarmlessLine) {
  EXPECT_EQ(value_of("a\"b\\c\n\t\r"), R"("a\"b\\c\n\t\r")");
  EXPECT_EQ(value_of("\x1b[2J\x07\x7f"), R"("\u001b[2J\u0007\u007f")");
  EXPECT_EQ(value_of(std::string_view("\0", 1)), R"("\u0000")");
  EXPECT_EQ(value_of("\xC2\x9B"
                     "31m"),
            R"("\u009b31m")");                         // a one-character CSI
  EXPECT_EQ(value_of("\xE2\x80\xAE"), R"("\u202e")");  // right-to-left override
  EXPECT_EQ(value_of("\xE2\x80\xA8\xE2\x80\xA9\xC2\x85"), R"("\u2028\u2029\u0085")");
  EXPECT_EQ(value_of("한국어 🙂"), "\"한국어 🙂\"");
  EXPECT_EQ(value_of("a\xFF"
                     "b\xE2\x82"),
            "\"a\uFFFDb\uFFFD\uFFFD\"");
}

TEST(Text, EveryByteAndPairGivesValidJson) {
  std::vector<std::string> hostile;
  for (int a = 0; a < 256; ++a) hostile.push_back(std::string(1, static_cast<char>(a)));
  for (int a = 0; a < 256; a += 5) {
    for (int b = 0; b < 256; b += 3) {
      hostile.push_back({static_cast<char>(a), static_cast<char>(b)});
    }
  }
  auto sink = std::make_shared<Collect>();
  Tracer tracer;
  tracer.add_sink(sink, Level::kFunctions);
  {
    const Attach attach(&tracer);
    for (const std::string& text : hostile) event("test::text", "text", text);
  }
  ASSERT_TRUE(tracer.flush().ok());
  ASSERT_EQ(sink->kept.size(), hostile.size());
  for (size_t i = 0; i < hostile.size(); ++i) {
    const auto json = parse_json(sink->kept[i].json);
    ASSERT_TRUE(json.ok()) << sink->kept[i].json;
    const auto text = (*json)["fields"]["text"].get<std::string>();
    if (utf8_valid(hostile[i])) {
      ASSERT_EQ(text, hostile[i]);
    }
    for (const char c : sink->kept[i].line) ASSERT_TRUE(c != '\n' && c != '\x1b' && c != '\x7f');
    ASSERT_TRUE(utf8_valid(sink->kept[i].line));
  }
}

TEST(Text, IsClippedBetweenCharactersAndSaysItsSize) {
  const std::string long_text(1000, 'x');
  EXPECT_EQ(value_of(long_text), '"' + std::string(96, 'x') + "…\" (1000 bytes)");
  // 94 + 3 bytes: the third byte of the last character would be cut off.
  std::string text(94, 'x');
  text += "€€";
  EXPECT_EQ(value_of(text), '"' + std::string(94, 'x') + "…\" (100 bytes)");
  EXPECT_EQ(value_of(std::string(96, 'y')), '"' + std::string(96, 'y') + '"');
  const Json json = parse_json(json_of(text)).value();
  EXPECT_EQ(json["fields"]["text"]["bytes"], 100);
  EXPECT_EQ(json["fields"]["text"]["text"], std::string(94, 'x'));
}

TEST(Values, EachKindOnTheConsole) {
  std::vector<int32_t> ids(20);
  for (int i = 0; i < 20; ++i) ids[static_cast<size_t>(i)] = 100 + i;
  const auto lines = traced(Level::kFunctions, [&] {
    event("e", "a", -3, "b", uint64_t{18446744073709551615U}, "c", 0.25, "d", false, "e", "literal",
          "f", std::vector<int32_t>{1, 2}, "g", ids, "h", Hash128{1, 0xabcdef});
    event("e", "ids", std::vector<int32_t>{}, "nan", std::nan(""), "inf", HUGE_VAL, "error",
          Error{ErrorCode::kIo, "disk"}, "size", size_t{7}, "char8", int8_t{-1});
  });
  EXPECT_THAT(lines[0],
              HasSubstr("a=-3 b=18446744073709551615 c=0.25 d=false e=\"literal\" f=[1,2] "
                        "g=[100,101,102,103,104,105,106,107,108,109,110,111,…] "
                        "h=00000000000000010000000000abcdef"));
  EXPECT_THAT(lines[1], HasSubstr("ids=[] nan=nan inf=inf error=\"disk\" size=7 char8=-1"));
}

TEST(Values, ATensorIsItsShapeAndItsDigest) {
  const std::vector<float> data = {0.5F, -2.0F, std::nanf(""), 1.5F, 4.0F, 0.0F};
  const TensorView view{data.data(), {1, 6}};
  const auto shape = traced(Level::kFunctions, [&] { event("e", "x", view, "y", view); });
  EXPECT_EQ(shape.at(0), "[TRACE] phase=startup * e x=f32[1,6] y=f32[1,6]");
  const auto full = traced(Level::kTensors, [&] { event("e", "x", view); });
  EXPECT_THAT(full.at(0), HasSubstr("x=f32[1,6] min=-2 max=4 mean=0.8 l2=4.743 nan=1 "
                                    "[0.5,-2,nan,1.5,…] xxh3="));
  EXPECT_THAT(full.at(0), testing::EndsWith("xxh3=" + xxh3_128(data.data(), 24).hex()));
}

TEST(Values, ExpectedDurations) {
  Record record;
  record.kind = RecordKind::kExit;
  record.name = "f";
  const std::pair<int64_t, std::string> cases[] = {{0, "(0 µs)"},
                                                   {41'400, "(41 µs)"},
                                                   {41'500, "(42 µs)"},
                                                   {10'000'000, "(10000 µs)"},
                                                   {10'050'000, "(10.1 ms)"},
                                                   {1'234'567'890, "(1234.6 ms)"}};
  for (const auto& [ns, text] : cases) {
    record.duration_ns = ns;
    EXPECT_THAT(format_line(record, false), testing::EndsWith("< f OUT " + text));
  }
}

TEST(Values, TheConsoleLineOfTheDocumentation) {
  Field text, ids, n;
  text.key = "text";
  text.kind = FieldKind::kText;
  const std::string_view question = "What is 2 + 2?";
  text.text.full_size = text.text.kept = static_cast<uint8_t>(question.size());
  question.copy(text.text.bytes, question.size());
  Record record;
  record.kind = RecordKind::kEnter;
  record.phase = Phase::kPrompt;
  record.name = "text::Tokenizer::encode";
  record.wall_us = 1'700'000'000'123'456;
  record.fields = {&text, 1};
  EXPECT_EQ(format_line(record, false),
            clock_text(record.wall_us) +
                " [TRACE] phase=prompt > text::Tokenizer::encode IN text=\"What is 2 + 2?\"");
  EXPECT_THAT(format_line(record, false), MatchesRegex("[0-9][0-9]:[0-9][0-9]:[0-9][0-9].123 .*"));
  EXPECT_THAT(format_line(record, true), HasSubstr("\x1b[1mtext::Tokenizer::encode\x1b[0m"));
  EXPECT_THAT(format_json(record), HasSubstr("\"wall\":\"2023-11-14T22:13:20.123456Z\""));
}

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

}  // namespace
}  // namespace cutaway::trace
