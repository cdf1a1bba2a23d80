// What a recording's files may not say, when their hashes are right.

#include "inspect/recording.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "base/clock.h"

namespace cutaway::inspect {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class RecordingFiles : public ::testing::Test {
 protected:
  RecordingFiles() : folder_(fs::temp_directory_path() / ("cutaway-recording-" + new_ulid())) {
    Recording recording;
    recording.run = {{"run", "01"},
                     {"created", "2026"},
                     {"text", "a\u2028b 한국어"},
                     {"finish_reason", "stop"},
                     {"model", {{"name", "m"}, {"path", "m.gguf"}, {"packed_xxh3", "0"}}},
                     {"session", {{"kernels", "ref"}, {"cache_type", "f16"}}},
                     {"sampling", Json::object()}};
    recording.n_layers = 2;
    recording.prompt = {1, 2, 3};
    recording.choices = {{7, "a", {1, 2}, {{"step", 0}}}, {8, "b", {3, 4}, {{"step", 1}}}};
    recording.layer_hashes = {{1, 2}, {3, 4}, {5, 6}, {7, 0xffffffffffffffff}};
    RecordingWriter writer = RecordingWriter::create(folder_.string()).value();
    EXPECT_TRUE(writer.commit(recording).ok());
  }
  ~RecordingFiles() override { fs::remove_all(folder_); }

  std::string read(const char* name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const char* name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary | std::ios::trunc) << text;
  }
  // run.json with other contents, and the hashes that belong to them.
  void change(const std::function<void(Json&)>& edit, const std::string& events = "") const {
    if (!events.empty()) write("events.jsonl", events);
    Json run = parse_json(read("run.json")).value();
    run.erase("xxh3");
    const std::string now = read("events.jsonl");
    run["files"]["events.jsonl"] = {{"bytes", now.size()},
                                    {"xxh3", xxh3_128(now.data(), now.size()).hex()}};
    edit(run);
    std::string text = to_text(run, 2);
    text.resize(text.size() - 2);
    const std::string hash = xxh3_128(text.data(), text.size()).hex();
    write("run.json", text + ",\n  \"xxh3\": \"" + hash + "\"\n}\n");
  }
  std::string error() const {
    const auto read = read_recording(folder_.string());
    return read.ok() ? "" : read.error().message;
  }

  fs::path folder_;
};

TEST_F(RecordingFiles, come_back_as_they_were) {
  const Recording back = read_recording(folder_.string()).value();
  EXPECT_EQ(back.run.at("text"), "a\u2028b 한국어");
  EXPECT_EQ(back.run.size(), 7U);
  EXPECT_EQ(back.prompt, (std::vector<int32_t>{1, 2, 3}));
  ASSERT_EQ(back.choices.size(), 2U);
  EXPECT_EQ(back.choices[1].id, 8);
  EXPECT_EQ(back.choices[1].logits, (Hash128{3, 4}));
  EXPECT_EQ(back.choices[1].ledger, Json({{"step", 1}}));
  EXPECT_EQ(back.layer_hashes[3][1], 0xffffffffffffffff);
  EXPECT_EQ(back.computed_tokens(), (std::vector<int32_t>{1, 2, 3, 7}));
}

TEST_F(RecordingFiles, say_what_is_wrong_in_run_json) {
  const std::string good = read("run.json");
  const std::pair<std::function<void(Json&)>, const char*> changes[] = {
      {[](Json& run) { run["version"] = 2; }, "version 2"},
      {[](Json& run) { run["version"] = "1"; }, "version \"1\""},
      {[](Json& run) { run["format"] = "x"; }, "no recording"},
      {[](Json& run) { run["format"] = 1; }, "no recording"},
      {[](Json& run) { run["tokens"] = {-1, 2}; }, "\"tokens\""},
      {[](Json& run) { run["tokens"] = 5; }, "\"tokens\""},
      {[](Json& run) { run["prompt_tokens"] = {1e30}; }, "\"prompt_tokens\""},
      {[](Json& run) { run["prompt_tokens"] = {1, 2}; }, "position 4, the run computed 3"},
      {[](Json& run) { run["tokens"] = {7}; }, "more than the 1"},
      {[](Json& run) { run["tokens"] = {7, 8, 9}; }, "run.json has 3"},
      {[](Json& run) { run["tokens"] = {7, 9}; }, "\"id\" is 8"},
      {[](Json& run) { run["layers"] = 3; }, "3 hashes"},
      {[](Json& run) { run["run"] = 5; }, "\"run\" is 5"},
      {[](Json& run) { run["model"] = "m"; }, "\"model\" is not an object"},
      {[](Json& run) { run["model"]["path"] = nullptr; }, "\"path\" is null"},
      {[](Json& run) { run["session"].erase("kernels"); }, "\"kernels\" is missing"},
      {[](Json& run) { run.erase("sampling"); }, "\"sampling\" is not an object"},
      {[](Json& run) { run["layers"] = 0; }, "\"layers\" is 0"},
      {[](Json& run) { run.erase("layers"); }, "\"layers\" is missing"},
      {[](Json& run) { run["files"]["../x"] = {{"bytes", 1}, {"xxh3", ""}}; }, "../x"},
      {[](Json& run) { run["files"].erase("events.jsonl"); }, "events.jsonl"},
      {[](Json& run) { run["files"] = Json::array(); }, "events.jsonl"},
      {[](Json& run) { run["files"]["events.jsonl"]["bytes"] = -1; }, "\"bytes\" is -1"},
      {[](Json& run) { run["files"]["events.jsonl"] = "x"; }, "\"bytes\" is missing"},
      {[](Json& run) { run["files"]["tensors.safetensors"] = {{"bytes", 1}, {"xxh3", "0"}}; },
       "tensors.safetensors is not there"},
  };
  for (const auto& [edit, word] : changes) {
    change(edit);
    EXPECT_THAT(error(), HasSubstr(word));
    write("run.json", good);
  }
  EXPECT_EQ(error(), "");
}

