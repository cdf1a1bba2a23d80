#include "inspect/capture.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

#include "base/clock.h"
#include "formats/safetensors_writer.h"
#include "inspect/attention_top.h"
#include "inspect/tap_layout.h"
#include "trace/probe.h"
#include "trace/trace.h"

namespace cutaway::inspect {
namespace {

using trace::Site;

// One tap of the capture: where its values go, counted in floats from the first tensor on.
struct Planned {
  trace::TapName tap;
  TapLayout layout;
  std::vector<int32_t> units;  // the chosen ones, of heads; empty: all
  std::vector<int64_t> shape;
  int64_t offset = 0;

  int64_t kept_units() const {
    return units.empty() ? layout.groups : static_cast<int64_t>(units.size());
  }
};

struct Plan {
  std::vector<Planned> taps;
  int64_t floats = 0;
  std::array<std::vector<int>, trace::kSiteCount> at;  // [site][layer + 1]; −1: not wanted

  int find(Site site, int layer) const {
    const std::vector<int>& of_site = at[static_cast<size_t>(site)];
    const auto i = static_cast<size_t>(layer + 1);
    return i < of_site.size() ? of_site[i] : -1;
  }
};

Plan make_plan(const CaptureJob& job, const arch::ModelShape& m) {
  Plan out;
  std::vector<int32_t> kv_heads;
  for (const int32_t head : job.selection.heads) {
    const auto kv = static_cast<int32_t>(head / (m.n_heads / m.n_kv_heads));
    if (kv_heads.empty() || kv_heads.back() != kv) kv_heads.push_back(kv);
  }
  if (static_cast<int64_t>(kv_heads.size()) == m.n_kv_heads) kv_heads.clear();
  for (const trace::TapName& tap : job.selection.taps) {
    Planned p{tap, tap_layout(tap.site, m).value_or(TapLayout{}), {}, {1}};
    if (p.layout.of == TapLayout::Groups::kQueryHeads) p.units = job.selection.heads;
    if (p.layout.of == TapLayout::Groups::kKvHeads) p.units = kv_heads;
    const int64_t rows = job.range.size();
    if (p.layout.map) {
      p.shape.insert(p.shape.end(), {p.kept_units(), rows, job.range.end});
    } else {
      p.shape.push_back(rows);
      if (p.layout.of != TapLayout::Groups::kNone) p.shape.push_back(p.kept_units());
      // hook_tokens is b,pos; everything else has what a position holds.
      if (tap.site != Site::kTokens) p.shape.push_back(p.layout.width);
    }
    p.offset = out.floats;
    out.floats += std::accumulate(p.shape.begin(), p.shape.end(), int64_t{1}, std::multiplies<>());
    std::vector<int>& of_site = out.at[static_cast<size_t>(tap.site)];
    of_site.resize(static_cast<size_t>(m.n_layers) + 1, -1);
    of_site[static_cast<size_t>(tap.layer + 1)] = static_cast<int>(out.taps.size());
    out.taps.push_back(std::move(p));
  }
  return out;
}

class CaptureProbe final : public trace::Probe {
 public:
  // `zeroed`: memory at `base` is.
  CaptureProbe(const Plan& plan, const CaptureJob& job, float* base, bool zeroed, ThreadPool& pool)
      : plan_(plan),
        heads_(job.selection.heads),
        range_(job.range),
        base_(base),
        zeroed_(zeroed),
        pool_(pool) {}

  bool wants(Site site, int layer) const override { return plan_.find(site, layer) >= 0; }
  trace::TapPart part(Site, int) const override { return {range_.begin, range_.end, heads_}; }

  trace::MapMemory map_memory(Site site, int layer) override {
    const Planned& p = plan_.taps[static_cast<size_t>(plan_.find(site, layer))];
    trace::MapMemory out;
    out.data = base_ + p.offset;
    out.begin = range_.begin;
    out.end = out.cols = range_.end;
    out.head_stride = range_.size() * range_.end;
    out.heads = heads_;
    out.zeroed = zeroed_;
    return out;
  }

