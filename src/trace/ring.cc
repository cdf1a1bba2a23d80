#include "trace/ring.h"

#include <algorithm>
#include <cstring>

namespace cutaway::trace {
namespace {

enum Has : uint8_t {
  kDuration = 1,
  kRun = 2,
  kSeq = 4,
  kStep = 8,
  kPosition = 16,
  kLayer = 32,
};

template <typename T>
uint8_t* put(uint8_t* out, const T& value) noexcept {
  std::memcpy(out, &value, sizeof value);
  return out + sizeof value;
}

template <typename T>
const uint8_t* take(const uint8_t* in, T& value) noexcept {
  std::memcpy(&value, in, sizeof value);
  return in + sizeof value;
}

constexpr size_t padded(size_t bytes) noexcept { return (bytes + 7) / 8 * 8; }

const uint8_t* unpack_tensor(const uint8_t* in, Field::Tensor& tensor) noexcept {
  PackedTensor head;
  in = take(in, head);
  tensor.rank = head.rank;
  tensor.has_digest = head.has_digest != 0;
  for (size_t i = 0; i < head.rank; ++i) in = take(in, tensor.dims[i]);
  if (!tensor.has_digest) return in;
  PackedDigest d;
  in = take(in, d);
  tensor.min = d.min;
  tensor.max = d.max;
  tensor.mean = d.mean;
  tensor.l2 = d.l2;
  std::copy(std::begin(d.first), std::end(d.first), tensor.first);
  tensor.n_first = static_cast<uint8_t>(d.n_first);
  tensor.nan_count = d.nan_count;
  tensor.hash_high = d.hash_high;
  tensor.hash_low = d.hash_low;
  return in;
}

const uint8_t* unpack_field(const uint8_t* in, FieldKind kind, Field& field) noexcept {
  field.kind = kind;
  in = take(in, field.key);
  PackedCount count;
  switch (kind) {
    case FieldKind::kInt:
      return take(in, field.i);
    case FieldKind::kUnsigned:
      return take(in, field.u);
    case FieldKind::kFloat:
      return take(in, field.f);
    case FieldKind::kBool: {
      uint64_t value;
      in = take(in, value);
      field.b = value != 0;
      return in;
    }
    case FieldKind::kText:
      in = take(in, count);
      field.text.full_size = count.full;
      field.text.kept = static_cast<uint8_t>(count.kept);
      std::memcpy(field.text.bytes, in, count.kept);
      return in + padded(count.kept);
    case FieldKind::kIds:
      in = take(in, count);
      field.ids.count = count.full;
      field.ids.kept = count.kept;
      std::memcpy(field.ids.first, in, count.kept * sizeof(int32_t));
      return in + padded(count.kept * sizeof(int32_t));
    case FieldKind::kTensor:
      return unpack_tensor(in, field.tensor);
    case FieldKind::kDigest:
      in = take(in, field.tensor.hash_high);
      return take(in, field.tensor.hash_low);
  }
  return in;
}

}  // namespace

bool Ring::try_write(PackedHeader header, int64_t duration_ns, const Coordinates& at,
                     const FieldList& fields) noexcept {
  uint8_t has = 0;
  size_t small = 0;  // coordinates of four bytes
  if (duration_ns >= 0) has |= kDuration;
  if (at.run >= 0) has |= kRun;
  if (at.seq >= 0) has |= kSeq, ++small;
  if (at.step >= 0) has |= kStep, ++small;
  if (at.position >= 0) has |= kPosition, ++small;
  if (at.layer >= 0) has |= kLayer, ++small;
  header.has = has;
  header.n_fields = static_cast<uint8_t>(fields.count());
  header.field_kinds = fields.kinds();
  const auto bytes = fields.bytes();
  const size_t size = sizeof header + ((has & kDuration) ? 8 : 0) + ((has & kRun) ? 8 : 0) +
                      padded(4 * small) + bytes.size();
  header.size = static_cast<uint32_t>(size);

  const uint64_t head = head_.load(std::memory_order_relaxed);
  const uint64_t to_end = kBytes - head % kBytes;
  const uint64_t gap = size > to_end ? to_end : 0;  // a record is never split
  if (head + gap + size - tail_seen_ > kBytes) {
    tail_seen_ = tail_.load(std::memory_order_acquire);
    if (head + gap + size - tail_seen_ > kBytes) return false;
  }
  if (gap != 0) {
    const uint64_t no_record = 0;  // a size of 0: go on at the ring's start
    put(bytes_.get() + head % kBytes, no_record);
  }
  uint8_t* out = put(bytes_.get() + (head + gap) % kBytes, header);
  if (has & kDuration) out = put(out, duration_ns);
  if (has & kRun) out = put(out, at.run);
  uint8_t* const coordinates = out;
  if (has & kSeq) out = put(out, at.seq);
  if (has & kStep) out = put(out, at.step);
  if (has & kPosition) out = put(out, at.position);
  if (has & kLayer) out = put(out, at.layer);
  out = coordinates + padded(4 * small);
  std::memcpy(out, bytes.data(), bytes.size());
  written_.store(written_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  head_.store(head + gap + size, std::memory_order_release);
  return true;
}

bool Ring::more_than_half_full() noexcept {
  const uint64_t head = head_.load(std::memory_order_relaxed);
  if (head - tail_seen_ <= kBytes / 2) return false;
  tail_seen_ = tail_.load(std::memory_order_acquire);
  return head - tail_seen_ > kBytes / 2;
}

bool Ring::peek(uint64_t end, int64_t& time) noexcept {
  uint64_t tail = tail_.load(std::memory_order_relaxed);
  if (tail == end) return false;
  PackedHeader header;
  uint32_t size;
  take(bytes_.get() + tail % kBytes, size);
  if (size == 0) {
    tail += kBytes - tail % kBytes;
    tail_.store(tail, std::memory_order_release);
    if (tail >= end) return false;
  }
  take(bytes_.get() + tail % kBytes, header);
  time = header.time;
  return true;
}

void Ring::pop(Record& record, Field* fields) noexcept {
  const uint64_t tail = tail_.load(std::memory_order_relaxed);
  PackedHeader header;
  const uint8_t* in = take(bytes_.get() + tail % kBytes, header);
  record.kind = header.kind;
  record.phase = header.phase;
  record.depth = header.depth;
  record.level = header.level;
  record.thread = thread_;
  record.time_ns = header.time;
  record.name = header.name;
  record.duration_ns = -1;
  record.at = {};
  if (header.has & kDuration) in = take(in, record.duration_ns);
  if (header.has & kRun) in = take(in, record.at.run);
  const uint8_t* const coordinates = in;
  if (header.has & kSeq) in = take(in, record.at.seq);
  if (header.has & kStep) in = take(in, record.at.step);
  if (header.has & kPosition) in = take(in, record.at.position);
  if (header.has & kLayer) in = take(in, record.at.layer);
  in = coordinates + padded(static_cast<size_t>(in - coordinates));
  for (size_t i = 0; i < header.n_fields; ++i) {
    const auto kind = static_cast<FieldKind>(header.field_kinds >> 4 * i & 15);
    in = unpack_field(in, kind, fields[i]);
  }
  record.fields = {fields, header.n_fields};
  tail_.store(tail + header.size, std::memory_order_release);
}

}  // namespace cutaway::trace
