#include "base/json.h"

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace cutaway {
namespace {

// U+0085 (C2 85), U+2028 (E2 80 A8) and U+2029 (E2 80 A9) end a line for some readers.
std::string escape_line_separators(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest(text.data() + i, text.size() - i);
    if (rest.starts_with("\xC2\x85")) {
      out += "\\u0085";
      i += 1;
    } else if (rest.starts_with("\xE2\x80\xA8") || rest.starts_with("\xE2\x80\xA9")) {
      out += rest[2] == '\xA8' ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

constexpr int kMaxDepth = 512;

}  // namespace

std::string to_text(const Json& json, int indent) {
  std::string text = json.dump(indent, ' ', false, Json::error_handler_t::replace);
  if (text.find("\xC2\x85") == std::string::npos && text.find("\xE2\x80") == std::string::npos) {
    return text;
  }
  return escape_line_separators(text);
}

namespace {

Result<Json> parse(std::string_view text, const Json::parser_callback_t& watch) {
  // nlohmann's parser is iterative, but destroying and walking a value recurses: bound the depth
  // before building it.
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) {
        return Error{ErrorCode::kInvalidArgument, "JSON is nested deeper than 512 levels"};
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  try {
    return Json::parse(text, watch);
  } catch (const Json::parse_error& e) {
    return Error{ErrorCode::kInvalidArgument,
                 "not valid JSON at byte " + std::to_string(e.byte) + ": " + e.what()};
  } catch (const Json::out_of_range&) {  // 1e999: well-formed, but nothing can hold it
    return Error{ErrorCode::kInvalidArgument, "JSON with a number beyond the range of a double"};
  }
}

}  // namespace

Result<Json> parse_json(std::string_view text) { return parse(text, nullptr); }

Result<Json> parse_written_json(std::string_view text) {
  std::vector<std::set<std::string>> open;  // the keys of each object that is not closed yet
  std::optional<std::string> twice;
  auto out = parse(text, [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open.back().insert(key).second && !twice) twice = key;
    }
    return true;
  });
  if (out.ok() && twice) {
    return Error{ErrorCode::kInvalidArgument, to_text(*twice) + " is there twice in one object"};
  }
  return out;
}

}  // namespace cutaway
