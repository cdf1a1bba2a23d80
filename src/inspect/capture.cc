#include "inspect/capture.h"

#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "formats/safetensors_writer.h"
#include "trace/probe.h"
#include "trace/trace.h"

namespace cutaway::inspect {
namespace {

using trace::Site;

// Per position, the shape of a tap; empty for sites that this model does not have.
std::vector<int64_t> inner_shape(Site site, const arch::ModelShape& m) {
  switch (site) {
    case Site::kTokens:
      return {1};
    case Site::kLn1Scale:
    case Site::kLn2Scale:
    case Site::kLnFinalScale:
      return {1};
    case Site::kQ:
    case Site::kRotQ:
    case Site::kZ:
      return {m.n_heads, m.d_head};
    case Site::kK:
    case Site::kV:
    case Site::kRotK:
      return {m.n_kv_heads, m.d_head};
    case Site::kMlpPreLinear:
      if (!m.gated_mlp) return {};
      return {m.d_mlp};
    case Site::kPosEmbed:
      if (!m.learned_positions) return {};
      return {m.d_model};
    case Site::kMlpPre:
    case Site::kMlpPost:
      if (m.n_experts > 0) return {m.n_experts_used, m.d_mlp};
      return {m.d_mlp};
    case Site::kRouterLogits:
      if (m.n_experts > 0) return {m.n_experts};
      return {};
    case Site::kExpertIndices:
    case Site::kExpertWeights:
      if (m.n_experts > 0) return {m.n_experts_used};
      return {};
    case Site::kLogits:
      return {m.vocab};
    case Site::kResult:
      return {m.n_heads, m.d_model};
    case Site::kAttnScores:
    case Site::kPattern:
      return {};
    default:
      return {m.d_model};
  }
}

bool is_attention_map(Site site) { return site == Site::kAttnScores || site == Site::kPattern; }

// Why a model may lack a site.
std::string why_absent(Site site) {
  switch (site) {
    case Site::kPosEmbed:
      return "; it has no learned positions (they are rotated into q and k)";
    case Site::kMlpPreLinear:
      return "; its MLP has no gate, so hook_pre is all that goes into the activation";
    case Site::kRouterLogits:
    case Site::kExpertIndices:
    case Site::kExpertWeights:
      return "; it is no mixture of experts";
    default:
      return "";
  }
}

struct Wanted {
  trace::TapName tap;
  std::vector<int64_t> shape;
};

Result<std::vector<Wanted>> plan(const std::vector<std::string>& taps, const arch::ModelShape& m,
                                 int64_t n) {
  std::vector<Wanted> out;
  if (taps.empty()) {
    return Error{ErrorCode::kInvalidArgument, "no tap was named; for example: logits", "taps"};
  }
  for (const std::string& text : taps) {
    CUTAWAY_ASSIGN(const trace::TapName tap,
                   trace::parse_tap_name(text, static_cast<int>(m.n_layers)));
    const auto same = [&](const Wanted& w) {
      return w.tap.site == tap.site && w.tap.layer == tap.layer;
    };
    if (std::any_of(out.begin(), out.end(), same)) {
      return Error{ErrorCode::kInvalidArgument, "tap " + text + " is named twice", "taps"};
    }
    Wanted wanted{tap, {1}};
    if (is_attention_map(tap.site)) {
      wanted.shape.insert(wanted.shape.end(), {m.n_heads, n, n});
    } else {
      const std::vector<int64_t> inner = inner_shape(tap.site, m);
      if (inner.empty()) {
        return Error{ErrorCode::kUnsupported,
                     "this model has no such tap: " + text + why_absent(tap.site), "taps"};
      }
      wanted.shape.push_back(n);
      // hook_tokens is b,pos; everything else has what a position holds.
      if (tap.site != Site::kTokens) {
        wanted.shape.insert(wanted.shape.end(), inner.begin(), inner.end());
      }
    }
    out.push_back(std::move(wanted));
  }
  return out;
}

class CaptureProbe final : public trace::Probe {
 public:
  CaptureProbe(const std::vector<Wanted>& wanted, formats::SafetensorsWriter& writer, int64_t n)
      : wanted_(wanted), writer_(writer), n_(n) {}

  bool wants(Site site, int layer) const override { return find(site, layer) >= 0; }

