#include "trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <vector>

#include "base/json.h"
#include "base/utf8.h"
#include "tests/unit/trace_testing.h"

namespace cutaway::trace {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

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

}  // namespace
}  // namespace cutaway::trace
