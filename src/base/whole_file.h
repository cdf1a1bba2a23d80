// A file that appears whole under its name or not at all: it is written beside it, as
// TARGET.PID.N.part, and renamed at the end. What a writer of the same target left that was killed
// goes with the next one; nobody takes the file of a writer that still runs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace cutaway {

class WholeFile {
 public:
  // What publish() does with a file that has come there meanwhile.
  enum class Existing : uint8_t { kReplaced, kKept };
  // Whether publish() waits until the disk has everything, or leaves that to the system.
  enum class Durability : uint8_t { kSynced, kCached };

  // Empty, with the permissions that the user's umask gives new files. Error kIo: the target, and
  // what the system said; something is there that is no regular file.
  static Result<WholeFile> create(const std::string& target);
  ~WholeFile();  // without publish() nothing is left
  WholeFile(WholeFile&& other) noexcept;
  WholeFile& operator=(WholeFile&& other) = delete;

  // For what is not written through here: mapping. Open for reading and writing.
  int descriptor() const { return fd_; }

  // Behind what was appended before. Errors of these and publish(): kIo names the target.
  Status append(const void* data, size_t size);
  Status write_at(const void* data, size_t size, int64_t offset);
  // Zeros, up to this size.
  Status extend(int64_t size);
  Status publish(Existing existing = Existing::kReplaced,
                 Durability durability = Durability::kSynced);

  // The error of a system call on it that has just failed.
  Error failed() const;

 private:
  explicit WholeFile(std::string target) : target_(std::move(target)) {}
  bool open_part();
  void send_to_disk();

  std::string target_, part_;  // part_ is empty once it is published
  int fd_ = -1;
  int64_t appended_ = 0, sent_ = 0;
};

// A file of this text.
Status write_whole_file(const std::string& path, std::string_view text);

}  // namespace cutaway
