// The largest weights of a row: a first walk finds a number that k of them reach, a second one puts
// the few that reach it in order.
#include "kernels/x86/avx512.h"

namespace cutaway::kernels::avx512 {
namespace {

// Where each lane comes in the order of falling values, the earlier first among equals.
CUTAWAY_INLINE __m512i places(__m512 values) noexcept {
  const __m512i one = _mm512_set1_epi32(1);
  __m512i place = _mm512_setzero_si512();
#pragma GCC unroll 16
  for (int i = 0; i < kKeyLanes; ++i) {
    const __m512 own = _mm512_permutexvar_ps(_mm512_set1_epi32(i), values);
    // Lanes before i come after it when they are less, those behind it when they are not more.
    const auto behind = static_cast<__mmask16>(0xFFFEu << i);
    const auto before = static_cast<__mmask16>(~(0xFFFFu << i));
    place = _mm512_mask_add_epi32(place, _mm512_mask_cmp_ps_mask(before, values, own, _CMP_LT_OQ),
                                  place, one);
    place = _mm512_mask_add_epi32(place, _mm512_mask_cmp_ps_mask(behind, values, own, _CMP_LE_OQ),
                                  place, one);
  }
  return place;
}

// What may be among the largest: values with their indices, ascending.
struct Candidates {
  static constexpr int64_t kMost = 32;
  alignas(64) float value[kMost + 16];
  alignas(64) int32_t index[kMost + 16];
  int64_t n = 0;

  void add(__mmask16 lanes, __m512 values, int64_t first) noexcept {
    const __m512i indices =
        _mm512_add_epi32(_mm512_set1_epi32(static_cast<int32_t>(first)),
                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    _mm512_storeu_ps(value + n, _mm512_maskz_compress_ps(lanes, values));
    _mm512_storeu_si512(index + n, _mm512_maskz_compress_epi32(lanes, indices));
    n += __builtin_popcount(lanes);
  }
  // Each goes to its place in the order, if that is below k. Returns how many there are.
  int64_t order(int64_t k, int32_t* to_index, float* to_value) const noexcept {
    return n <= kKeyLanes ? order_lanes(k, to_index, to_value) : order_any(k, to_index, to_value);
  }
  int64_t order_lanes(int64_t k, int32_t* to_index, float* to_value) const noexcept {
    const __mmask16 there = first_lanes(n);
    const __m512 values = _mm512_maskz_loadu_ps(there, value);
    const __m512i place = places(values);  // the lanes that are not there come last
    const __mmask16 chosen =
        _mm512_mask_cmplt_epi32_mask(there, place, _mm512_set1_epi32(static_cast<int32_t>(k)));
    _mm512_mask_i32scatter_ps(to_value, chosen, place, values, sizeof(float));
    _mm512_mask_i32scatter_epi32(to_index, chosen, place, _mm512_loadu_si512(index),
                                 sizeof(int32_t));
    return n < k ? n : k;
  }
  int64_t order_any(int64_t k, int32_t* to_index, float* to_value) const noexcept {
    for (int64_t i = 0; i < n; ++i) {
      const __m512 own = _mm512_set1_ps(value[i]);
      int64_t before = 0;
      for (int64_t j = 0; j < n; j += 16) {
        const __m512 others = _mm512_loadu_ps(value + j);
        const __mmask16 lanes = first_lanes(n - j);
        const __mmask16 larger = _mm512_mask_cmp_ps_mask(lanes, others, own, _CMP_GT_OQ);
        const __mmask16 equal =
            _mm512_mask_cmp_ps_mask(lanes & first_lanes(i - j), others, own, _CMP_EQ_OQ);
        before += __builtin_popcount(larger | equal);
      }
      if (before >= k) continue;
      to_index[before] = index[i];
      to_value[before] = value[i];
    }
    return n < k ? n : k;
  }
  // Leaves the k largest, in the order of their indices again; returns the least of them.
  float shrink(int64_t k) noexcept {
    int32_t best[kMaxTopKeys];
    float values[kMaxTopKeys];
    const int64_t count = order(k, best, values);
    const float least = values[count - 1];
    int64_t kept = 0;
    for (int64_t i = 0; i < n; ++i) {
      bool chosen = false;
      for (int64_t j = 0; j < count; ++j) chosen |= best[j] == index[i];
      if (!chosen) continue;
      value[kept] = value[i];
      index[kept++] = index[i];
    }
    n = kept;
    return least;
  }
};

// A number that at least k of the lanes reach: the k-th largest of them.
CUTAWAY_INLINE float reached_by(__m512 lanes, int64_t k) noexcept {
  const __mmask16 among =
      _mm512_cmplt_epi32_mask(places(lanes), _mm512_set1_epi32(static_cast<int32_t>(k)));
  return _mm512_mask_reduce_min_ps(among, lanes);
}

}  // namespace

void attention_top(const float* weights, const float* factor, int64_t tiles, int64_t k,
                   int32_t* index, float* value) noexcept {
  // Of two of which one is no number, max gives the second: what is no number never gets there.
  __m512 most = _mm512_setzero_ps(), most_weight = most;
  for (int64_t t = 0; t < tiles; ++t) {
    const __m512 by = _mm512_set1_ps(factor[t]);
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      const __m512 weight = _mm512_loadu_ps(weights + t * kTilePositions + b * kKeyLanes);
      most = _mm512_max_ps(_mm512_mul_ps(weight, by), most);
      most_weight = _mm512_max_ps(weight, most_weight);
    }
  }
  const float cap = _mm512_reduce_max_ps(most_weight);
  // One of each lane reaches it: so do k values at least, if as many are above 0.
  float bound = reached_by(most, k);
  Candidates found;
  for (int64_t t = 0; t < tiles; ++t) {
    if (cap * factor[t] < bound) continue;
    const __m512 by = _mm512_set1_ps(factor[t]);
    // Whether one of sixteen values is among the largest cannot be foreseen: all are put there, and
    // those that are not are written over.
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      const int64_t first = t * kTilePositions + b * kKeyLanes;
      const __m512 values = _mm512_mul_ps(_mm512_loadu_ps(weights + first), by);
      const __mmask16 above =
          _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(values, _mm512_setzero_ps(), _CMP_GT_OQ),
                                  values, _mm512_set1_ps(bound), _CMP_GE_OQ);
      found.add(above, values, first);
      if (found.n > Candidates::kMost - 16) [[unlikely]] {
        bound = found.shrink(k);
      }
    }
  }
  for (int64_t i = found.order(k, index, value); i < k; ++i) {
    index[i] = -1;
    value[i] = 0;
  }
}

}  // namespace cutaway::kernels::avx512
