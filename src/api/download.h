// One file from an HTTP server to disk: resumed, retried, checked. Knows nothing of where files are
// installed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/http_client.h"
#include "base/result.h"
#include "cutaway/options.h"

namespace cutaway::api {

struct DownloadSource {
  std::string url;
  std::string shown;         // what messages call it; no secrets
  std::string bearer_token;  // empty: none
  bool hub = false;          // of a Hugging Face hub: its statuses are explained in its terms
  std::optional<uint64_t> bytes;
  std::string sha256;  // lower-case hex; empty: not known beforehand
  // Asked once the server has said how much is still to come. May be empty.
  std::function<Status(uint64_t bytes)> check_room;
};

struct Downloaded {
  uint64_t bytes = 0;
  std::string sha256;
};

// Fetches `source` into the file `path`, going on from what an earlier call left there when that
// was of the same source. `progress` counts the bytes of this file, those kept included. Tries
// again (up to five times without a byte gained, after Retry-After or a growing pause) when a
// server is busy (408, 429, 5xx) or the transfer breaks. The bytes must be those of a GGUF file,
// which is known after the first 4096, and have the size and the SHA-256 announced.
//
// Errors: kNetwork, kNotFound (404), kInvalidFile (another size, SHA-256 or kind of file; nothing
// is kept then), kIo, kCancelled. Otherwise what has arrived stays in `path`.
Result<Downloaded> download_file(const DownloadSource& source, const std::string& path,
                                 const ProgressFn& progress);

// The bytes that download_file would not fetch again.
uint64_t resumable_bytes(const DownloadSource& source, const std::string& path);

// A small text (at most 32 MB), with the same retries. `next`: where the "Link" header says that it
// goes on; empty when it does not.
struct FetchedText {
  std::string text, next;
};
Result<FetchedText> fetch_text(const DownloadSource& source, const ProgressFn& progress);

}  // namespace cutaway::api
