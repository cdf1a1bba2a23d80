// The live side stream: bounded queues that drop and count, subscribers that come and go.
#include "trace/live.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "base/json.h"
#include "tests/unit/trace_testing.h"

namespace cutaway::trace {
namespace {

using std::chrono::milliseconds;

// Everything that is there, until nothing comes for a while.
std::vector<Json> read_all(LiveStream& stream, milliseconds patience = milliseconds(300)) {
  std::vector<Json> records;
  for (;;) {
    const LiveStream::Batch batch = stream.next(100, patience);
    for (const auto& line : batch.lines) records.push_back(parse_json(*line).value());
    if (batch.lines.empty()) return records;
  }
}

TEST(Live, ASubscriberGetsTheRecordsOfItsRunAndLevel) {
  Tracer tracer;
  LiveHub hub(tracer);
  const auto all = hub.subscribe({});
  const auto phases = hub.subscribe({.run = "", .level = Level::kPhases});
  const auto one = hub.subscribe({.run = "01B"});
  {
    const Attach attach(&tracer);
    for (const char* id : {"01A", "01B"}) {
      const At at({.run = tracer.name_run(id)});
      CUTAWAY_PHASE(span, Phase::kRequest, "test::request", "id", id);
      inner(1);
    }
    inner(2);
  }
  EXPECT_EQ(read_all(*all).size(), 10U);
  const auto of_phases = read_all(*phases);
  ASSERT_EQ(of_phases.size(), 4U);
  for (const Json& record : of_phases) EXPECT_EQ(record.at("name"), "test::request");
  const auto of_one = read_all(*one);
  ASSERT_EQ(of_one.size(), 4U);
  for (const Json& record : of_one) EXPECT_EQ(record.at("run"), "01B");
}

TEST(Live, OnlyTheOneWhoAskedForDigestsGetsThem) {
  Tracer tracer;
  LiveHub hub(tracer);
  const auto plain = hub.subscribe({});
  const auto digests = hub.subscribe({.run = "", .level = Level::kTensors});
  const float values[] = {1, 2, 3};
  {
    const Attach attach(&tracer);
    event("e", "x", TensorView{values, Shape({3})});
  }
  const auto with = read_all(*digests), without = read_all(*plain);
  ASSERT_EQ(with.size(), 1U);
  ASSERT_EQ(without.size(), 1U);
  EXPECT_EQ(with[0].at("fields").at("x").at("max"), 3);
  EXPECT_FALSE(without[0].at("fields").at("x").contains("max"));
  EXPECT_EQ(without[0].at("fields").at("x").at("shape"), Json({3}));
}

// The level in force is the highest that someone wants, of this tracer alone, and falls again.
TEST(Live, TheLevelIsTheHighestOfItsSubscribersPerTracer) {
  Tracer tracer, other;
  LiveHub hub(tracer);
  EXPECT_EQ(tracer.level(), Level::kOff);
  auto low = hub.subscribe({.run = "", .level = Level::kPhases});
  EXPECT_EQ(tracer.level(), Level::kPhases);
  auto high = hub.subscribe({.run = "", .level = Level::kTensors});
  EXPECT_EQ(tracer.level(), Level::kTensors);
  auto sink = std::make_shared<Collect>();
  tracer.add_sink(sink, Level::kFunctions);
  high.reset();
  EXPECT_EQ(tracer.level(), Level::kFunctions);
  tracer.remove_sink(sink);
  EXPECT_EQ(tracer.level(), Level::kPhases);
  low.reset();
  EXPECT_EQ(tracer.level(), Level::kOff);
  EXPECT_EQ(other.level(), Level::kOff);
  EXPECT_EQ(hub.subscribers(), 0U);
}

// A run that is under way: the thread attached while nobody watched.
TEST(Live, ALateSubscriberJoinsWithTheNextPhase) {
  Tracer tracer;
  LiveHub hub(tracer);
  const Attach attach(&tracer);
  CUTAWAY_PHASE(request, Phase::kRequest, "test::request");
  inner(0);
  auto stream = hub.subscribe({});
  inner(1);
  {
    CUTAWAY_PHASE(token, Phase::kGenerate, "test::token");
    inner(2);
  }
  const auto records = read_all(*stream);
  ASSERT_EQ(records.size(), 4U);
  EXPECT_EQ(records[0].at("name"), "test::token");
  EXPECT_EQ(records[1].at("fields").at("x"), 2);
  stream.reset();
  CUTAWAY_PHASE(token, Phase::kGenerate, "test::token");
  EXPECT_FALSE(enabled(Level::kPhases));
}

TEST(Live, ASlowReaderLosesRecordsIsToldHowManyAndHoldsNobodyBack) {
  constexpr int kRecords = 50'000;
  Tracer tracer;
  auto file = std::make_shared<Collect>();
  file->format = false;
  tracer.add_sink(file, Level::kFunctions);
  LiveHub hub(tracer);
  const auto stream = hub.subscribe({.run = "", .max_lines = 100});
  {
    const Attach attach(&tracer);
    for (int i = 0; i < kRecords; ++i) event("e", "i", i);
  }
  ASSERT_TRUE(tracer.flush().ok());
  EXPECT_EQ(file->kept.size(), size_t{kRecords});  // nothing of what others get is lost
  auto records = read_all(*stream);
  {
    const Attach attach(&tracer);
    event("e", "i", kRecords);
  }
  for (Json& record : read_all(*stream)) records.push_back(std::move(record));
  // Every record is there or in a gap that says its size, in its place.
  int64_t next = 0;
  for (const Json& record : records) {
    if (record.at("name") == "trace.dropped") {
      EXPECT_EQ(record.at("kind"), "event");
      next += record.at("fields").at("records").get<int64_t>();
    } else {
      EXPECT_EQ(record.at("fields").at("i"), next);
      ++next;
    }
  }
  EXPECT_EQ(next, kRecords + 1);
  EXPECT_EQ(stream->stats().records + stream->stats().dropped, uint64_t{kRecords} + 1);
  EXPECT_GE(stream->stats().dropped, uint64_t{kRecords} - 100);
}

TEST(Live, BytesAreBoundedToo) {
  Tracer tracer;
  LiveHub hub(tracer);
  const auto stream = hub.subscribe({.run = "", .max_bytes = 10'000});
  {
    const Attach attach(&tracer);
    for (int i = 0; i < 1000; ++i) event("e", "text", std::string(90, 'x'));
  }
  ASSERT_TRUE(tracer.flush().ok());
  EXPECT_LT(stream->stats().records, 60U);
  EXPECT_EQ(stream->stats().records + stream->stats().dropped, 1000U);
}

TEST(Live, AReaderWaitsAndTheEndOfTheHubEndsIt) {
  Tracer tracer;
  auto hub = std::make_unique<LiveHub>(tracer);
  const auto stream = hub->subscribe({});
  std::atomic<int> lines{0};
  std::thread reader([&] {
    for (;;) {
      const auto batch = stream->next(10, std::chrono::seconds(60));
      lines += static_cast<int>(batch.lines.size());
      if (batch.ended) return;
    }
  });
  {
    const Attach attach(&tracer);
    inner(1);
  }
  hub.reset();
  reader.join();
  EXPECT_EQ(lines.load(), 2);
  const auto after = stream->next(1, milliseconds(0));
  EXPECT_TRUE(after.ended && after.lines.empty());
}

// Subscribers of every level come, read at their own pace and go, while four threads trace.
TEST(Live, SubscribersComeAndGoWhileThreadsTrace) {
  constexpr int kWriters = 4, kReaders = 6, kEach = 20'000, kRounds = 30;
  constexpr int64_t kLines = 100;  // both sides go on until as many are read, though not for ever
  Tracer tracer;
  LiveHub hub(tracer);
  std::atomic<bool> done{false};
  std::atomic<int64_t> read{0}, told{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kWriters; ++t) {
    threads.emplace_back([&, t] {
      const Attach attach(&tracer);
      const At at({.run = tracer.name_run("run-" + std::to_string(t))});
      for (int i = 0; i < kEach || (read <= kLines && i < 200 * kEach); ++i) {
        CUTAWAY_PHASE(token, Phase::kGenerate, "test::token");
        inner(i);
      }
    });
  }
  std::vector<std::thread> readers;
  for (int r = 0; r < kReaders; ++r) {
    readers.emplace_back([&, r] {
      std::mt19937 random(static_cast<unsigned>(r));
      for (int round = 0; !done && (round < kRounds || (read <= kLines && round < 200 * kRounds));
           ++round) {
        const std::string run = r % 2 == 0 ? "" : "run-" + std::to_string(r % kWriters);
        const auto stream = hub.subscribe({run, static_cast<Level>(1 + r % 3), 64, 1 << 16});
        for (int n = 0; n < 20; ++n) {
          const auto batch = stream->next(1 + random() % 50, milliseconds(2));
          for (const auto& line : batch.lines) {
            const Json json = parse_json(*line).value();
            const bool gap = json.at("name") == "trace.dropped";
            told += gap ? json.at("fields").at("records").get<int64_t>() : 0;
            wrong += !gap && !run.empty() && json.at("run") != run;
            ++read;
          }
          if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(500));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  for (std::thread& thread : readers) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_GT(read.load(), kLines);
  EXPECT_EQ(hub.subscribers(), 0U);
  EXPECT_EQ(tracer.level(), Level::kOff);
  GTEST_LOG_(INFO) << read << " lines read, " << told << " records told of as dropped";
}

}  // namespace
}  // namespace cutaway::trace
