// Slots: a token that goes to `used` experts takes that many rows, one an expert, in buffers that
// are ordered by expert. Inside an expert's run of slots everything is as in a plain gated MLP.

#include "ops/moe.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/math.h"
#include "ops/gated_tile.h"
#include "ops/routing.h"
#include "trace/trace.h"

namespace cutaway::ops {
namespace {

using kernels::kBlockK;
using kernels::kGroupRows;
using trace::Site;

// Which rows go to which expert: those of expert e are [begin[e], begin[e + 1]) of `token`.
struct Slots {
  std::vector<int64_t> begin;  // [experts + 1]
  std::vector<int32_t> token;  // [slots]
  std::vector<int32_t> of;     // [rows][used]: the slot of a row's rank
};

Slots sort_by_expert(const Routing& routing, int64_t n_experts) {
  Slots out;
  const auto n = static_cast<size_t>(routing.n * routing.used);
  out.begin.assign(static_cast<size_t>(n_experts) + 1, 0);
  out.token.resize(n);
  out.of.resize(n);
  for (size_t i = 0; i < n; ++i) ++out.begin[static_cast<size_t>(routing.expert[i]) + 1];
  for (size_t e = 1; e < out.begin.size(); ++e) out.begin[e] += out.begin[e - 1];
  std::vector<int64_t> next(out.begin.begin(), out.begin.end() - 1);
  for (size_t i = 0; i < n; ++i) {
    const auto slot = static_cast<size_t>(next[static_cast<size_t>(routing.expert[i])]++);
    out.token[slot] = static_cast<int32_t>(static_cast<int64_t>(i) / routing.used);
    out.of[i] = static_cast<int32_t>(slot);
  }
  return out;
}

// One row of the blocks' input per slot.
Input gather(Pass& pass, const Input& x, const std::vector<int32_t>& token, bool floats, bool q8) {
  const auto n = static_cast<int64_t>(token.size());
  CUTAWAY_SPAN(span, "ops::gather", "x", x.view(), "slots", n);
  Input out;
  out.n = n;
  out.d = x.d;
  if (floats) out.floats = pass.make(n, x.d);
  kernels::Q8Output to;
  if (q8) to = make_q8(pass, n, x.d);
  const int64_t blocks = x.d / kBlockK;
  const auto copy = [](auto* out_row, const auto* in_row, int64_t elements) {
    std::memcpy(out_row, in_row, static_cast<size_t>(elements) * sizeof *out_row);
  };
  for_rows(pass, n, [&](int64_t i) noexcept {
    const int64_t t = token[static_cast<size_t>(i)];
    if (floats) copy(out.floats.row(i), x.floats.row(t), x.d);
    if (q8) {
      const kernels::Q8Output row = row_of(to, i);
      copy(row.q, x.q8.q + t * x.d, x.d);
      copy(row.scale, x.q8.scale + t * blocks, blocks);
      copy(row.sum, x.q8.sum + t * blocks, blocks);
      copy(row.total, x.q8.total + t * blocks, blocks);
    }
  });
  out.q8 = to.view();
  CUTAWAY_OUT(span, "floats", floats, "q8", q8);
  return out;
}

// What the experts' inside is written to; the shared one's likewise.
struct Hidden {
  GatedOutputs outputs;
  Input input;  // of `down`
};

Hidden make_hidden(Pass& pass, const GatedMlpWeights& weights, int64_t n, bool gate, bool up,
                   bool post) {
  const int64_t d = weights.gate.weight.out_features();
  CUTAWAY_CHECK(weights.up.weight.out_features() == d && weights.down.weight.in_features() == d);
  const bool q8 = takes_q8(pass, weights.down.weight);
  Hidden out;
  if (q8) out.outputs.q8 = make_q8(pass, n, d);
  if (gate) out.outputs.gate = pass.make(n, d);
  if (up) out.outputs.up = pass.make(n, d);
  if (post || !q8) out.outputs.post = pass.make(n, d);
  out.input.n = n;
  out.input.d = d;
  out.input.q8 = out.outputs.q8.view();
  out.input.floats = out.outputs.post;
  return out;
}

// Rows that pass one expert.
struct Run {
  const GatedMlpWeights* weights;
  const Input* x;
  int64_t x_row;
  const Hidden* hidden;
  Rows y;       // of `down`
  int64_t row;  // the first, in hidden and y
  int64_t n;
};

// Part of a run's work: features, or groups of 16.
struct Part {
  const Run* run;
  int64_t begin, end;
};

// Divides each run's `count(run)` units, at most `most(run)` and a multiple of `multiple` at once,
// into parts of about equal work, so that no thread waits for another with a large one.
template <typename Count, typename Most>
std::vector<Part> divide(std::span<const Run> runs, int threads, int64_t multiple,
                         const Count& count, const Most& most) {
  // Weights have to be read however few rows there are: about as long as these rows' products take.
  static constexpr int64_t kLeastRows = 8, kPartsPerThread = 8;
  const auto rows = [](const Run& run) { return std::max(run.n, kLeastRows); };
  int64_t work = 0;
  for (const Run& run : runs) work += rows(run) * count(run);
  std::vector<Part> parts;
  for (const Run& run : runs) {
    const int64_t share = work / (threads * kPartsPerThread) / rows(run) / multiple * multiple;
    const int64_t step = std::clamp(share, multiple, std::max(multiple, most(run)));
    for (int64_t at = 0; at < count(run); at += step) {
      parts.push_back({&run, at, std::min(at + step, count(run))});
    }
  }
  return parts;
}

// Gate, up and activation of every run, into its hidden rows.
void run_inside(Pass& pass, std::span<const Run> runs) {
  CUTAWAY_SPAN(span, "ops::run_inside", "experts", runs.size());
  const auto features = [](const Run& run) { return run.weights->gate.weight.out_features(); };
  const std::vector<Part> inside = divide(runs, pass.pool.size(), kBlockK, features,
                                          [](const Run& run) { return most_tile_rows(run.n); });
  pass.pool.parallel_for(inside.size(), [&](size_t i) noexcept {
    const Part& part = inside[i];
    const Run& run = *part.run;
    gated_features(pass, *run.weights, *run.x, run.x_row, run.n, part.begin, part.end - part.begin,
                   run.hidden->outputs, run.row);
  });
  CUTAWAY_OUT(span, "parts", inside.size());
}

// What `down` of every run makes of its hidden rows.
void run_down(Pass& pass, std::span<const Run> runs) {
  CUTAWAY_SPAN(span, "ops::run_down", "experts", runs.size());
  const auto groups = [](const Run& run) { return run.weights->down.weight.packed.groups(); };
  // Even parts: kernels that take two groups at a time are slower with a lone one.
  const std::vector<Part> down = divide(runs, pass.pool.size(), 2, groups, groups);
  pass.pool.parallel_for(down.size(), [&](size_t i) noexcept {
    const Part& part = down[i];
    const Run& run = *part.run;
    multiply(pass, run.weights->down, run.hidden->input, run.row, run.n, part.begin, part.end,
             run.y.row(run.row) + part.begin * kGroupRows, run.y.d);
  });
  CUTAWAY_OUT(span, "parts", down.size());
}

// sigmoid(gate · x), summed in 16 lanes: the same bits from every compiler.
float shared_weight(const Vector& gate, const float* x) noexcept {
  constexpr int64_t kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= gate.n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] += gate.data[i + j] * x[i + j];
  }
  for (int64_t j = 0; i + j < gate.n; ++j) lanes[j] += gate.data[i + j] * x[i + j];
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return 1 / (1 + kernels::exp_f32(-sum));
}