TEST_F(RecordingFiles, say_what_is_wrong_in_events_and_in_which_line) {
  const std::string run = read("run.json"), events = read("events.jsonl");
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < events.size();) {
    const size_t end = events.find('\n', begin) + 1;
    lines.push_back(events.substr(begin, end - begin));
    begin = end;
  }
  ASSERT_EQ(lines.size(), 6U);
  const auto with = [&](size_t at, const std::string& line) {
    std::string text;
    for (size_t i = 0; i < lines.size(); ++i) text += i == at ? line : lines[i];
    return text;
  };
  const std::pair<std::string, const char*> changes[] = {
      {with(0, "{\n"), "line 1"},
      {with(0, "[]\n"), "line 1"},
      {with(0, "{\"kind\":\"other\"}\n"), "\"other\""},
      {with(1, ""), "\"position\" is 2"},
      {with(1, lines[0]), "\"position\" is 0"},
      {with(3, ""), "end at position 3"},
      {with(1, "{\"kind\":\"hashes\",\"position\":1,\"resid_post\":[\"0\",\"1\"]}\n"), "16 hex"},
      {with(1, "{\"kind\":\"hashes\",\"position\":1}\n"), "16 hex"},
      {with(1, "{\"kind\":\"hashes\",\"position\":1,\"resid_post\":{}}\n"), "16 hex"},
      {with(5, ""), "it has 1 choices"},
      {with(5, lines[4]), "\"step\" is 0"},
      {with(5,
            "{\"kind\":\"sample\",\"step\":1,\"id\":8,\"piece\":\"b\",\"logits_xxh3\":\"zz\"}\n"),
       "32 hex"},
      {with(5, "{\"kind\":\"sample\",\"step\":1,\"id\":8,\"piece\":1}\n"), "\"piece\" is 1"},
  };
  for (const auto& [text, word] : changes) {
    change([](Json&) {}, text);
    EXPECT_THAT(error(), HasSubstr(word)) << text;
    write("run.json", run);
    write("events.jsonl", events);
  }
  EXPECT_EQ(error(), "");
}

TEST_F(RecordingFiles, appear_whole_or_not_at_all) {
  const auto taken = RecordingWriter::create(folder_.string());
  ASSERT_FALSE(taken.ok());
  EXPECT_THAT(taken.error().message, HasSubstr("is there already"));
  const fs::path other = folder_.string() + "-other";
  {
    const RecordingWriter dropped = RecordingWriter::create(other.string()).value();
  }
  EXPECT_FALSE(fs::exists(other));
  for (const auto& entry : fs::directory_iterator(folder_.parent_path())) {
    EXPECT_FALSE(entry.path().string().starts_with(other.string()));
  }
  // What came to the folder meanwhile stays, and so does the recording.
  {
    const Recording recording = read_recording(folder_.string()).value();
    RecordingWriter late = RecordingWriter::create(other.string()).value();
    fs::create_directory(other);
    std::ofstream(other / "theirs") << "x";
    const Status status = late.commit(recording);
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message,
                HasSubstr("Directory not empty; the recording is whole in"));
    std::string found;
    for (const auto& entry : fs::directory_iterator(folder_.parent_path())) {
      const std::string path = entry.path().string();
      if (path.starts_with(other.string() + ".") && path.ends_with(".part")) found = path;
    }
    EXPECT_THAT(status.error().message, HasSubstr(found));
    const auto back = read_recording(found);
    ASSERT_TRUE(back.ok()) << back.error().message;
    EXPECT_EQ(back->prompt, recording.prompt);
    EXPECT_TRUE(fs::exists(other / "theirs"));
    fs::remove_all(found);
    fs::remove_all(other);
  }
  for (const char* name : {"", "/dev/null/x", "."}) {
    EXPECT_FALSE(RecordingWriter::create(name).ok()) << name;
  }
}

}  // namespace
}  // namespace cutaway::inspect
