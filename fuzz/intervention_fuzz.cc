// Interventions from anywhere, for two models: an error that says where, or edits whose every index
// is inside the model, with as many values as they say, and rules whose standing form is read as
// the same rules.
//
// Input: a byte whose lowest bit chooses the model; JSON.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/utf8.h"
#include "inspect/intervention_spec.h"
#include "text/tokenizer/byte_level.h"

namespace {

using namespace cutaway;  // NOLINT

std::shared_ptr<const text::Tokenizer> make_tokenizer() {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) {
    tokens.emplace_back();
    utf8_append(tokens.back(), text::kByteLevel.character[static_cast<size_t>(b)]);
  }
  std::vector<int64_t> types(tokens.size(), 1);
  tokens.emplace_back("ab");
  types.push_back(1);
  tokens.emplace_back("<|im_end|>");
  types.push_back(3);
  Metadata metadata;
  metadata.insert("tokenizer.ggml.model", std::string("gpt2"));
  metadata.insert("tokenizer.ggml.tokens", tokens);
  metadata.insert("tokenizer.ggml.token_type", types);
  metadata.insert("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  return *text::Tokenizer::create(metadata);
}

arch::ModelShape shape_of(bool mixture) {
  arch::ModelShape shape;
  shape.n_layers = 3;
  shape.d_model = 8;
  shape.n_heads = 4;
  shape.n_kv_heads = 2;
  shape.d_head = 2;
  shape.d_mlp = 6;
  shape.vocab = 260;
  shape.context_length = 64;
  shape.gated_mlp = mixture;
  shape.learned_positions = !mixture;
  if (mixture) shape.n_experts = 4;
  if (mixture) shape.n_experts_used = 2;
  return shape;
}

void check_edit(const inspect::TapEdit& edit, const arch::ModelShape& shape, size_t items) {
  CUTAWAY_CHECK(edit.item < items && edit.tap.layer < shape.n_layers);
  CUTAWAY_CHECK(edit.layout.map == (edit.layout.width == 0));
  for (const int64_t group : edit.groups) {
    CUTAWAY_CHECK(group >= 0 && group < edit.layout.groups);
  }
  for (const int64_t feature : edit.features) {
    CUTAWAY_CHECK(feature >= 0 && feature < edit.layout.width);
  }
  for (const float value : edit.values) CUTAWAY_CHECK(std::isfinite(value));
  const size_t width =
      edit.features.empty() ? static_cast<size_t>(edit.layout.width) : edit.features.size();
  if (edit.from) {
    CUTAWAY_CHECK(edit.values.size() == 1);
    CUTAWAY_CHECK(edit.from->file.empty() != edit.from->run.empty());
  } else {
    CUTAWAY_CHECK(edit.values.size() == edit.groups.size() * (edit.value_each ? width : 1));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const std::shared_ptr<const text::Tokenizer> tokenizer = make_tokenizer();
  if (size == 0) return 0;
  const auto json = parse_json({reinterpret_cast<const char*>(bytes) + 1, size - 1});
  if (!json.ok()) return 0;
  const arch::ModelShape shape = shape_of(bytes[0] % 2 != 0);
  const auto spec = inspect::parse_interventions(*json, shape, *tokenizer);
  if (!spec.ok()) {
    const ErrorCode code = spec.error().code;
    CUTAWAY_CHECK(code == ErrorCode::kInvalidArgument || code == ErrorCode::kUnsupported);
    CUTAWAY_CHECK(!spec.error().message.empty() && utf8_valid(spec.error().message));
    return 0;
  }
  for (const inspect::TapEdit& edit : spec->edits) check_edit(edit, shape, spec->items);
  for (const auto& forced : spec->force) {
    CUTAWAY_CHECK(forced.step >= 0 && !forced.ids.empty());
    for (const int32_t id : forced.ids) CUTAWAY_CHECK(id >= 0 && id < tokenizer->vocab_size());
  }
  const Json standing = inspect::token_rules_json(*spec);
  CUTAWAY_CHECK(parse_json(to_text(standing)).ok());
  if (spec->force.empty() && spec->ban.empty()) return 0;
  const auto again = inspect::parse_interventions({{"tokens", standing}}, shape, *tokenizer);
  CUTAWAY_CHECK(again.ok());
  CUTAWAY_CHECK(again->rules().forced == spec->rules().forced);
  CUTAWAY_CHECK(again->ban.size() == spec->ban.size());
  return 0;
}
