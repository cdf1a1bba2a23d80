// Every operation on files fails once, in turn, while a capture and a recording are written: each
// time there is an error that names what was to be made, and nothing of it; or all of it.
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <memory>

#include "cutaway/engine.h"
#include "cutaway/model.h"
#include "cutaway/recording.h"
#include "tests/faults/operations.h"

namespace cutaway {
namespace {

namespace fs = std::filesystem;

class Written : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("faults-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    engine_ = Engine::create({.threads = 2, .force_isa = ""}).value();
    model_ = engine_->load(CUTAWAY_SOURCE_DIR "/tests/golden/llama-mqa.gguf", {}).value();
  }
  void TearDown() override { fs::remove_all(folder_); }

  size_t files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }

  // What is left after an error is one whole recording, which the error names: all that failed was
  // giving it its name.
  void expect_kept(const std::string& message) {
    EXPECT_EQ(files(), 1u) << message;
    const fs::path kept = fs::directory_iterator(folder_)->path();
    EXPECT_NE(message.find("the recording is whole in " + kept.string()), std::string::npos)
        << message;
    EXPECT_TRUE(read_recording(kept.string()).ok()) << message;
    fs::remove_all(kept);
  }

  // `work` makes `target`, by every way that its operations can fail.
  template <typename Work>
  Tally each(const std::string& target, const Work& work) {
    const fs::path made = folder_ / target;
    Tally tally;
    for (int64_t n = 0;; ++n) {
      auto [result, count] = with_fault(kFiles, n, [&] { return work(made.string()); });
      if (result.ok()) {
        EXPECT_TRUE(fs::exists(made)) << "operation " << n;
        EXPECT_EQ(files(), 1u) << "operation " << n;
        ++tally.same;
        if (count <= n) break;
      } else {
        EXPECT_EQ(result.error().code, ErrorCode::kIo) << result.error().message;
        EXPECT_NE(result.error().message.find(target), std::string::npos)
            << "operation " << n << ": " << result.error().message;
        if (files() != 0) expect_kept(result.error().message);
        ++tally.errors;
      }
      fs::remove_all(made);
      ++tally.operations;
      if (HasFailure()) break;
    }
    return tally;
  }

  static GenerateRequest question() {
    GenerateRequest request;
    request.prompt = "the hat";
    request.max_tokens = 3;
    request.sampling.temperature = 0;
    return request;
  }

  fs::path folder_;
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Model> model_;
};

TEST_F(Written, EveryOperationOfACapture) {
  const Tally tally = each("kept.safetensors", [&](const std::string& path) -> Result<std::string> {
    CaptureRequest request;
    request.text = "the hat";
    request.taps = {"resid_post,pattern,logits"};
    request.output = path;
    CUTAWAY_ASSIGN(const Json made, model_->capture(request, {}));
    return made.at("file").get<std::string>();
  });
  print("a capture", tally);
  EXPECT_GE(tally.errors, 5);
}

TEST_F(Written, EveryOperationOfARecording) {
  const Tally tally = each("kept", [&](const std::string& path) -> Result<std::string> {
    GenerateRequest request = question();
    request.record = RecordOptions{.directory = path,
                                   .taps = {"logits"},
                                   .window = {},
                                   .attention_top = 0,
                                   .trace = TraceLevel::kPhases};
    CUTAWAY_ASSIGN(const auto session, model_->start({}));
    CUTAWAY_ASSIGN(const Generation answer, session->generate(request, {}));
    return answer.logits_hash;
  });
  print("a recording", tally);
  EXPECT_GE(tally.errors, 12);
  // The last one, of which no operation failed, is whole.
  EXPECT_TRUE(read_recording((folder_ / "kept").string()).ok());
}

}  // namespace
}  // namespace cutaway
