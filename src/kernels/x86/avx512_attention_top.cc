// The largest weights of a row: a first walk finds a number that k of them reach, a second one puts
// the few that reach it in order. Both orders are sorting networks: what they do does not follow
// the values.
#include "kernels/x86/avx512.h"

namespace cutaway::kernels::avx512 {
namespace {

// Bit i: whether lane i keeps the larger of itself and lane i ^ apart, in runs of `run` lanes that
// are to fall and to rise in turn, the first falling.
constexpr unsigned keeps_larger(int lanes, int run, int apart) {
  unsigned mask = 0;
  for (int i = 0; i < lanes; ++i) {
    if (((i & apart) == 0) == ((i & run) == 0)) mask |= 1u << i;
  }
  return mask;
}

template <int Apart>
CUTAWAY_INLINE __m512 partners(__m512 x) noexcept {
  if constexpr (Apart == 1) return _mm512_permute_ps(x, 0xB1);
  if constexpr (Apart == 2) return _mm512_permute_ps(x, 0x4E);
  if constexpr (Apart == 4) return _mm512_shuffle_f32x4(x, x, 0xB1);
  if constexpr (Apart == 8) return _mm512_shuffle_f32x4(x, x, 0x4E);
}
template <int Run, int Apart = Run / 2>
CUTAWAY_INLINE __m512 merge_runs(__m512 x) noexcept {
  const __m512 other = partners<Apart>(x);
  x = _mm512_mask_max_ps(_mm512_min_ps(x, other), keeps_larger(16, Run, Apart), x, other);
  if constexpr (Apart > 1) return merge_runs<Run, Apart / 2>(x);
  return x;
}

// The k-th largest of the lanes, 1 ≤ k ≤ 16; none is without order.
CUTAWAY_INLINE float kth_of(__m512 x, int64_t k) noexcept {
  x = merge_runs<16>(merge_runs<8>(merge_runs<4>(merge_runs<2>(x))));
  return _mm512_cvtss_f32(_mm512_permutexvar_ps(_mm512_set1_epi32(static_cast<int32_t>(k - 1)), x));
}

// Sixteen values above 0 with their indices: bits of the value above the complement of the index,
// so that the smaller index is the larger key among equals, and 0 is nothing. Falling: high is
// above low.
struct Keys {
  __m512i high, low;
};

template <int Apart>
CUTAWAY_INLINE __m512i partners(__m512i x) noexcept {
  if constexpr (Apart == 1) return _mm512_shuffle_epi32(x, _MM_PERM_BADC);
  if constexpr (Apart == 2) return _mm512_permutex_epi64(x, 0x4E);
  if constexpr (Apart == 4) return _mm512_shuffle_i64x2(x, x, 0x4E);
}
template <int Run, bool Falls, int Apart = Run / 2>
CUTAWAY_INLINE __m512i merge_runs(__m512i x) noexcept {
  constexpr unsigned kLarger = keeps_larger(8, Run, Apart);
  constexpr auto kMask = static_cast<__mmask8>(Falls ? kLarger : ~kLarger);
  const __m512i other = partners<Apart>(x);
  x = _mm512_mask_max_epu64(_mm512_min_epu64(x, other), kMask, x, other);
  if constexpr (Apart > 1) return merge_runs<Run, Falls, Apart / 2>(x);
  return x;
}
template <bool Falls>
CUTAWAY_INLINE __m512i sorted(__m512i x) noexcept {
  return merge_runs<8, Falls>(merge_runs<4, Falls>(merge_runs<2, Falls>(x)));
}
// Of sixteen that fall and then rise, or the other way round.
CUTAWAY_INLINE Keys merged(__m512i a, __m512i b) noexcept {
  return {merge_runs<8, true>(_mm512_max_epu64(a, b)), merge_runs<8, true>(_mm512_min_epu64(a, b))};
}
CUTAWAY_INLINE __m512i reversed(__m512i x) noexcept {
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(7, 6, 5, 4, 3, 2, 1, 0), x);
}

// What may be among the largest, as it is found: up to sixteen, then the best of all before.
class Candidates {
 public:
  // Those of `lanes`; values lie at `first` and behind. Registers take them at their end: memory
  // that was just written in pieces is slow to read.
  [[gnu::always_inline]] void add(__mmask16 lanes, __m512 values, int64_t first) noexcept {
    const __m512i indices =
        _mm512_sub_epi32(_mm512_set1_epi32(~static_cast<int32_t>(first)),
                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    const auto n = static_cast<unsigned>(__builtin_popcount(lanes));
    if (n_ + n > 16) [[unlikely]]
      take();
    const auto end = static_cast<__mmask16>(0xFFFFu << n_);
    values_ = _mm512_mask_expand_ps(values_, end, _mm512_maskz_compress_ps(lanes, values));
    complements_ =
        _mm512_mask_expand_epi32(complements_, end, _mm512_maskz_compress_epi32(lanes, indices));
    n_ += n;
  }
  // Takes what there is to the best.
  void take() noexcept {
    const __m512i bits = _mm512_castps_si512(values_);
    const Keys found = merged(
        sorted<true>(keys(_mm512_castsi512_si256(bits), _mm512_castsi512_si256(complements_))),
        sorted<false>(
            keys(_mm512_extracti64x4_epi64(bits, 1), _mm512_extracti64x4_epi64(complements_, 1))));
    if (any_) {  // of both, the sixteen largest
      best_ = merged(_mm512_max_epu64(best_.high, reversed(found.low)),
                     _mm512_max_epu64(best_.low, reversed(found.high)));
    } else {
      best_ = found;
      any_ = true;
    }
    n_ = 0;
    values_ = _mm512_setzero_ps();
    complements_ = _mm512_setzero_si512();
  }
  // The sixteen best: value 0 and index −1 where there are fewer.
  __m512 values() const noexcept {
    return _mm512_castsi512_ps(
        halves(_mm512_srli_epi64(best_.high, 32), _mm512_srli_epi64(best_.low, 32)));
  }
  __m512i indices() const noexcept {
    return _mm512_xor_si512(halves(best_.high, best_.low), _mm512_set1_epi32(-1));
  }

 private:
  static __m512i keys(__m256i bits, __m256i complements) noexcept {
    return _mm512_or_si512(_mm512_slli_epi64(_mm512_cvtepu32_epi64(bits), 32),
                           _mm512_cvtepu32_epi64(complements));
  }
  // The lower 32 bits of sixteen.
  static __m512i halves(__m512i a, __m512i b) noexcept {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi64_epi32(a)),
                              _mm512_cvtepi64_epi32(b), 1);
  }

