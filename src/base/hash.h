// XXH3-128, the one hash of Cutaway's records: files, repacked weights, tensors, logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace cutaway {

struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
  // 32 lower-case hex digits, high half first (the canonical form that `xxhsum -H2` prints).
  std::string hex() const;
};

Hash128 xxh3_128(const void* data, size_t size);

// The same hash over bytes that arrive in parts: equal to xxh3_128 of their concatenation.
class StreamHash {
 public:
  StreamHash();
  ~StreamHash();
  StreamHash(const StreamHash& other);
  StreamHash& operator=(const StreamHash& other);
  void update(const void* data, size_t size);
  Hash128 digest() const;

 private:
  void* state_;  // XXH3_state_t, kept out of this header
};

// SHA-256, for files that come from outside. Lower-case hex.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void update(const void* data, size_t size);
  std::string hex();  // ends the computation

 private:
  void* context_;  // EVP_MD_CTX
};

}  // namespace cutaway
