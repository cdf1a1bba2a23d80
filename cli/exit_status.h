// What the program ends with.
#pragma once

namespace cutaway::cli {

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kWrongUsage = 2;
inline constexpr int kInterrupted = 130;  // 128 + SIGINT

}  // namespace cutaway::cli
