#include "text/chat/taint.h"

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <unordered_set>

#include "base/utf8.h"
#include "trace/trace.h"

namespace cutaway::text {
namespace {

// Roles are the template's vocabulary: it compares them, and writes them into control tokens.
constexpr std::array<std::string_view, 11> kRoles = {
    "system",  "user",    "assistant", "tool",  "developer",  "function",
    "ipython", "context", "model",     "human", "observation"};

// And so are the kinds of content parts, tools and values of JSON Schema.
constexpr std::array<std::string_view, 15> kTypes = {
    "text",   "image",   "image_url", "video",  "video_url", "audio",   "input_audio", "function",
    "string", "integer", "number",    "object", "array",     "boolean", "null"};

bool is_one_of(const Json& value, std::span<const std::string_view> words) {
  return value.is_string() &&
         std::find(words.begin(), words.end(), value.get_ref<const std::string&>()) != words.end();
}

bool is_known_role(const Json& value) { return is_one_of(value, kRoles); }

// Is the value under `key` structure rather than text?
bool is_structure(const std::string& key, const Json& value) {
  return (key == "role" && is_known_role(value)) || (key == "type" && is_one_of(value, kTypes));
}

bool is_identifier(const std::string& key) {
  return std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '$' || c == '.';
  });
}

bool stays(uint32_t c) {
  return c <= 0x20 || c == 0x7F || c == '"' || c == '\'' || c == '\\' || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

// Calls visit(string, is_key, from_assistant) for each leaf; false when it is nested too deep.
template <typename J, typename Visit>
bool walk(J& node, bool from_assistant, int depth, const Visit& visit) {
  if (depth > kMaxContextDepth) return false;
  if (node.is_string()) {
    visit(node, nullptr, from_assistant);
  } else if (node.is_array()) {
    for (auto& child : node) {
      if (!walk(child, from_assistant, depth + 1, visit)) return false;
    }
  } else if (node.is_object()) {
    const auto role = node.find("role");
    // Not role == "assistant": the library compares by making a value, which a noexcept function of
    // its own does, and must not when memory runs out.
    constexpr std::string_view kAssistant[] = {"assistant"};
    if (role != node.end() && is_one_of(*role, kAssistant)) from_assistant = true;
    for (auto it = node.begin(); it != node.end(); ++it) {
      // A call repeats what others said: only the assistant's own words are its own.
      const bool own = from_assistant && it.key() != "tool_calls" && it.key() != "function_call";
      if (!is_identifier(it.key())) visit(*it, &it.key(), own);
      if (is_structure(it.key(), *it)) continue;
      if (!walk(*it, own, depth + 1, visit)) return false;
    }
  }
  return true;
}

// A copy whose leaves come from `texts`; `next` counts them in walk()'s order.
Json rebuild(const Json& node, const std::vector<std::string>& texts, size_t& next) {
  if (node.is_string()) return texts[next++];
  if (node.is_array()) {
    Json out = Json::array();
    for (const Json& child : node) out.push_back(rebuild(child, texts, next));
    return out;
  }
  if (!node.is_object()) return node;
  Json out = Json::object();
  for (auto it = node.begin(); it != node.end(); ++it) {
    const std::string key = is_identifier(it.key()) ? it.key() : texts[next++];
    out[key] = is_structure(it.key(), *it) ? *it : rebuild(*it, texts, next);
  }
  return out;
}

}  // namespace

Result<std::vector<Leaf>> collect_leaves(const Json& context) {
  CUTAWAY_SPAN(span, "text::collect_leaves");
  std::vector<Leaf> leaves;
  const bool fits =
      walk(context, false, 0, [&](const Json& node, const std::string* key, bool own) {
        leaves.push_back({key ? *key : node.get<std::string>(), key != nullptr, own});
      });
  if (!fits) {
    return Error{ErrorCode::kInvalidArgument,
                 "messages: nested deeper than " + std::to_string(kMaxContextDepth) + " levels",
                 "messages"};
  }
  for (const Leaf& leaf : leaves) {
    if (!utf8_valid(leaf.text)) {
      return Error{ErrorCode::kInvalidArgument,
                   "messages: a text is not valid UTF-8 (\"" +
                       utf8_replace_invalid(std::string_view(leaf.text).substr(0, 40)) +
                       "…\"); a chat template takes characters, not bytes",
                   "messages"};
    }
  }
  CUTAWAY_OUT(span, "leaves", leaves.size());
  return leaves;
}

Json replace_leaves(const Json& context, const std::vector<std::string>& texts) {
  CUTAWAY_SPAN(span, "text::replace_leaves", "texts", texts.size());
  size_t next = 0;
  return rebuild(context, texts, next);
}