  float* row_memory(Site site, int layer, int64_t first_position, int64_t n,
                    int64_t row_elements) override {
    const Planned& p = plan_.taps[static_cast<size_t>(plan_.find(site, layer))];
    const bool fits = first_position >= range_.begin && first_position + n <= range_.end &&
                      row_elements == p.kept_units() * p.layout.width;
    return fits ? row(p, first_position) : nullptr;
  }

  void observe(const trace::TapEvent& event) override {
    CUTAWAY_SPAN(span, "inspect::CaptureProbe::observe", "site", static_cast<int>(event.site),
                 "layer", event.layer);
    const Planned& p = plan_.taps[static_cast<size_t>(plan_.find(event.site, event.layer))];
    if (p.layout.map) {
      copy_map(p, event);
    } else {
      copy_rows(p, event);
    }
    CUTAWAY_OUT(span, "values", event.values);
  }

 private:
  // Where a position's values go.
  float* row(const Planned& p, int64_t position) const {
    return base_ + p.offset + (position - range_.begin) * p.kept_units() * p.layout.width;
  }
  // The rows of an event that lie in the range.
  trace::TapRange rows_of(const trace::TapEvent& event, int64_t n) const {
    const int64_t begin = std::clamp<int64_t>(range_.begin - event.first_position, 0, n);
    return {begin, std::clamp<int64_t>(range_.end - event.first_position, begin, n)};
  }

  void copy_rows(const Planned& p, const trace::TapEvent& event) {
    const trace::TapRange rows = rows_of(event, event.values.rows());
    const int64_t width = p.layout.width, kept = p.kept_units();
    // The event has all units, or those that were asked for.
    const bool whole = p.units.empty() || !event.heads.empty();
    const int64_t row_elements = event.values.row_elements();
    float* const to = row(p, event.first_position + rows.begin);
    if (event.values.data + rows.begin * event.values.row_elements() == to) return;  // row_memory()
    constexpr int64_t kFloatsPerChunk = int64_t{1} << 15;
    const int64_t step = std::max<int64_t>(1, kFloatsPerChunk / std::max<int64_t>(1, row_elements));
    const int64_t chunks = (rows.size() + step - 1) / step;
    pool_.parallel_for(static_cast<size_t>(chunks), [&](size_t chunk) noexcept {
      const int64_t first = static_cast<int64_t>(chunk) * step;
      const int64_t n = std::min(step, rows.size() - first);
      const float* from = event.values.data + (rows.begin + first) * row_elements;
      float* out = to + first * kept * width;
      if (whole) {
        std::memcpy(out, from, static_cast<size_t>(n * row_elements) * sizeof(float));
        return;
      }
      for (int64_t i = 0; i < n; ++i, from += row_elements) {
        for (const int32_t unit : p.units) {
          std::memcpy(out, from + unit * width, static_cast<size_t>(width) * sizeof(float));
          out += width;
        }
      }
    });
  }

  // {heads, q, k} of one chunk: keys after the chunk are unseen.
  void copy_map(const Planned& p, const trace::TapEvent& event) {
    const Shape& shape = event.values.shape;
    const trace::TapRange rows = rows_of(event, shape[1]);
    const float unseen =
        event.site == Site::kAttnScores ? -std::numeric_limits<float>::infinity() : 0.0f;
    const int64_t cols = range_.end, keys = std::min(shape[2], cols);
    for (int64_t i = 0; i < p.kept_units(); ++i) {
      int64_t from_head = p.units.empty() ? i : p.units[static_cast<size_t>(i)];
      if (!event.heads.empty()) {
        const auto it = std::lower_bound(event.heads.begin(), event.heads.end(), from_head);
        from_head = it - event.heads.begin();
      }
      for (int64_t q = rows.begin; q < rows.end; ++q) {
        float* out =
            base_ + p.offset + (i * range_.size() + event.first_position + q - range_.begin) * cols;
        std::copy_n(event.values.data + (from_head * shape[1] + q) * shape[2], keys, out);
        std::fill_n(out + keys, cols - keys, unseen);
      }
    }
  }

