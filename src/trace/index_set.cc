#include "trace/index_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/utf8.h"
#include "trace/trace.h"

namespace cutaway::trace {
namespace {

constexpr int64_t kMost = int64_t{1} << 40;  // beyond any sequence, and far from overflow

// A whole number that is all of `text`.
std::optional<int64_t> integer(std::string_view text) {
  int64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size()) return {};
  if (value < -kMost || value > kMost) return {};
  return value;
}

Error wrong(const std::string& field, const std::string& part, const IndexRules& rules) {
  std::string takes = rules.word == nullptr ? "" : fmt::format("\"{}\", ", rules.word);
  takes += rules.one_range ? "an index or a range, like 2-5, 2:6 (without the 6) or 3:"
                           : "an index, a range like 2-5, 2:6 (without the 6) or 3:, or several of "
                             "these, like 0,3-5";
  if (rules.length >= 0) takes += fmt::format("; there are 0 to {}", rules.length - 1);
  if (rules.counted_from != nullptr) {
    takes += std::string("; negative ones count from ") + rules.counted_from;
  } else if (rules.length < 0) {
    takes += "; none is below 0";
  }
  return {ErrorCode::kInvalidArgument, fmt::format("{} is {}; it takes {}", field, part, takes),
          field};
}

}  // namespace

std::optional<IndexSet::Part> IndexSet::read(std::string_view text) {
  Part out;
  const size_t colon = text.find(':');
  if (colon != std::string_view::npos) {
    const std::string_view before = text.substr(0, colon), after = text.substr(colon + 1);
    if (!before.empty() && !(out.begin = integer(before))) return {};
    if (!after.empty() && !(out.end = integer(after))) return {};
    return out;
  }
  // A dash that is no sign: both ends are in.
  const size_t dash = text.find('-', 1);
  if (dash != std::string_view::npos && text.front() != '-') {
    const auto first = integer(text.substr(0, dash)), last = integer(text.substr(dash + 1));
    if (!first || !last || *last < 0) return {};
    out.begin = first;
    out.end = *last + 1;
    return out;
  }
  out.begin = integer(text);
  out.one = true;
  if (!out.begin) return {};
  return out;
}

bool IndexSet::sound(const Part& part, const IndexRules& rules) {
  const int64_t begin = part.begin.value_or(0), end = part.end.value_or(INT64_MAX);
  return rules.counted_from != nullptr || (begin >= 0 && end >= 0);
}

// Whatever its ends are counted from.
bool IndexSet::holds_nothing(const Part& part) {
  if (part.one) return false;
  const int64_t begin = part.begin.value_or(0), end = part.end.value_or(INT64_MAX);
  return end == 0 || ((begin >= 0) == (end >= 0) && begin >= end);
}

Status IndexSet::add(std::string_view text, const std::string& field, const IndexRules& rules) {
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view part = text.substr(at, comma - at);
    at = comma + 1;
    if (rules.word != nullptr && part == rules.word) {
      ++words_;
      continue;
    }
    const std::optional<Part> found = part.empty() ? std::nullopt : read(part);
    const bool empty = found && holds_nothing(*found);
    if (!found || !sound(*found, rules) || empty) {
      return wrong(field,
                   fmt::format("\"{}\"{}", utf8_replace_invalid(part.substr(0, 128)),
                               empty ? ", which holds nothing" : ""),
                   rules);
    }
    parts_.push_back(*found);
  }
  return {};
}

Result<IndexSet> IndexSet::parse_text(std::string_view text, const std::string& field,
                                      const IndexRules& rules) {
  CUTAWAY_SPAN(span, "trace::IndexSet::parse_text", "field", field);
  IndexSet out;
  if (!text.empty()) CUTAWAY_TRY(out.add(text, field, rules));
  CUTAWAY_OUT(span, "parts", out.parts_.size());
  return out;
}

Result<IndexSet> IndexSet::parse(const Json& json, const std::string& field,
                                 const IndexRules& rules) {
  CUTAWAY_SPAN(span, "trace::IndexSet::parse", "field", field);
  IndexSet out;
  if (json.is_null()) return out;
  const Json parts = json.is_array() ? json : Json::array({json});
  if (parts.empty()) return wrong(field, to_text(json), rules);
  for (const Json& part : parts) {
    if (part.is_string()) {
      CUTAWAY_TRY(out.add(part.get_ref<const std::string&>(), field, rules));
      continue;
    }
    const bool whole =
        part.is_number_integer() &&
        !(part.is_number_unsigned() && part.get<uint64_t>() > static_cast<uint64_t>(kMost)) &&
        part.get<int64_t>() >= -kMost;
    const Part found{whole ? std::optional(part.get<int64_t>()) : std::nullopt, {}, true};
    if (!whole || !sound(found, rules)) return wrong(field, to_text(part), rules);
    out.parts_.push_back(found);
  }
  CUTAWAY_OUT(span, "parts", out.parts_.size());
  return out;
}

std::optional<IndexRange> IndexSet::one_range() const {
  CUTAWAY_SPAN(span, "trace::IndexSet::one_range", "parts", parts_.size());
  if (parts_.size() != 1 || words_ > 0) return std::nullopt;
  const Part& part = parts_.front();
  IndexRange out{part.begin.value_or(0), part.end.value_or(INT64_MAX)};
  if (part.one && *part.begin != -1) out.end = *part.begin + 1;  // −1 is open: the last one
  return out;
}

std::vector<IndexRange> IndexSet::resolve(int64_t length) const {
  CUTAWAY_SPAN(span, "trace::IndexSet::resolve", "length", length);
  std::vector<IndexRange> out;
  if (all()) out.push_back({});
  for (const Part& part : parts_) {
    const auto absolute = [&](int64_t i) { return i < 0 ? i + length : i; };
    IndexRange range;
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
  CUTAWAY_SPAN(span, "trace::IndexSet::before_first", "length", length);
  for (const Part& part : parts_) {
    if (part.one && *part.begin + length < 0) return part.begin;
  }
  return std::nullopt;
}

Result<std::vector<int64_t>> IndexSet::indices(int64_t length, const std::string& field,
                                               const std::string& what) const {
  CUTAWAY_SPAN(span, "trace::IndexSet::indices", "length", length, "field", field);
  std::vector<int64_t> out;
  if (all()) {
    for (int64_t i = 0; i < length; ++i) out.push_back(i);
    return out;
  }
  std::vector<bool> seen(static_cast<size_t>(length));
  for (IndexRange range : resolve(length)) {
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

}  // namespace cutaway::trace
