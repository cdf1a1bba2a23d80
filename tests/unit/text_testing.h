// A small byte-level vocabulary for tests, as a model file would describe it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/tokenizer.h"

namespace cutaway::text::testing_vocab {

// How byte-level BPE writes these bytes in a file.
inline std::string spell(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) utf8_append(out, kByteLevel.character[static_cast<uint8_t>(c)]);
  return out;
}

struct VocabBuilder {
  std::string pre = "gpt-2";
  std::vector<std::string> tokens, merges;
  std::vector<int64_t> types;
  std::vector<std::pair<std::string, MetaValue>> extra;

  // Ids 0–255 are the bytes.
  static VocabBuilder bytes() {
    VocabBuilder b;
    for (int i = 0; i < 256; ++i) b.token(spell(std::string(1, static_cast<char>(i))));
    return b;
  }
  int32_t token(std::string spelling, int64_t type = 1) {
    tokens.push_back(std::move(spelling));
    types.push_back(type);
    return static_cast<int32_t>(tokens.size() - 1);
  }
  int32_t control(std::string spelling) { return token(std::move(spelling), 3); }
  int32_t user_defined(std::string spelling) { return token(std::move(spelling), 4); }
  // A merge of two texts, and the token that it makes.
  int32_t merge(std::string_view left, std::string_view right) {
    merges.push_back(spell(left) + " " + spell(right));
    return token(spell(left) + spell(right));
  }
  Metadata metadata() const {
    Metadata m;
    m.insert("tokenizer.ggml.model", std::string("gpt2"));
    if (!pre.empty()) m.insert("tokenizer.ggml.pre", pre);
    m.insert("tokenizer.ggml.tokens", tokens);
    m.insert("tokenizer.ggml.token_type", types);
    m.insert("tokenizer.ggml.merges", merges);
    for (const auto& [key, value] : extra) m.insert(key, value);
    return m;
  }
  std::shared_ptr<const Tokenizer> build() const {
    auto tokenizer = Tokenizer::create(metadata());
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    return tokenizer.ok() ? *tokenizer : nullptr;
  }
  Error error() const {
    auto tokenizer = Tokenizer::create(metadata());
    EXPECT_FALSE(tokenizer.ok());
    return tokenizer.ok() ? Error{} : tokenizer.error();
  }
};

}  // namespace cutaway::text::testing_vocab