  const Plan& plan_;
  const std::vector<int32_t>& heads_;
  trace::TapRange range_;
  float* base_;
  bool zeroed_;
  ThreadPool& pool_;
};

// The passes of a capture: nothing after the range, logits within it alone.
Status run_passes(inference::Runner& runner, kv::PagePool& pool, std::span<const int32_t> tokens,
                  const CaptureJob& job, bool logits, std::vector<trace::Probe*> probes) {
  inference::SequenceState sequence(pool);
  runner.set_probes(std::move(probes));
  Status status;
  const auto go_on = [&job]() -> Status {
    if (!job.cancelled || !job.cancelled()) return {};
    return Error{ErrorCode::kCancelled, "the capture was cancelled"};
  };
  for (int64_t at = 0; at < job.range.end;) {
    status = go_on();
    if (!status.ok()) break;
    const bool within = at >= job.range.begin;
    const int64_t end = logits && !within ? job.range.begin : job.range.end;
    const int64_t count = std::min(job.chunk, end - at);
    const inference::StepInput input{
        &sequence, tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(count)),
        logits && within ? inference::WantLogits::kAll : inference::WantLogits::kNone};
    auto rows = runner.step(std::span(&input, 1));
    if (!rows.ok()) {
      status = rows.error();
      break;
    }
    at += count;
  }
  runner.set_probes({});
  CUTAWAY_TRY(status);
  return go_on();  // a short text is one pass: what came during it counts too
}

Status check(std::span<const int32_t> tokens, const CaptureJob& job) {
  if (tokens.empty()) {
    return Error{ErrorCode::kInvalidArgument, "the text is empty (0 tokens)", "text"};
  }
  if (job.selection.taps.empty() && job.top == 0) {
    return Error{ErrorCode::kInvalidArgument, "no tap was named; for example: logits", "taps"};
  }
  if (job.top < 0 || job.top > kernels::kMaxTopKeys) {
    return Error{ErrorCode::kInvalidArgument,
                 "attention_top is " + std::to_string(job.top) + ", must be 1 to " +
                     std::to_string(kernels::kMaxTopKeys),
                 "attention_top"};
  }
  return {};
}

std::string list_text(const std::vector<int32_t>& list) {
  if (list.empty()) return "all";
  std::string out;
  for (const int32_t i : list) out += (out.empty() ? "" : ",") + std::to_string(i);
  return out;
}

bool wants_logits(const CaptureJob& job) {
  return std::any_of(job.selection.taps.begin(), job.selection.taps.end(),
                     [](const trace::TapName& tap) { return tap.site == Site::kLogits; });
}

}  // namespace

Result<trace::TapSelection> select_taps(const trace::TapQuery& query,
                                        const arch::ModelShape& shape) {
  CUTAWAY_SPAN(span, "inspect::select_taps", "names", query.names.size());
  CUTAWAY_ASSIGN(trace::TapSelection out, trace::parse_taps(query, tap_domain(shape)));
  CUTAWAY_OUT(span, "taps", out.taps.size());
  return out;
}