  __m512 values_ = _mm512_setzero_ps();
  __m512i complements_ = _mm512_setzero_si512();
  unsigned n_ = 0;
  Keys best_;
  bool any_ = false;
};

}  // namespace

void attention_top(const float* weights, const float* factor, int64_t tiles, int64_t k,
                   TopKeys& out) noexcept {
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
  const float least = kth_of(most, k);
  const __m512 bound = _mm512_set1_ps(least);
  Candidates found;
  for (int64_t t = 0; t < tiles; ++t) {
    if (cap * factor[t] < least) continue;
    const __m512 by = _mm512_set1_ps(factor[t]);
    __m512 values[4];
    __mmask16 above[4];
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      values[b] = _mm512_mul_ps(_mm512_loadu_ps(weights + t * kTilePositions + b * kKeyLanes), by);
      above[b] =
          _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(values[b], _mm512_setzero_ps(), _CMP_GT_OQ),
                                  values[b], bound, _CMP_GE_OQ);
    }
    if ((above[0] | above[1] | above[2] | above[3]) == 0) continue;
    // Which block of a tile has some cannot be foreseen: all are asked.
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) found.add(above[b], values[b], t * kTilePositions + b * kKeyLanes);
  }
  found.take();
  const __mmask16 first_k = first_lanes(k);
  _mm512_store_ps(out.value, _mm512_maskz_mov_ps(first_k, found.values()));
  _mm512_store_si512(out.index,
                     _mm512_mask_mov_epi32(_mm512_set1_epi32(-1), first_k, found.indices()));
}

}  // namespace cutaway::kernels::avx512
