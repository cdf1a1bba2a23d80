#include "base/clock.h"

#include <sys/random.h>

#include <cstdio>
#include <ctime>

namespace cutaway {

std::string clock_text(int64_t wall_us) {
  const std::time_t seconds = static_cast<std::time_t>(wall_us / 1'000'000);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  char text[16];
  std::snprintf(text, sizeof text, "%02d:%02d:%02d.%03d", parts.tm_hour, parts.tm_min, parts.tm_sec,
                static_cast<int>(wall_us / 1000 % 1000));
  return text;
}

std::string new_ulid() {
  static constexpr char kAlphabet[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
  unsigned char random[10] = {};
  // A short read or an error leaves zeros: the time half still orders ids, and getrandom cannot
  // fail for so few bytes once the system has booted.
  (void)!::getrandom(random, sizeof random, 0);
  std::string id(26, '0');
  uint64_t ms = static_cast<uint64_t>(wall_us() / 1000);
  for (int i = 9; i >= 0; --i, ms >>= 5) id[static_cast<size_t>(i)] = kAlphabet[ms & 31];
  uint32_t bits = 0;
  int have = 0;
  size_t next = 0;
  for (size_t i = 10; i < 26; ++i) {
    if (have < 5) {
      bits = bits << 8 | random[next++];
      have += 8;
    }
    have -= 5;
    id[i] = kAlphabet[bits >> have & 31];
  }
  return id;
}

}  // namespace cutaway