PrivateAlphabet::PrivateAlphabet(const std::vector<Leaf>& leaves,
                                 const std::vector<std::string_view>& avoid) {
  CUTAWAY_SPAN(span, "text::PrivateAlphabet::PrivateAlphabet", "leaves", leaves.size());
  std::set<uint32_t> present;  // ascending: should the private ones run out, ASCII has its own
  std::unordered_set<uint32_t> taken;
  std::array<bool, 128> ascii{};
  const auto scan = [&](std::string_view text, bool map) {
    size_t length = 0;
    for (size_t pos = 0; pos < text.size(); pos += length) {
      const int32_t c = utf8_decode(text, pos, length);
      if (c >= 0xE000) taken.insert(static_cast<uint32_t>(c));
      if (!map || c < 0) continue;
      if (c < 128) {
        ascii[static_cast<size_t>(c)] = true;
      } else {
        present.insert(static_cast<uint32_t>(c));
      }
    }
  };
  for (const Leaf& leaf : leaves) scan(leaf.text, true);
  for (const std::string_view text : avoid) scan(text, false);
  for (uint32_t c = 0; c < 128; ++c) {
    if (ascii[c]) present.insert(c);
  }
  // The private-use areas, then the planes that Unicode assigns nothing in.
  constexpr std::array<std::pair<uint32_t, uint32_t>, 4> kPrivate = {
      {{0xE000, 0xF8FF}, {0xF0000, 0xFFFFD}, {0x100000, 0x10FFFD}, {0x40000, 0xDFFFD}}};
  size_t area = 0;
  uint32_t candidate = kPrivate[0].first;
  for (const uint32_t c : present) {
    if (stays(c)) continue;
    while (taken.contains(candidate) || candidate > kPrivate[area].second) {
      if (candidate++ < kPrivate[area].second) continue;
      if (++area == kPrivate.size()) {
        complete_ = false;
        return;
      }
      candidate = kPrivate[area].first;
    }
    to_private_.emplace(c, candidate);
    from_private_.emplace(candidate, c);
    ++candidate;
  }
}

std::string PrivateAlphabet::hide(std::string_view text,
                                  const std::vector<TextRange>& ranges) const {
  CUTAWAY_SPAN(span, "text::PrivateAlphabet::hide", "text", text, "ranges", ranges.size());
  std::string out;
  out.reserve(text.size() * 3);
  auto range = ranges.begin();
  size_t length = 0;
  for (size_t pos = 0; pos < text.size(); pos += length) {
    const int32_t c = utf8_decode(text, pos, length);
    while (range != ranges.end() && range->end <= pos) ++range;
    const bool inside = range != ranges.end() && range->begin <= pos;
    const auto it =
        inside && c >= 0 ? to_private_.find(static_cast<uint32_t>(c)) : to_private_.end();
    if (it == to_private_.end()) {
      out += text.substr(pos, length);
    } else {
      utf8_append(out, it->second);
    }
  }
  CUTAWAY_OUT(span, "text", out);
  return out;
}

std::string PrivateAlphabet::show(std::string_view text) const {
  CUTAWAY_SPAN(span, "text::PrivateAlphabet::show", "text", text);
  std::string out;
  out.reserve(text.size());
  size_t length = 0;
  for (size_t pos = 0; pos < text.size(); pos += length) {
    const int32_t c = utf8_decode(text, pos, length);
    const auto it = from_private_.find(static_cast<uint32_t>(c));
    if (it == from_private_.end()) {
      out += text.substr(pos, length);
    } else {
      utf8_append(out, it->second);
    }
  }
  CUTAWAY_OUT(span, "text", out);
  return out;
}

std::vector<Segment> PrivateAlphabet::segments(std::string_view text) const {
  CUTAWAY_SPAN(span, "text::PrivateAlphabet::segments", "text", text);
  std::vector<Segment> out;
  std::string gap;  // white space and quotes after a literal piece: whose they are is not known yet
  const auto append = [&](bool trusted, std::string_view piece) {
    if (out.empty() || out.back().parse_special != trusted) out.push_back({"", trusted});
    out.back().text += piece;
  };
  size_t length = 0;
  for (size_t pos = 0; pos < text.size(); pos += length) {
    const int32_t c = utf8_decode(text, pos, length);
    const auto it = from_private_.find(static_cast<uint32_t>(c));
    if (it != from_private_.end()) {
      append(false, gap);
      gap.clear();
      utf8_append(out.back().text, it->second);
    } else if (c >= 0 && stays(static_cast<uint32_t>(c)) && !out.empty() &&
               !out.back().parse_special) {
      gap += text.substr(pos, length);
    } else {
      if (!gap.empty()) append(true, gap);
      gap.clear();
      append(true, text.substr(pos, length));
    }
  }
  if (!gap.empty()) append(true, gap);
  CUTAWAY_OUT(span, "segments", out.size());
  return out;
}

}  // namespace cutaway::text
