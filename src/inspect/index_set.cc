#include "inspect/index_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "trace/trace.h"

namespace cutaway::inspect {
namespace {

constexpr int64_t kMost = int64_t{1} << 40;  // beyond any sequence, and far from overflow

bool parse_bound(std::string_view text, std::optional<int64_t>& out) {
  if (text.empty()) return true;  // open
  int64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size()) return false;
  out = value;
  return value >= -kMost && value <= kMost;
}

}  // namespace

Result<IndexSet> IndexSet::parse(const Json& json, const std::string& field, bool negative,
                                 const char* word) {
  CUTAWAY_SPAN(span, "inspect::IndexSet::parse", "field", field);
  IndexSet out;
  if (json.is_null()) return out;
  const auto wrong = [&](const Json& part) {
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("{} is {}; it takes an index, a range like \"2:6\" or \"3:\"{}, or a "
                    "list of these{}",
                    field, to_text(part), word == nullptr ? "" : fmt::format(", \"{}\"", word),
                    negative ? "; negative ones count from the prompt's end" : "; none is below 0"),
        field};
  };
  const Json parts = json.is_array() ? json : Json::array({json});
  if (parts.empty()) return wrong(json);
  for (const Json& part : parts) {
    Part found;
    if (part.is_number_integer()) {
      const bool large = part.is_number_unsigned() && part.get<uint64_t>() > uint64_t{kMost};
      if (large || part.get<int64_t>() < -kMost) return wrong(part);
      found.begin = part.get<int64_t>();
      found.one = true;
    } else if (part.is_string()) {
      const auto& text = part.get_ref<const std::string&>();
      if (word != nullptr && text == word) {
        out.word_ = true;
        continue;
      }
      const size_t colon = text.find(':');
      if (colon == std::string::npos ||
          !parse_bound(std::string_view(text).substr(0, colon), found.begin) ||
          !parse_bound(std::string_view(text).substr(colon + 1), found.end)) {
        return wrong(part);
      }
    } else {
      return wrong(part);
    }
    if (!negative && (found.begin.value_or(0) < 0 || found.end.value_or(0) < 0)) return wrong(part);
    out.parts_.push_back(found);
  }
  CUTAWAY_OUT(span, "parts", out.parts_.size());
  return out;
}

std::vector<Range> IndexSet::resolve(int64_t length) const {
  CUTAWAY_SPAN(span, "inspect::IndexSet::resolve", "length", length);
  std::vector<Range> out;
  if (all()) out.push_back({});
  for (const Part& part : parts_) {
    const auto absolute = [&](int64_t i) { return i < 0 ? i + length : i; };
    Range range;
    if (part.begin) range.begin = absolute(*part.begin);
    if (part.one) {
      range.end = range.begin + 1;
    } else if (part.end) {
      range.end = absolute(*part.end);
    }
    out.push_back(range);
  }
  CUTAWAY_OUT(span, "ranges", out.size());
  return out;
}

std::optional<int64_t> IndexSet::before_first(int64_t length) const {
  CUTAWAY_SPAN(span, "inspect::IndexSet::before_first", "length", length);
  for (const Part& part : parts_) {
    if (part.one && *part.begin + length < 0) return part.begin;
  }
  return std::nullopt;
}

Result<std::vector<int64_t>> IndexSet::indices(int64_t length, const std::string& field,
                                               const std::string& what) const {
  CUTAWAY_SPAN(span, "inspect::IndexSet::indices", "length", length, "field", field);
  std::vector<int64_t> out;
  if (all()) {
    for (int64_t i = 0; i < length; ++i) out.push_back(i);
    return out;
  }
  std::vector<bool> seen(static_cast<size_t>(length));
  for (Range range : resolve(length)) {
    if (range.end == INT64_MAX) range.end = std::max(range.begin + 1, length);
    for (int64_t i = range.begin; i < range.end; ++i) {
      if (i < 0 || i >= length) {
        return Error{
            ErrorCode::kInvalidArgument,
            fmt::format("{} has {}; there are {} {}, 0 to {}", field, i, length, what, length - 1),
            field};
      }
      if (seen[static_cast<size_t>(i)]) {
        return Error{ErrorCode::kInvalidArgument, fmt::format("{} has {} twice", field, i), field};
      }
      seen[static_cast<size_t>(i)] = true;
      out.push_back(i);
    }
  }
  CUTAWAY_OUT(span, "n", out.size());
  return out;
}

}  // namespace cutaway::inspect