// Taps a tensor of the experts' inside, {slots, d}, in the order of rows and ranks; what editors
// make of it goes back to the slots.
void tap_slots(Pass& pass, Site site, int layer, const Routing& routing, const Slots& slots,
               const Rows& values) {
  if (values.data == nullptr || !pass.watches(site, layer)) return;
  const Scratch::Mark mark = pass.scratch.mark();
  const Rows out = pass.make(routing.n, routing.used * values.d);
  const size_t bytes = static_cast<size_t>(values.d) * sizeof(float);
  for (size_t i = 0; i < slots.of.size(); ++i) {
    std::memcpy(out.data + static_cast<int64_t>(i) * values.d, values.row(slots.of[i]), bytes);
  }
  pass.tap(site, layer, out, {routing.used, values.d});
  for (size_t i = 0; i < slots.of.size() && pass.changes(site, layer); ++i) {
    std::memcpy(values.row(slots.of[i]), out.data + static_cast<int64_t>(i) * values.d, bytes);
  }
  pass.scratch.rewind(mark);
}

// run_inside() in whole rows, step by step, for editors to change them in between.
void run_inside_apart(Pass& pass, int layer, std::span<const Run> runs, const Routing& routing,
                      const Slots& slots, const Hidden& hidden) {
  CUTAWAY_SPAN(span, "ops::run_inside_apart", "experts", runs.size());
  const GatedOutputs& out = hidden.outputs;
  const auto groups = [](const Run& run) { return run.weights->gate.weight.packed.groups(); };
  const std::vector<Part> parts = divide(runs, pass.pool.size(), 2, groups, groups);
  pass.pool.parallel_for(parts.size(), [&](size_t i) noexcept {
    const Part& part = parts[i];
    const Run& run = *part.run;
    const int64_t first = part.begin * kGroupRows;
    multiply(pass, run.weights->gate, *run.x, run.x_row, run.n, part.begin, part.end,
             out.gate.row(run.row) + first, out.gate.d);
    multiply(pass, run.weights->up, *run.x, run.x_row, run.n, part.begin, part.end,
             out.up.row(run.row) + first, out.up.d);
  });
  tap_slots(pass, Site::kMlpPre, layer, routing, slots, out.gate);
  tap_slots(pass, Site::kMlpPreLinear, layer, routing, slots, out.up);
  const auto activate = activation_of(pass, runs.front().weights->activation);
  for_rows(pass, out.post.n, [&](int64_t i) noexcept {
    activate(out.gate.row(i), out.up.row(i), out.post.d, out.post.row(i));
  });
  tap_slots(pass, Site::kMlpPost, layer, routing, slots, out.post);
  if (out.q8.q != nullptr) {
    for_rows(pass, out.post.n, [&](int64_t i) noexcept {
      pass.table.quantize_q8(out.post.row(i), out.post.d, 1, out.post.d, 0, row_of(out.q8, i));
    });
  }
  CUTAWAY_OUT(span, "slots", out.post.n);
}

