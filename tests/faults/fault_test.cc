// Every allocation of loading a model and of answering, and every operation on files, fails once,
// in turn: each time there is an error that says so, or what there would have been; and a session
// that had such an error gives the next answer as if nothing had been. The exceptions
// (docs/errors.md): the JSON library's destructor allocates, and a destructor that cannot ends the
// program; so does Rust when it cannot have the few bytes that it keeps for a thread.
//
// Answers are tried each in a process of its own, which also looks for leaks where AddressSanitizer
// is there to find them.
#include <execinfo.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <new>

#include "cutaway/engine.h"
#include "cutaway/model.h"
#include "tests/faults/operations.h"

namespace cutaway {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

const std::string kModel = CUTAWAY_SOURCE_DIR "/tests/golden/llama-mqa.gguf";

GenerateRequest question() {
  GenerateRequest request;
  request.prompt = "the hat";
  request.max_tokens = 3;
  request.top_logprobs = 1;
  request.sampling.temperature = 0;
  return request;
}

Result<std::string> load_and_answer(const GenerateRequest& request) {
  EngineOptions options;
  options.threads = 2;
  CUTAWAY_ASSIGN(const auto engine, Engine::create(options));
  CUTAWAY_ASSIGN(const auto model, engine->load(kModel, {}));
  CUTAWAY_ASSIGN(const auto session, model->start({}));
  CUTAWAY_ASSIGN(const Generation answer, session->generate(request, {}));
  return answer.logits_hash;
}

Result<std::string> load() {
  EngineOptions options;
  options.threads = 2;
  CUTAWAY_ASSIGN(const auto engine, Engine::create(options));
  CUTAWAY_ASSIGN(const auto model, engine->load(kModel, {}));
  CUTAWAY_ASSIGN(const auto session, model->start({}));
  return model->name();
}

bool is_clear(Kind kind, const Error& error) {
  const auto has = [&](const char* text) { return error.message.find(text) != std::string::npos; };
  if (kind == kFiles) return error.code == ErrorCode::kIo && has("llama-mqa.gguf");
  return (error.code == ErrorCode::kTooLarge && has("memory")) || has("no memory") ||
         has("enough memory") || has("thread");
}

template <typename Work>
Tally fail_each(Kind kind, int64_t step, const std::string& expected, const Work& work) {
  Tally tally;
  for (int64_t n = 0;; n += step) {
    auto [result, count] = with_fault(kind, n, work);
    if (result.ok()) {
      EXPECT_EQ(*result, expected) << "operation " << n;
      ++tally.same;
      // Threads share the work as they come: the number of operations differs a little.
      if (count <= n) break;
    } else {
      EXPECT_TRUE(is_clear(kind, result.error()))
          << "operation " << n << ": " << result.error().message;
      ++tally.errors;
    }
    ++tally.operations;
    if (::testing::Test::HasFailure()) break;
  }
  return tally;
}

class Faults : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto answer = load_and_answer(request_);
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    expected_ = *answer;
  }
  const GenerateRequest request_ = question();
  std::string expected_;
};

TEST_F(Faults, EveryAllocationOfLoading) {
  const Tally tally = fail_each(kMemory, kSanitized ? 17 : 1, "llama-mqa", [] { return load(); });
  print("memory", tally);
  EXPECT_GT(tally.errors, kSanitized ? 30 : 500);
}

// ---- answers, each in a process of its own ----

constexpr const char* kChatModel = CUTAWAY_SOURCE_DIR "/tests/golden/llama-gqa3-tied.gguf";

// What became of an answer of which an allocation failed.
enum Ended : int {
  kSame = 40,   // as without
  kError,       // a clear one
  kUnclear,     // another
  kOtherAfter,  // the next answer of the session was not what it should be
  kBeyond,      // as without, and there are no more allocations than that
  kInJson,      // the documented exception
  kTerminated,  // by something else
  kEscaped,     // by an exception that reached the caller
};

void on_terminate() {
  g_armed = false;
  void* frames[64];
  const int n = ::backtrace(frames, 64);
  char** names = ::backtrace_symbols(frames, n);
  for (int i = 0; i < n; ++i) {
    // A function of nlohmann's, or of a container of its values; that json_value::destroy() is
    // among them is not always to be seen: it may be in line.
    const bool in_json = std::strstr(names[i], "(_ZN8nlohmann") != nullptr ||
                         std::strstr(names[i], "(_ZNK8nlohmann") != nullptr ||
                         (std::strstr(names[i], "(_ZNSt") != nullptr &&
                          std::strstr(names[i], "N8nlohmann") != nullptr);
    if (in_json) ::_exit(kInJson);
  }
  for (int i = 0; i < n; ++i) std::fprintf(stderr, "  %s\n", names[i]);
  ::_exit(kTerminated);
}

