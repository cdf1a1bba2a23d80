#include <algorithm>

#include "base/utf8.h"
#include "trace/digest.h"
#include "trace/ring.h"
#include "trace/trace.h"

namespace cutaway::trace {
namespace {

constexpr const char* kLevelNames[] = {"off", "phases", "functions", "tensors"};
constexpr const char* kPhaseNames[] = {"startup", "request",  "prompt",
                                       "prefill", "generate", "respond"};

}  // namespace

const char* level_name(Level level) { return kLevelNames[static_cast<size_t>(level)]; }
const char* phase_name(Phase phase) { return kPhaseNames[static_cast<size_t>(phase)]; }

Result<Level> parse_level(std::string_view text) {
  for (size_t i = 0; i < std::size(kLevelNames); ++i) {
    if (text == kLevelNames[i]) return static_cast<Level>(i);
  }
  return Error{ErrorCode::kInvalidArgument,
               "trace level \"" + utf8_replace_invalid(text.substr(0, 64)) +
                   "\" is none of off, phases, functions, tensors",
               "trace"};
}

void FieldList::add(const char* key, bool value) {
  add_number(key, FieldKind::kBool, static_cast<uint64_t>(value));
}

void FieldList::add(const char* key, std::string_view value) {
  std::string_view kept = value.substr(0, Field::kTextBytes);
  // A character that the cut would split goes whole.
  if (kept.size() < value.size()) kept.remove_suffix(utf8_incomplete_tail(kept));
  const PackedCount count{static_cast<uint32_t>(std::min<size_t>(value.size(), UINT32_MAX)),
                          static_cast<uint32_t>(kept.size())};
  uint8_t* out = next(key, FieldKind::kText, sizeof count + kept.size());
  std::memcpy(out, &count, sizeof count);
  if (!kept.empty()) std::memcpy(out + sizeof count, kept.data(), kept.size());
}

void FieldList::add(const char* key, std::span<const int32_t> ids) {
  const auto kept = ids.first(std::min(ids.size(), Field::kIds));
  const PackedCount count{static_cast<uint32_t>(std::min<size_t>(ids.size(), UINT32_MAX)),
                          static_cast<uint32_t>(kept.size())};
  uint8_t* out = next(key, FieldKind::kIds, sizeof count + kept.size_bytes());
  std::memcpy(out, &count, sizeof count);
  if (!kept.empty()) std::memcpy(out + sizeof count, kept.data(), kept.size_bytes());
}

void FieldList::add(const char* key, const TensorView& tensor) {
  const bool with_digest = enabled(Level::kTensors) && tensor.data != nullptr;
  PackedTensor head{};
  head.rank = static_cast<uint8_t>(tensor.shape.rank());
  head.has_digest = with_digest;
  const size_t dims_bytes = sizeof(int64_t) * head.rank;
  uint8_t* out = next(key, FieldKind::kTensor,
                      sizeof head + dims_bytes + (with_digest ? sizeof(PackedDigest) : 0));
  std::memcpy(out, &head, sizeof head);
  out += sizeof head;
  for (int axis = 0; axis < tensor.shape.rank(); ++axis, out += sizeof(int64_t)) {
    const int64_t dim = tensor.shape[axis];
    std::memcpy(out, &dim, sizeof dim);
  }
  if (!with_digest) return;
  const Digest d = digest(tensor);
  PackedDigest packed{};
  packed.min = d.min;
  packed.max = d.max;
  packed.mean = static_cast<float>(d.mean);
  packed.l2 = static_cast<float>(d.l2);
  std::copy(std::begin(d.first), std::end(d.first), packed.first);
  packed.n_first = static_cast<uint32_t>(d.n_first);
  packed.nan_count = d.nan_count;
  packed.hash_high = d.hash.high;
  packed.hash_low = d.hash.low;
  std::memcpy(out, &packed, sizeof packed);
}

void FieldList::add(const char* key, const Hash128& hash) {
  const uint64_t halves[2] = {hash.high, hash.low};
  std::memcpy(next(key, FieldKind::kDigest, sizeof halves), halves, sizeof halves);
}

}  // namespace cutaway::trace