Result<CaptureOutcome> capture(inference::Runner& runner, kv::PagePool& pool,
                               std::span<const int32_t> tokens, const CaptureJob& job,
                               const std::string& path, const std::vector<trace::Probe*>& others) {
  CUTAWAY_SPAN(span, "inspect::capture", "tokens", tokens, "taps", job.selection.taps.size(),
               "path", path);
  CUTAWAY_TRY(check(tokens, job));
  const arch::ModelShape& m = runner.model().shape();
  const Plan plan = make_plan(job, m);
  CaptureOutcome out;
  std::vector<formats::SafetensorsWriter::Tensor> tensors;
  for (const Planned& p : plan.taps) {
    tensors.push_back({trace::tap_name(p.tap.site, p.tap.layer), p.shape});
  }
  AttentionTop top(job.top, m.n_layers, job.selection.layers);
  if (job.top > 0) {
    for (auto& tensor : top.tensors(job.selection.heads, m.n_heads, job.range)) {
      tensors.push_back(std::move(tensor));
    }
  }
  for (const auto& tensor : tensors) out.taps.push_back({tensor.name, tensor.shape, tensor.dtype});
  const int64_t creating = now_ns();
  CUTAWAY_ASSIGN(
      formats::SafetensorsWriter writer,
      formats::SafetensorsWriter::create(
          path, tensors,
          {{"format", "cutaway capture"},
           {"kernels", runner.table().name},
           {"layers", list_text(job.selection.layers)},
           {"heads", list_text(job.selection.heads)},
           {"positions", std::to_string(job.range.begin) + ":" + std::to_string(job.range.end)}}));
  CUTAWAY_ASSIGN(float* const base, writer.map());
  CaptureProbe probe(plan, job, base, true, runner.pool());
  std::vector<trace::Probe*> probes = others;
  probes.push_back(&probe);
  if (job.top > 0) probes.push_back(&top);
  const int64_t start = now_ns();
  CUTAWAY_TRY(run_passes(runner, pool, tokens, job, wants_logits(job), std::move(probes)));
  const int64_t computed = now_ns();
  if (job.top > 0) CUTAWAY_TRY(top.check(job.range));
  if (job.top > 0) top.write(writer, plan.taps.size(), job.selection.heads, job.range);
  CUTAWAY_TRY(writer.commit(formats::SafetensorsWriter::Durability::kCached));
  out.forward_ns = computed - start;
  out.write_ns = start - creating + now_ns() - computed;
  CUTAWAY_OUT(span, "taps", out.taps.size(), "forward_ns", out.forward_ns);
  return out;
}

Result<MemoryCapture> capture_in_memory(inference::Runner& runner, kv::PagePool& pool,
                                        std::span<const int32_t> tokens, const CaptureJob& job,
                                        const std::vector<trace::Probe*>& others,
                                        MemoryCapture previous) {
  CUTAWAY_SPAN(span, "inspect::capture_in_memory", "tokens", tokens, "taps",
               job.selection.taps.size());
  CUTAWAY_TRY(check(tokens, job));
  const arch::ModelShape& m = runner.model().shape();
  const Plan plan = make_plan(job, m);
  AttentionTop top(job.top, m.n_layers, job.selection.layers);
  std::vector<formats::SafetensorsWriter::Tensor> standing;
  if (job.top > 0) standing = top.tensors(job.selection.heads, m.n_heads, job.range);
  const int64_t floats = std::accumulate(
      standing.begin(), standing.end(), plan.floats,
      [](int64_t sum, const formats::SafetensorsWriter::Tensor& t) { return sum + t.elements(); });
  MemoryCapture out;
  const bool again = floats <= previous.floats && previous.floats <= 2 * floats;
  if (again) {
    out = std::move(previous);
    out.outcome = {};
  } else {
    previous = {};  // before the new one is there
    out.data =
        reinterpret_cast<float*>(out.memory.take(static_cast<size_t>(floats) * sizeof(float)));
    out.floats = floats;
  }
  if (out.data == nullptr) {
    return Error{ErrorCode::kTooLarge,
                 "the taps take " + std::to_string(floats * 4) + " bytes, which are not there",
                 "taps"};
  }
  CaptureProbe probe(plan, job, out.data, !again, runner.pool());
  std::vector<trace::Probe*> probes = others;
  probes.push_back(&probe);
  if (job.top > 0) probes.push_back(&top);
  const int64_t start = now_ns();
  CUTAWAY_TRY(run_passes(runner, pool, tokens, job, wants_logits(job), std::move(probes)));
  out.outcome.forward_ns = now_ns() - start;
  if (job.top > 0) CUTAWAY_TRY(top.check(job.range));
  for (const Planned& p : plan.taps) {
    out.outcome.taps.push_back(
        {trace::tap_name(p.tap.site, p.tap.layer), p.shape, "F32", out.data + p.offset});
  }
  float* at = out.data + plan.floats;
  for (size_t i = 0; i < standing.size(); ++i) {
    top.copy(i, job.selection.heads, job.range, at);
    out.outcome.taps.push_back({standing[i].name, standing[i].shape, standing[i].dtype, at});
    at += standing[i].elements();
  }
  CUTAWAY_OUT(span, "taps", out.outcome.taps.size());
  return out;
}

}  // namespace cutaway::inspect
