// Spans: every function above the row kernels reports who was called, with its IN and its OUT.
//
//   Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, …) const {
//     CUTAWAY_SPAN(span, "text::Tokenizer::encode", "text", text, "parse_special", parse_special);
//     …
//     CUTAWAY_OUT(span, "ids", ids, "n", ids.size());
//     return ids;
//   }
//
// Arguments come in pairs (a literal key, a value) and are looked at only when the span is active:
// with tracing off a span is one predictable branch. A span that ends without CUTAWAY_OUT (an
// early error return) reports an OUT without fields.
//
// Values become small typed fields in a fixed-size record of the calling thread's ring; a
// background thread formats them and writes the sinks (sinks.h). Text is clipped, a list keeps its
// first elements and its count, a tensor is its dtype and shape, and at level kTensors a digest
// (digest.h). Nothing here reads or changes the values (invariant 1).
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "tensor/tensor.h"

namespace cutaway::trace {

enum class Level : uint8_t { kOff, kPhases, kFunctions, kTensors };
enum class Phase : uint8_t { kStartup, kRequest, kPrompt, kPrefill, kGenerate, kRespond };

const char* level_name(Level level);  // "off", "phases", "functions", "tensors"
const char* phase_name(Phase phase);  // "startup", "request", …
// Error kInvalidArgument names the four levels.
Result<Level> parse_level(std::string_view text);

// Where in a run a record belongs: the keys on which views join (DATA: run, seq, step, position,
// layer). −1: does not apply.
struct Coordinates {
  int64_t run = -1;  // index of the run in this process; sinks print its id
  int32_t seq = -1;
  int32_t step = -1;      // index of the generated token
  int32_t position = -1;  // absolute token index
  int32_t layer = -1;
};

// kDigest: an XXH3-128 alone, in tensor.hash_high and hash_low.
enum class FieldKind : uint8_t { kInt, kUnsigned, kFloat, kBool, kText, kIds, kTensor, kDigest };

// One IN or OUT value as sinks see it: no pointers but `key`, a literal. In a ring only the bytes
// that it needs are kept (FieldList).
struct Field {
  static constexpr size_t kTextBytes = 96;
  static constexpr size_t kIds = 12;
  struct Text {
    uint32_t full_size;  // bytes of the whole text
    uint8_t kept;        // bytes kept, never ending inside a character
    char bytes[kTextBytes];
  };
  struct Ids {
    uint32_t count;
    uint32_t kept;
    int32_t first[kIds];
  };
  struct Tensor {
    int64_t dims[Shape::kMaxRank];
    uint8_t rank;
    // Digest, filled at level kTensors only.
    bool has_digest;
    float min, max, mean, l2;
    float first[4];
    uint8_t n_first;
    uint32_t nan_count;
    uint64_t hash_high, hash_low;  // XXH3-128 of the f32 bytes, row after row
  };
  const char* key = nullptr;
  FieldKind kind = FieldKind::kInt;
  union {
    int64_t i;
    uint64_t u;
    double f;
    bool b;
    Text text;
    Ids ids;
    Tensor tensor;
  };
  Field() : i(0) {}
};

enum class RecordKind : uint8_t { kEnter, kExit, kEvent };

class Tracer;

// What the calling thread traces to. One per thread; set by Attach, kept by spans.
struct Context {
  Tracer* tracer = nullptr;
  Level level = Level::kOff;
  Phase phase = Phase::kStartup;
  uint16_t depth = 0;
  Coordinates at;
};

inline constinit thread_local Context t_context;

inline bool enabled(Level level) { return t_context.level >= level; }
// For code that would have to prepare a value only to trace it.
inline bool enabled() { return enabled(Level::kFunctions); }

// Makes `tracer` (may be null: off) the calling thread's, until destroyed. The level is read here,
// and again where a phase begins.
class Attach {
 public:
  explicit Attach(Tracer* tracer);
  ~Attach() { t_context = saved_; }
  Attach(const Attach&) = delete;
  Attach& operator=(const Attach&) = delete;

 private:
  Context saved_;
};

// Goes on, on another thread, with what one thread traces to: the work of a span that threads
// share.
class Inherit {
 public:
  explicit Inherit(const Context& context) : saved_(t_context) { t_context = context; }
  ~Inherit() { t_context = saved_; }
  Inherit(const Inherit&) = delete;
  Inherit& operator=(const Inherit&) = delete;

 private:
  Context saved_;
};

// Sets coordinates for the spans inside it, and puts the old ones back.
class At {
 public:
  explicit At(const Coordinates& at) : saved_(t_context.at) { t_context.at = at; }
  ~At() { t_context.at = saved_; }
  At(const At&) = delete;
  At& operator=(const At&) = delete;

 private:
  Coordinates saved_;
};

// The number of fields that one record carries; further ones would be a programmer's mistake.
inline constexpr size_t kMaxFields = 8;

// The fields of a record that a span is about to write, packed: for each a key's address and a
// value padded to eight bytes. Lives on the stack of an active span's enter() or leave() only.
class FieldList {
 public:
  FieldList() {}  // NOLINT: the bytes stay uninitialised until they are used