  void observe(const trace::TapEvent& event) override {
    const int64_t start = now_ns();
    const int index = find(event.site, event.layer);
    if (is_attention_map(event.site)) {
      write_map(static_cast<size_t>(index), event);
    } else {
      const int64_t inner = event.values.row_elements();
      for (int64_t i = 0; i < event.values.rows(); ++i) {
        writer_.write(static_cast<size_t>(index), (event.first_position + i) * inner,
                      {event.values.row(i), static_cast<size_t>(inner)});
      }
    }
    write_ns += now_ns() - start;
  }

  int64_t write_ns = 0;

 private:
  int find(Site site, int layer) const {
    for (size_t i = 0; i < wanted_.size(); ++i) {
      if (wanted_[i].tap.site == site && wanted_[i].tap.layer == layer) return static_cast<int>(i);
    }
    return -1;
  }

  // {heads, q, k} of one chunk into {heads, n, n}: keys after the chunk are unseen.
  void write_map(size_t index, const trace::TapEvent& event) {
    const Shape& shape = event.values.shape;
    const float unseen =
        event.site == Site::kAttnScores ? -std::numeric_limits<float>::infinity() : 0.0f;
    std::vector<float> row(static_cast<size_t>(n_));
    for (int64_t h = 0; h < shape[0]; ++h) {
      for (int64_t q = 0; q < shape[1]; ++q) {
        std::fill(row.begin(), row.end(), unseen);
        std::copy_n(event.values.data + (h * shape[1] + q) * shape[2], shape[2], row.begin());
        writer_.write(index, (h * n_ + event.first_position + q) * n_, row);
      }
    }
  }

  const std::vector<Wanted>& wanted_;
  formats::SafetensorsWriter& writer_;
  int64_t n_;
};

}  // namespace

Status check_taps(const std::vector<std::string>& taps, const arch::ModelShape& shape) {
  CUTAWAY_SPAN(span, "inspect::check_taps", "taps", taps.size());
  CUTAWAY_ASSIGN(const std::vector<Wanted> wanted, plan(taps, shape, 1));
  CUTAWAY_OUT(span, "wanted", wanted.size());
  return {};
}

Result<CaptureOutcome> capture(inference::Runner& runner, kv::PagePool& pool,
                               std::span<const int32_t> tokens,
                               const std::vector<std::string>& taps, int64_t chunk,
                               const std::string& path, const std::vector<trace::Probe*>& others) {
  CUTAWAY_SPAN(span, "inspect::capture", "tokens", tokens, "taps", taps.size(), "path", path);
  if (tokens.empty()) {
    return Error{ErrorCode::kInvalidArgument, "the text is empty (0 tokens)", "text"};
  }
  const auto n = static_cast<int64_t>(tokens.size());
  CUTAWAY_ASSIGN(const std::vector<Wanted> wanted, plan(taps, runner.model().shape(), n));
  CaptureOutcome out;
  std::vector<formats::SafetensorsWriter::Tensor> tensors;
  bool logits_wanted = false;
  for (const Wanted& w : wanted) {
    const std::string name = trace::tap_name(w.tap.site, w.tap.layer);
    tensors.push_back({name, w.shape});
    out.taps.push_back({name, w.shape});
    logits_wanted = logits_wanted || w.tap.site == Site::kLogits;
  }
  CUTAWAY_ASSIGN(
      formats::SafetensorsWriter writer,
      formats::SafetensorsWriter::create(
          path, tensors, {{"format", "cutaway capture"}, {"kernels", runner.table().name}}));
  CaptureProbe probe(wanted, writer, n);
  inference::SequenceState sequence(pool);
  std::vector<trace::Probe*> probes = others;
  probes.push_back(&probe);
  runner.set_probes(std::move(probes));
  const int64_t start = now_ns();
  Status status;
  for (int64_t at = 0; at < n && status.ok(); at += chunk) {
    const int64_t count = std::min(chunk, n - at);
    const inference::StepInput input{
        &sequence, tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(count)),
        logits_wanted ? inference::WantLogits::kAll : inference::WantLogits::kNone};
    auto rows = runner.step(std::span(&input, 1));
    if (!rows.ok()) status = rows.error();
  }
  runner.set_probes({});
  CUTAWAY_TRY(status);
  out.write_ns = probe.write_ns;
  out.forward_ns = now_ns() - start - out.write_ns;
  const int64_t committing = now_ns();
  CUTAWAY_TRY(writer.commit());
  out.write_ns += now_ns() - committing;
  CUTAWAY_OUT(span, "taps", out.taps.size(), "forward_ns", out.forward_ns);
  return out;
}

}  // namespace cutaway::inspect
