#include "sampling/philox.h"

#include <random>

#include "sampling/sampler.h"
#include "trace/trace.h"

namespace cutaway::sampling {

std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter,
                                      std::array<uint32_t, 2> key) {
  CUTAWAY_SPAN(span, "sampling::philox4x32_10", "counter", counter[0], "key", key[0]);
  constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{kMultiplier0} * counter[0];
    const uint64_t product1 = uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  CUTAWAY_OUT(span, "first", counter[0]);
  return counter;
}

double draw_uniform(uint64_t seed, uint64_t position, uint32_t choice_index, DrawPurpose purpose) {
  CUTAWAY_SPAN(span, "sampling::draw_uniform", "seed", seed, "position", position, "choice",
               choice_index, "purpose", static_cast<uint32_t>(purpose));
  const auto word =
      philox4x32_10({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                     choice_index, static_cast<uint32_t>(purpose)},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = uint64_t{word[0]} << 32 | word[1];
  const double u = static_cast<double>(bits >> 11) * 0x1p-53;
  CUTAWAY_OUT(span, "u", u);
  return u;
}

uint64_t random_seed() {
  CUTAWAY_SPAN(span, "sampling::random_seed");
  std::random_device device;
  const uint64_t bits = uint64_t{device()} << 32 | device();
  const uint64_t seed = bits >> 11;
  CUTAWAY_OUT(span, "seed", seed);
  return seed;
}

}  // namespace cutaway::sampling
