// How well a model predicts a text, and what separates it from another model of the same
// vocabulary: perplexity, agreement, KL divergence, damage by layer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "inference/runner.h"

namespace cutaway::inspect {

// A text in windows of `window` tokens, each computed from an empty context. Of a window, the
// tokens after the first `warmup` + 1 are predicted; those before are context only.
struct EvaluationPlan {
  std::span<const int32_t> tokens;  // what does not fill a window at the end is left out
  int64_t window = 512;             // ≥ 2
  int64_t warmup = 256;             // 0 … window − 2
  int32_t bos = -1;                 // ≥ 0: takes the place of every window's first token
  int64_t chunk = 512;              // tokens per forward pass
  bool layers = true;               // compare the residual streams

  int64_t windows() const { return static_cast<int64_t>(tokens.size()) / window; }
  int64_t scored_per_window() const { return window - 1 - warmup; }
};

// Mean over positions of a layer's residual stream beside the baseline's.
struct LayerDamage {
  double relative_error = 0;  // ‖x − b‖₂ / ‖b‖₂
  double cosine = 0;          // x · b / (‖x‖₂ ‖b‖₂)
};

// One entry for each predicted token, in the text's order; what belongs to a baseline is empty
// without one.
struct EvaluationOutcome {
  int64_t windows = 0;       // finished
  std::vector<double> nll;   // −ln p(token), of the model
  std::vector<uint8_t> hit;  // the model's first choice is the token
  std::vector<double> baseline_nll;
  std::vector<uint8_t> baseline_hit;
  std::vector<uint8_t> agrees;      // both have the same first choice
  std::vector<double> kl;           // Σ p_b · ln(p_b / p), p_b the baseline's
  std::vector<LayerDamage> layers;  // [0]: the embedding; [l + 1]: after layer l
  bool cancelled = false;           // what is here belongs to whole windows all the same
};

// Asked after every pass with the tokens done (of windows × window); false ends the evaluation.
using EvaluationProgress = std::function<bool(int64_t done, int64_t total)>;

// Runs the windows through `model`, and through `baseline` where there is one. Preconditions: the
// plan's ranges; the same vocabulary, and for `layers` the same layers and width. Errors:
// kInvalidArgument (a token outside the vocabulary), kTooLarge (no page left), kInvalidFile (a
// model whose logits are not finite: names it and the position).
struct Evaluated {
  inference::Runner& runner;
  kv::PagePool& pages;  // room for a window
};
Result<EvaluationOutcome> evaluate(const Evaluated& model, const Evaluated* baseline,
                                   ThreadPool& pool, const EvaluationPlan& plan,
                                   const EvaluationProgress& progress);

// Of values: arithmetic mean and its standard error √((mean of squares − mean²) / (n − 1)).
struct Mean {
  double value = 0, standard_error = 0;
};
Mean mean_of(std::span<const double> values);
// The value below which `fraction` of them lie, interpolated between neighbours. Sorts them.
double quantile(std::vector<double>& values, double fraction);

}  // namespace cutaway::inspect
