// Interventions at work: an editor that does what a specification says, the values that patches put
// in, and the form in which a recording keeps both.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "inspect/intervention_spec.h"

namespace cutaway::inspect {

// A tap's values at positions 0 … n − 1 of a file or of another run: {n, groups, width}; maps
// {groups, n, keys}.
struct PatchValues {
  int64_t n = 0, keys = 0;
  int64_t prompt = 0;       // of a run; else n: where negative positions count from
  bool everywhere = false;  // one row without a position, for all positions
  std::vector<float> data;
};

// For each edit of a specification: its values, or null where it has no origin.
using Patches = std::vector<std::shared_ptr<const PatchValues>>;

// `data` of shape {positions, …} or {1, positions, …}, as captures have it, or a lone row. Error
// kInvalidArgument: the edit's field, `name` of the tensor, its shape and the one that is expected.
Result<PatchValues> shape_patch(const TapEdit& edit, std::vector<float> data,
                                const std::vector<int64_t>& shape, const std::string& name);

// Gives a tap of a recording. `directory` is as the specification has it.
using FromRun = std::function<Result<PatchValues>(const TapEdit& edit, const std::string& directory,
                                                  const trace::TapName& tap)>;
// Reads what every edit takes from elsewhere; relative paths are below `directory`. Errors name the
// edit's field.
Result<Patches> load_patches(const InterventionSpec& spec, const std::string& directory,
                             int64_t n_layers, const FromRun& from_run);

// An edit with its positions resolved.
struct BoundEdit {
  TapEdit edit;
  std::shared_ptr<const PatchValues> patch;
  std::vector<trace::IndexRange> positions, steps, keys;
  // Of patches: the source's row for a position, one for all, or (both empty) the same.
  std::vector<std::pair<int64_t, int64_t>> rows;
  int64_t one_row = -1;
};

class InterventionEditor final : public trace::Editor {
 public:
  // `prompt`: how many tokens the prompt has, from whose end negative positions count and whose
  // last position is step 0. Errors kInvalidArgument: positions that the prompt or a patch's source
  // does not have.
  static Result<InterventionEditor> bind(const InterventionSpec& spec, Patches patches,
                                         int64_t prompt);

  bool changes(trace::Site site, int layer) const override {
    const auto index = static_cast<size_t>(layer + 1);
    const auto& layers = by_site_[static_cast<size_t>(site)];
    return index < layers.size() && !layers[index].empty();
  }
  void edit(const trace::TapEvent& event, float* values) override;

  // At how many positions each edit changed its tap so far, a generation's every pass counted.
  const std::vector<int64_t>& fired() const { return fired_; }

 private:
  std::vector<BoundEdit> bound_;
  std::vector<int64_t> fired_;
  std::vector<std::vector<std::vector<size_t>>> by_site_;  // [site][layer + 1]: of bound_
};

// The specification as a recording keeps it: one item for each edit, texts as ids, and patches from
// `tensors`, the name of a file beside it that write_patches() made.
Json recorded_spec(const InterventionSpec& spec, const Patches& patches,
                   const std::string& tensors);
// Errors: kIo. Nothing is written when there is no patch.
Status write_patches(const InterventionSpec& spec, const Patches& patches, const std::string& path);

}  // namespace cutaway::inspect
