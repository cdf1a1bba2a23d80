// A file that appears whole under its name or not at all: whatever fails, and whoever else writes.
#include "base/whole_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>

namespace cutaway {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class WholeFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              ("whole-" + std::to_string(::getpid()) + "-" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name = "target") const { return (folder_ / name).string(); }
  std::string text(const std::string& name = "target") const {
    std::ifstream in(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  size_t files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }

  fs::path folder_;
};

TEST_F(WholeFiles, AppearsWithPublish) {
  auto file = WholeFile::create(path());
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_TRUE(file->append("hello", 5).ok());
  ASSERT_TRUE(file->append(" world", 6).ok());
  ASSERT_TRUE(file->write_at("J", 1, 0).ok());
  ASSERT_TRUE(file->extend(13).ok());
  EXPECT_FALSE(fs::exists(path()));
  ASSERT_TRUE(file->publish().ok());
  EXPECT_EQ(text(), std::string("Jello world\0\0", 13));
  EXPECT_EQ(files(), 1u);
}

TEST_F(WholeFiles, LeavesNothingWithoutPublish) {
  ASSERT_TRUE(write_whole_file(path(), "old").ok());
  {
    auto file = WholeFile::create(path());
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->append("new", 3).ok());
    std::optional<WholeFile> moved(std::move(*file));  // one of them owns it
    EXPECT_EQ(files(), 2u);
  }
  EXPECT_EQ(files(), 1u);
  EXPECT_EQ(text(), "old");
}

TEST_F(WholeFiles, ReplacesOrKeepsWhatIsThere) {
  ASSERT_TRUE(write_whole_file(path(), "old").ok());
  auto file = WholeFile::create(path());
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->append("new", 3).ok());
  const Status kept = file->publish(WholeFile::Existing::kKept);
  ASSERT_FALSE(kept.ok());
  EXPECT_THAT(kept.error().message, HasSubstr("File exists"));
  EXPECT_EQ(text(), "old");
  ASSERT_TRUE(file->publish(WholeFile::Existing::kReplaced, WholeFile::Durability::kCached).ok());
  EXPECT_EQ(text(), "new");
  auto other = WholeFile::create(path("other"));
  ASSERT_TRUE(other.ok() && other->publish(WholeFile::Existing::kKept).ok());
  EXPECT_EQ(files(), 2u);
}

TEST_F(WholeFiles, HasThePermissionsOfTheUmask) {
  const mode_t before = ::umask(027);
  ASSERT_TRUE(write_whole_file(path(), "x").ok());
  ::umask(before);
  struct stat status{};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST_F(WholeFiles, ErrorsNameTheTarget) {
  const Status none = write_whole_file(path("none/target"), "x");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kIo);
  EXPECT_THAT(none.error().message, HasSubstr("none/target: No such file or directory"));
  fs::create_directory(path("folder"));
  EXPECT_THAT(write_whole_file(path("folder"), "x").error().message,
              HasSubstr("is not a regular file"));
  const std::string long_name(300, 'n');
  EXPECT_THAT(write_whole_file(path(long_name), "x").error().message, HasSubstr("too long"));
  EXPECT_EQ(files(), 1u);
}

// A disk that takes no more, at every byte of the way.
TEST_F(WholeFiles, AFullDiskLeavesTheOldFile) {
  ASSERT_TRUE(write_whole_file(path(), "old").ok());
  std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  for (rlim_t room = 0; room < 8; ++room) {
    const struct rlimit limit{room, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    auto file = WholeFile::create(path());
    Status status = file.ok() ? Status() : Status(file.error());
    if (status.ok()) status = file->append("four", 4);
    if (status.ok()) status = file->extend(8);
    if (status.ok()) status = file->publish();
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    ASSERT_FALSE(status.ok()) << room;
    EXPECT_THAT(status.error().message, HasSubstr("cannot write " + path() + ": File too large"));
    EXPECT_EQ(text(), "old");
  }
  EXPECT_EQ(files(), 1u);
}

// What a killed writer left goes with the next one; a writer that runs keeps its own.
TEST_F(WholeFiles, TheLeftoversOfKilledWritersGo) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto file = WholeFile::create(path());
    const char done = file.ok() && file->append("half", 4).ok() ? 'y' : 'n';
    if (::write(ready[1], &done, 1) != 1) ::_exit(1);
    ::pause();
    ::_exit(1);
  }
  char done = 'n';
  ASSERT_EQ(::read(ready[0], &done, 1), 1);
  ASSERT_EQ(done, 'y');
  for (const char* name : {"target.notes.part", "target.1.x.part", "targets.1.2.part"}) {
    std::ofstream(path(name)) << "mine";
  }
  EXPECT_EQ(files(), 4u);
  ASSERT_TRUE(write_whole_file(path(), "one").ok());
  EXPECT_EQ(files(), 5u);  // the child's is its own
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(write_whole_file(path(), "two").ok());
  EXPECT_EQ(files(), 4u);
  EXPECT_EQ(text(), "two");
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(WholeFiles, WritersOfOneTargetDoNotDisturbEachOther) {
  constexpr int kEach = 100;
  const auto write = [&](char letter) {
    for (int i = 0; i < kEach; ++i) {
      EXPECT_TRUE(write_whole_file(path(), std::string(5000, letter)).ok());
    }
  };
  std::thread other(write, 'b');
  write('a');
  other.join();
  const std::string left = text();
  EXPECT_TRUE(left == std::string(5000, 'a') || left == std::string(5000, 'b'));
  EXPECT_EQ(files(), 1u);
}

}  // namespace
}  // namespace cutaway