  void add(const char* key, bool value);
  void add(const char* key, std::string_view value);
  void add(const char* key, const char* value) { add(key, std::string_view(value)); }
  void add(const char* key, const std::string& value) { add(key, std::string_view(value)); }
  void add(const char* key, std::span<const int32_t> ids);
  void add(const char* key, const std::vector<int32_t>& ids) { add(key, std::span(ids)); }
  void add(const char* key, const TensorView& tensor);
  void add(const char* key, const Hash128& hash);
  void add(const char* key, const Error& error) { add(key, error.message); }
  template <typename T>
    requires std::is_arithmetic_v<T> && (!std::is_same_v<T, bool>)
  void add(const char* key, T value) {
    if constexpr (std::is_floating_point_v<T>) {
      add_number(key, FieldKind::kFloat, static_cast<double>(value));
    } else if constexpr (std::is_signed_v<T>) {
      add_number(key, FieldKind::kInt, static_cast<int64_t>(value));
    } else {
      add_number(key, FieldKind::kUnsigned, static_cast<uint64_t>(value));
    }
  }

  template <typename V, typename... Rest>
  void add_pairs(const char* key, const V& value, const Rest&... rest) {
    static_assert(sizeof...(rest) % 2 == 0, "fields come in pairs: key, value");
    static_assert(sizeof...(rest) + 2 <= 2 * kMaxFields, "a record has at most kMaxFields fields");
    add(key, value);
    if constexpr (sizeof...(rest) > 0) add_pairs(rest...);
  }
  void add_pairs() {}

  size_t count() const { return count_; }
  uint32_t kinds() const { return kinds_; }  // four bits a field, the first field lowest
  std::span<const uint8_t> bytes() const { return {bytes_, used_}; }

 private:
  uint8_t* next(const char* key, FieldKind kind, size_t value_bytes) {
    CUTAWAY_CHECK(count_ < kMaxFields);
    kinds_ |= static_cast<uint32_t>(kind) << 4 * count_++;
    std::memcpy(bytes_ + used_, &key, sizeof key);
    uint8_t* const value = bytes_ + used_ + sizeof key;
    used_ += sizeof key + (value_bytes + 7) / 8 * 8;
    return value;
  }
  template <typename T>
  void add_number(const char* key, FieldKind kind, T value) {
    static_assert(sizeof value == 8);
    std::memcpy(next(key, kind, sizeof value), &value, sizeof value);
  }

  static constexpr size_t kMaxFieldBytes = sizeof(const char*) + 8 + Field::kTextBytes;
  uint32_t kinds_ = 0;
  size_t count_ = 0;
  size_t used_ = 0;
  alignas(8) uint8_t bytes_[kMaxFields * kMaxFieldBytes];
};

class Span {
 public:
  // `name` is a literal that outlives the tracer: "folder::Class::function".
  explicit Span(const char* name, Level level = Level::kFunctions)
      : name_(name), level_(level), active_(enabled(level)) {}
  ~Span() {
    if (active_) [[unlikely]]
      finish();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  bool active() const { return active_; }
  // Out of line, so that a traced function's own frame and code stay small.
  template <typename... Pairs>
  [[gnu::noinline]] void enter(const Pairs&... pairs) {
    FieldList list;
    list.add_pairs(pairs...);
    write_enter(list);
  }
  // What follows in the traced function counts as outside. A second call does nothing.
  template <typename... Pairs>
  [[gnu::noinline]] void leave(const Pairs&... pairs) {
    FieldList list;
    list.add_pairs(pairs...);
    write_exit(list);
  }

 protected:
  void write_enter(const FieldList& fields);
  void write_exit(const FieldList& fields);
  void finish();  // writes the exit that CUTAWAY_OUT did not

  const char* name_;
  Level level_;
  bool active_;
  bool left_ = false;
  int64_t entered_ns_ = 0;  // 0: nothing written yet
};

// A span that begins a phase of the request; active from level kPhases on. The phase holds for
// everything inside it. The thread takes over the tracer's level of now: sinks come and go while a
// long answer is made.
class PhaseSpan : public Span {
 public:
  PhaseSpan(const char* name, Phase phase)
      : Span(follow_level(name), Level::kPhases), saved_(t_context.phase) {
    t_context.phase = phase;
  }
  ~PhaseSpan() {
    if (active_) [[unlikely]]
      finish();
    active_ = false;
    t_context.phase = saved_;
  }

 private:
  static const char* follow_level(const char* name);

  Phase saved_;
};

// A record without a duration: a decision (a sampled token, an evicted page), or a note.
template <typename... Pairs>
void event(const char* name, const Pairs&... pairs);
void write_event(const char* name, const FieldList& fields);

template <typename... Pairs>
void event(const char* name, const Pairs&... pairs) {
  if (!enabled()) [[likely]]
    return;
  FieldList list;
  list.add_pairs(pairs...);
  write_event(name, list);
}

}  // namespace cutaway::trace

#define CUTAWAY_SPAN(var, name, ...) \
  ::cutaway::trace::Span var(name);  \
  if (var.active()) [[unlikely]]     \
  var.enter(__VA_ARGS__)

#define CUTAWAY_PHASE(var, phase, name, ...)    \
  ::cutaway::trace::PhaseSpan var(name, phase); \
  if (var.active()) [[unlikely]]                \
  var.enter(__VA_ARGS__)

#define CUTAWAY_OUT(var, ...)    \
  if (var.active()) [[unlikely]] \
  var.leave(__VA_ARGS__)
