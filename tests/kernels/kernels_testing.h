// What the kernel tests share: random weights as files store them, packed matrices, buffers with
// guard bytes and a wanted misalignment, and the error bound of a chain of f32 operations.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/table.h"

namespace cutaway::kernels::testing {

// The tables that this machine can run, ref first; prints the names of those that it cannot, once.
std::vector<const KernelTable*> runnable_tables();

// True where an emulator runs the tests (CTest then sets CUTAWAY_EMULATED): fewer of the large
// sizes and of the samples, each kind of them still there.
bool emulated();

inline constexpr DType kQuantisedTypes[] = {DType::kQ4_1, DType::kQ4_0, DType::kQ8_0,
                                            DType::kQ5_0, DType::kQ5_1, DType::kIQ4_NL,
                                            DType::kMXFP4};
inline constexpr DType kSuperTypes[] = {DType::kQ2_K, DType::kQ3_K, DType::kQ4_K,
                                        DType::kQ5_K, DType::kQ6_K, DType::kIQ4_XS};
inline constexpr DType kWeightTypes[] = {
    DType::kQ2_K,  DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_XS,
    DType::kQ4_1,  DType::kQ4_0, DType::kQ8_0, DType::kQ5_0, DType::kQ5_1, DType::kIQ4_NL,
    DType::kMXFP4, DType::kF16,  DType::kBF16, DType::kF32};

// What K must be a multiple of.
int64_t step_of_k(DType type);

// Where the f16 numbers of a block of 256 lie, and how many there are.
struct Halves {
  size_t offset[2];
  int count;
};
Halves halves_of(DType type);

// Stored bytes of a {rows, cols} tensor with random finite values about 1 in size; quantised bytes
// cover their whole range.
std::vector<uint8_t> random_weights(DType type, int64_t rows, int64_t cols, std::mt19937& random);

struct Free {
  void operator()(uint8_t* p) const { std::free(p); }
};

struct Packed {
  std::unique_ptr<uint8_t, Free> memory;
  PackedMatrix matrix;
};
// Packs all groups into memory of exactly matrix.bytes(), 64-byte aligned.
Packed pack(std::span<const uint8_t> stored, DType type, int64_t rows, int64_t cols,
            std::span<const int32_t> row_order = {});

// `count` elements at `offset_bytes` past a 64-byte boundary, with guards before and after that
// intact() looks at. Elements begin as a pattern that no kernel writes by chance.
template <typename T>
class Guarded {
 public:
  Guarded(int64_t count, size_t offset_bytes)
      : count_(count),
        bytes_(kGuard + offset_bytes + static_cast<size_t>(count) * sizeof(T) + kGuard + 64,
               kFill) {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    begin_ = (64 - address % 64) % 64 + kGuard + offset_bytes;
  }
  T* data() { return reinterpret_cast<T*>(bytes_.data() + begin_); }
  int64_t size() const { return count_; }
  T& operator[](int64_t i) { return data()[i]; }

  bool intact() const {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      const bool inside = i >= begin_ && i < begin_ + static_cast<size_t>(count_) * sizeof(T);
      if (!inside && bytes_[i] != kFill) return false;
    }
    return true;
  }
  // Whether element i still holds the pattern.
  bool untouched(int64_t i) const {
    const uint8_t* p = bytes_.data() + begin_ + static_cast<size_t>(i) * sizeof(T);
    for (size_t j = 0; j < sizeof(T); ++j) {
      if (p[j] != kFill) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr uint8_t kFill = 0xA5;
  int64_t count_;
  std::vector<uint8_t> bytes_;
  size_t begin_;
};

// γ_n = n·u / (1 − n·u), u = 2^−24: the relative error that n roundings of f32 can add up to
// (Higham, Accuracy and Stability of Numerical Algorithms, lemma 3.1).
inline double gamma_f32(double n) { return n * 0x1p-24 / (1 - n * 0x1p-24); }

inline bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

}  // namespace cutaway::kernels::testing
