// Byte-level BPE (GPT-2's and its many relatives): tokenizer.ggml.model = "gpt2".
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer/bpe_merges.h"
#include "text/tokenizer/pretokenizer.h"
#include "text/tokenizer/special_matcher.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocabulary.h"

namespace cutaway::text {

// What every kind of tokenizer reads in the same way. Errors name the key.
Result<Tokenizer::SpecialIds> read_special_ids(const Metadata& metadata, int32_t vocab_size,
                                               bool default_add_bos);
std::vector<int32_t> find_end_ids(const Tokenizer::SpecialIds& ids, const Vocabulary& vocabulary);

Result<std::shared_ptr<const Tokenizer>> create_byte_bpe(const Metadata& metadata);

}  // namespace cutaway::text