// Nothing but the answer itself may fail: what this makes of it comes after.
Result<std::string> answer_of(Session& session, const GenerateRequest& request) {
  const Result<Generation> answer = session.generate(request, {});
  g_armed = false;
  if (!answer.ok()) return answer.error();
  return answer->logits_hash + " " + answer->text;
}

// In the child. Threads do not survive a fork: everything begins here.
int answer_with_fault(const char* path, const GenerateRequest& request, int64_t n) {
  std::set_terminate(on_terminate);
  EngineOptions options;
  options.threads = 2;
  const auto engine = Engine::create(options);
  if (!engine.ok()) return kUnclear;
  const auto model = (*engine)->load(path, {});
  if (!model.ok()) return kUnclear;
  std::string expected;
  {
    const auto session = (*model)->start({});
    const auto answer = answer_of(**session, request);
    if (!answer.ok()) return kUnclear;
    expected = *answer;
  }
  const auto session = (*model)->start({});
  g_count[kMemory] = 0;
  g_failing[kMemory] = n;
  g_armed = true;
  const Result<std::string> answer = answer_of(**session, request);
  const auto again = answer_of(**session, request);
  if (!again.ok() || *again != expected) return kOtherAfter;
  if (!answer.ok()) {
    if (is_clear(kMemory, answer.error())) return kError;
    std::fprintf(stderr, "allocation %lld: %s\n", static_cast<long long>(n),
                 answer.error().message.c_str());
    return kUnclear;
  }
  if (*answer != expected) return kOtherAfter;
  return g_count[kMemory] <= n ? kBeyond : kSame;
}

// The exit status of `body` in a process of its own; 128 + the signal that ended it.
int in_a_process(const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    int ended = kEscaped;
    try {
      ended = body();
    } catch (...) {  // past guarded(): the exception is the caller's
      g_armed = false;
    }
    std::exit(ended);  // with what runs at exit: the search for leaks
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void every_allocation_of(const char* what, const char* path, const GenerateRequest& request,
                         int64_t most_rust_threads) {
  int64_t same = 0, errors = 0, in_json = 0, in_rust = 0, n = 0;
  // A checker that is slow (valgrind, which finds leaks in this build) looks at some of them.
  const char* wanted = std::getenv("CUTAWAY_FAULT_STEP");
  const int64_t step = wanted != nullptr ? std::max(1, std::atoi(wanted)) : kSanitized ? 13 : 1;
  for (;; n += step) {
    const int ended = in_a_process([&] { return answer_with_fault(path, request, n); });
    if (ended == kBeyond) break;
    same += ended == kSame;
    errors += ended == kError;
    in_json += ended == kInJson;
    in_rust += ended == 128 + SIGABRT;
    ASSERT_TRUE(ended == kSame || ended == kError || ended == kInJson || ended == 128 + SIGABRT)
        << "allocation " << n << ": ended with " << ended;
    ASSERT_LE(in_rust, most_rust_threads) << "allocation " << n << " ended the program";
  }
  std::printf(
      "%s: %lld allocations failed in turn: %lld errors, %lld answers as without, %lld ends in the "
      "JSON library's destructor, %lld for want of a thread in Rust\n",
      what, static_cast<long long>(same + errors + in_json + in_rust),
      static_cast<long long>(errors), static_cast<long long>(same), static_cast<long long>(in_json),
      static_cast<long long>(in_rust));
  EXPECT_GT(errors, step > 1 ? 1 : 100);
  EXPECT_LT(in_json, std::max<int64_t>(errors / 4, 2));
}

TEST(Answers, EveryAllocationOfARawPromptsAnswer) {
  every_allocation_of("a raw prompt's answer", kModel.c_str(), question(), 0);
}

TEST(Answers, EveryAllocationOfAChatsAnswer) {
  GenerateRequest request = question();
  request.prompt.reset();
  request.messages = Json::array({{{"role", "user"}, {"content", "the hat"}}});
  every_allocation_of("a chat's answer", kChatModel, request, 4);
}

TEST_F(Faults, EveryFileOperationOfLoadingAndAnswering) {
  const Tally tally = fail_each(kFiles, 1, expected_, [&] { return load_and_answer(request_); });
  print("files", tally);
  EXPECT_GT(tally.errors, 10);
}

}  // namespace
}  // namespace cutaway