// What the experts gave, added up.
struct Given {
  const Routing* routing;
  const Slots* slots;
  Rows experts;                 // {slots, d_model}
  Rows shared, shared_weights;  // {rows, d_model}, {rows, 1}; data == nullptr: none
};

void sum_onto(Pass& pass, int layer, const Given& given, const Rows& x) {
  CUTAWAY_SPAN(span, "ops::sum_onto", "x", x.view());
  const Routing& routing = *given.routing;
  Rows sums;
  if (pass.watches(Site::kMlpOut, layer)) sums = pass.make(x.n, x.d);
  const bool apart = pass.changes(Site::kMlpOut, layer);  // x gains what editors make of the sums
  for_rows(pass, x.n, [&](int64_t i) noexcept {
    constexpr int64_t kTile = 512;
    float sum[kTile];
    for (int64_t begin = 0; begin < x.d; begin += kTile) {
      const int64_t n = std::min(kTile, x.d - begin);
      const auto add = [&](float weight, const float* y, bool first) {
        if (first) {
          for (int64_t j = 0; j < n; ++j) sum[j] = weight * y[begin + j];
        } else {
          for (int64_t j = 0; j < n; ++j) sum[j] += weight * y[begin + j];
        }
      };
      for (int64_t rank = 0; rank < routing.used; ++rank) {
        const int64_t at = i * routing.used + rank;
        add(routing.weights.data[at], given.experts.row(given.slots->of[static_cast<size_t>(at)]),
            rank == 0);
      }
      if (given.shared.data != nullptr) {
        add(*given.shared_weights.row(i), given.shared.row(i), false);
      }
      if (!apart) pass.table.add(x.row(i) + begin, sum, n, x.row(i) + begin);
      if (sums.data != nullptr) {
        std::memcpy(sums.row(i) + begin, sum, static_cast<size_t>(n) * sizeof(float));
      }
    }
  });
  if (sums.data != nullptr) pass.tap(Site::kMlpOut, layer, sums);
  if (apart) {
    for_rows(pass, x.n,
             [&](int64_t i) noexcept { pass.table.add(x.row(i), sums.row(i), x.d, x.row(i)); });
  }
  pass.tap(Site::kResidPost, layer, x);
  CUTAWAY_OUT(span, "resid_post", x.view());
}

}  // namespace

