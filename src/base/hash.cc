#include "base/hash.h"

#include <openssl/evp.h>
#include <xxhash.h>

#include <cstdio>

#include "base/check.h"

namespace cutaway {
namespace {
XXH3_state_t* xxh(void* state) { return static_cast<XXH3_state_t*>(state); }
}  // namespace

std::string Hash128::hex() const {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(high),
                static_cast<unsigned long long>(low));
  return text;
}

Hash128 xxh3_128(const void* data, size_t size) {
  const XXH128_hash_t h = XXH3_128bits(data, size);
  return {h.high64, h.low64};
}

StreamHash::StreamHash() : state_(XXH3_createState()) {
  CUTAWAY_CHECK(state_ != nullptr);
  XXH3_128bits_reset(xxh(state_));
}
StreamHash::~StreamHash() { XXH3_freeState(xxh(state_)); }
StreamHash::StreamHash(const StreamHash& other) : StreamHash() {
  XXH3_copyState(xxh(state_), xxh(other.state_));
}
StreamHash& StreamHash::operator=(const StreamHash& other) {
  if (this != &other) XXH3_copyState(xxh(state_), xxh(other.state_));
  return *this;
}
void StreamHash::update(const void* data, size_t size) {
  if (size > 0) XXH3_128bits_update(xxh(state_), data, size);
}
Hash128 StreamHash::digest() const {
  const XXH128_hash_t h = XXH3_128bits_digest(xxh(state_));
  return {h.high64, h.low64};
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  CUTAWAY_CHECK(context_ != nullptr);
  EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), EVP_sha256(), nullptr);
}
Sha256::~Sha256() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }
void Sha256::update(const void* data, size_t size) {
  EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), data, size);
}
std::string Sha256::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_), digest, &length);
  std::string text;
  for (unsigned int i = 0; i < length; ++i) {
    char byte[3];
    std::snprintf(byte, sizeof byte, "%02x", digest[i]);
    text += byte;
  }
  return text;
}

}  // namespace cutaway
