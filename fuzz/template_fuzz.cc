// Templates and conversations from anywhere: an error or segments, never a crash; and a template
// that writes no control token itself never yields one, whatever the messages are.
//
// Input: the template, a byte 0, then JSON, the messages or an object of the members "messages",
// "tools", "extra" and "add_generation_prompt"; or else the contents of messages with a byte 0
// between them.
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "fuzz/deep_stack.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/byte_level.h"

using namespace cutaway;        // NOLINT
using namespace cutaway::text;  // NOLINT

namespace {

std::shared_ptr<const Tokenizer> make_tokenizer() {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) {
    tokens.emplace_back();
    utf8_append(tokens.back(), kByteLevel.character[static_cast<size_t>(b)]);
  }
  std::vector<int64_t> types(256, 1);
  for (const char* control : {"<|im_start|>", "<|im_end|>", "<think>", "</think>", "<a>"}) {
    tokens.emplace_back(control);
    types.push_back(3);
  }
  Metadata metadata;
  metadata.insert("tokenizer.ggml.model", std::string("gpt2"));
  metadata.insert("tokenizer.ggml.tokens", tokens);
  metadata.insert("tokenizer.ggml.token_type", types);
  metadata.insert("tokenizer.ggml.merges", std::vector<std::string>());
  return *Tokenizer::create(metadata);
}

ChatTemplate::Input read_input(std::string_view data) {
  ChatTemplate::Input input;
  if (auto json = parse_json(data); json.ok() && (json->is_array() || json->is_object())) {
    if (json->is_array()) {
      input.messages = std::move(*json);
      return input;
    }
    input.messages = json->value("messages", Json::array());
    input.tools = json->value("tools", Json());
    input.extra = json->value("extra", Json::object());
    input.add_generation_prompt = json->contains("add_generation_prompt");
    return input;
  }
  Json& messages = input.messages = Json::array();
  while (!data.empty()) {
    const size_t end = std::min(data.find('\0'), data.size());
    messages.push_back({{"role", messages.size() % 2 ? "assistant" : "user"},
                        {"content", utf8_replace_invalid(data.substr(0, end))}});
    data.remove_prefix(std::min(end + 1, data.size()));
  }
  return input;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char*** arguments) {
  take_deep_stack(*arguments);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const std::shared_ptr<const Tokenizer> tokenizer = make_tokenizer();
  const std::string_view data(reinterpret_cast<const char*>(bytes), size);
  const size_t end = std::min(data.find('\0'), data.size());
  const std::string source(data.substr(0, end));
  const auto chat_template = ChatTemplate::create(source, "", "", control_spellings(*tokenizer));
  if (!chat_template.ok()) {
    CUTAWAY_CHECK(chat_template.error().code == ErrorCode::kInvalidFile);
    return 0;
  }
  const ChatTemplate::Input input = read_input(data.substr(std::min(end + 1, data.size())));
  const auto segments = (*chat_template)->render(input);
  if (!segments.ok()) {
    CUTAWAY_CHECK(segments.error().code == ErrorCode::kInvalidArgument);
    CUTAWAY_CHECK(!segments.error().message.empty());
    return 0;
  }
  const auto tokens = tokenizer->encode(*segments, {});
  CUTAWAY_CHECK(tokens.ok());
  // Without these the template cannot have written '<' itself: by an escape, a format, a filter.
  if (source.find_first_of("<\\%|") != std::string::npos) return 0;
  for (const EncodedToken& token : *tokens) CUTAWAY_CHECK(token.id < 256);
  return 0;
}