void moe_onto(Pass& pass, int layer, const MoeWeights& weights, const Input& normalized,
              const Rows& x) {
  CUTAWAY_SPAN(span, "ops::moe_onto", "x", normalized.view(), "experts", weights.experts.size(),
               "used", weights.used);
  CUTAWAY_CHECK(normalized.floats.data != nullptr && normalized.d == x.d && normalized.n == x.n);
  const Scratch::Mark mark = pass.scratch.mark();
  const Routing routing =
      route(pass, layer, weights.router, weights.used, weights.normalize, normalized.floats);
  const Slots slots = sort_by_expert(routing, static_cast<int64_t>(weights.experts.size()));
  const auto n_slots = static_cast<int64_t>(slots.token.size());

  const GatedMlpWeights& like = weights.experts.front();
  const Input ready = quantized_for(pass, normalized, weights.readers());
  // One row needs no copies: every expert that it goes to reads the same one.
  const bool one = x.n == 1;
  const bool gate_q8 = takes_q8(pass, like.gate.weight), up_q8 = takes_q8(pass, like.up.weight);
  const Input gathered =
      one ? ready : gather(pass, ready, slots.token, !gate_q8 || !up_q8, gate_q8 || up_q8);
  const bool edited = pass.changes(Site::kMlpPre, layer) ||
                      pass.changes(Site::kMlpPreLinear, layer) ||
                      pass.changes(Site::kMlpPost, layer);
  const Hidden hidden = make_hidden(pass, like, n_slots, edited || pass.wants(Site::kMlpPre, layer),
                                    edited || pass.wants(Site::kMlpPreLinear, layer),
                                    edited || pass.wants(Site::kMlpPost, layer));
  Given given{&routing, &slots, pass.make(n_slots, x.d), {}, {}};
  std::vector<Run> runs;
  for (size_t e = 0; e < weights.experts.size(); ++e) {
    const int64_t first = slots.begin[e], n = slots.begin[e + 1] - first;
    if (n == 0) continue;
    runs.push_back(
        {&weights.experts[e], &gathered, one ? 0 : first, &hidden, given.experts, first, n});
  }
  const size_t met = runs.size();
  Hidden shared;
  if (weights.shared_gate.present()) {
    shared = make_hidden(pass, weights.shared, x.n, false, false, false);
    given.shared = pass.make(x.n, x.d);
    given.shared_weights = pass.make(x.n, 1);
    for_rows(pass, x.n, [&](int64_t i) noexcept {
      *given.shared_weights.row(i) = shared_weight(weights.shared_gate, normalized.floats.row(i));
    });
    runs.push_back({&weights.shared, &ready, 0, &shared, given.shared, 0, x.n});
  }
  if (edited) [[unlikely]] {
    run_inside_apart(pass, layer, std::span(runs).first(met), routing, slots, hidden);
    run_inside(pass, std::span(runs).subspan(met));
  } else {
    run_inside(pass, runs);
    tap_slots(pass, Site::kMlpPre, layer, routing, slots, hidden.outputs.gate);
    tap_slots(pass, Site::kMlpPreLinear, layer, routing, slots, hidden.outputs.up);
    tap_slots(pass, Site::kMlpPost, layer, routing, slots, hidden.outputs.post);
  }
  run_down(pass, runs);
  sum_onto(pass, layer, given, x);
  pass.scratch.rewind(mark);
  CUTAWAY_OUT(span, "experts_met", runs.size(), "resid_post", x.view());
}

}  // namespace cutaway::ops
