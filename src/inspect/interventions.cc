#include "inspect/interventions.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "formats/safetensors_reader.h"
#include "formats/safetensors_writer.h"
#include "trace/trace.h"

namespace cutaway::inspect {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("{{{}}}", fmt::join(shape, ", "));
}

float combine(EditOp op, float value, float by) noexcept {
  switch (op) {
    case EditOp::kZero:
      return 0;
    case EditOp::kScale:
      return value * by;
    case EditOp::kAdd:
      return value + by;
    case EditOp::kReplace:
    case EditOp::kPatch:
      return by;
  }
  return value;
}

std::vector<int64_t> patch_shape(const TapEdit& edit, const PatchValues& values) {
  if (edit.layout.map) return {1, edit.layout.groups, values.n, values.keys};
  std::vector<int64_t> shape;
  if (!values.everywhere) shape = {1, values.n};
  if (edit.layout.groups > 1) shape.push_back(edit.layout.groups);
  shape.push_back(edit.layout.width);
  return shape;
}

std::string patch_name(const TapEdit& edit, size_t index) {
  return fmt::format("{}.{}", index, trace::tap_name(edit.tap.site, edit.tap.layer));
}

}  // namespace

Result<PatchValues> shape_patch(const TapEdit& edit, std::vector<float> data,
                                const std::vector<int64_t>& shape, const std::string& name) {
  CUTAWAY_SPAN(span, "inspect::shape_patch", "name", name, "values", data.size());
  const TapLayout& layout = edit.layout;
  PatchValues out;
  out.data = std::move(data);
  bool fits = false;
  if (layout.map) {
    const size_t lead = shape.size() == 4 && shape.front() == 1 ? 1 : 0;
    fits = shape.size() == lead + 3 && shape[lead] == layout.groups && !out.data.empty();
    if (fits) {
      out.n = shape[lead + 1];
      out.keys = shape[lead + 2];
    }
  } else if (!out.data.empty()) {
    const int64_t row = layout.groups * layout.width;
    const auto values = std::ssize(out.data);
    const auto rows_in = [&](size_t dim) {
      return dim < shape.size() && values % row == 0 && shape[dim] == values / row;
    };
    const bool batch = !rows_in(0) && shape.front() == 1 && rows_in(1);
    out.everywhere = !rows_in(0) && !batch && values == row;  // a lone row, of no position
    out.n = values / row;
    fits = rows_in(0) || batch || out.everywhere;
  }
  if (!fits) {
    const std::string expected =
        layout.map           ? fmt::format("{{1, {}, queries, keys}}", layout.groups)
        : layout.groups == 1 ? fmt::format("{{1, positions, {}}}", layout.width)
                             : fmt::format("{{1, positions, {}, {}}}", layout.groups, layout.width);
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("{}: {} has the shape {}; {} takes {}", edit.field("from"), name,
                    shape_text(shape), trace::tap_name(edit.tap.site, edit.tap.layer), expected),
        edit.field("from")};
  }
  out.prompt = out.n;
  CUTAWAY_OUT(span, "positions", out.n, "everywhere", out.everywhere);
  return out;
}

Result<Patches> load_patches(const InterventionSpec& spec, const std::string& directory,
                             int64_t n_layers, const FromRun& from_run) {
  CUTAWAY_SPAN(span, "inspect::load_patches", "edits", spec.edits.size(), "directory", directory);
  const auto path_of = [&](const std::string& path) {
    return (std::filesystem::path(directory) / path).lexically_normal().string();
  };
  Patches out;
  for (const TapEdit& edit : spec.edits) {
    out.emplace_back();
    if (!edit.from) continue;
    const std::string own = trace::tap_name(edit.tap.site, edit.tap.layer);
    const std::string name = edit.from->tensor.empty() ? own : edit.from->tensor;
    PatchValues values;
    if (!edit.from->run.empty()) {
      CUTAWAY_ASSIGN(const trace::TapName tap,
                     trace::parse_tap_name(name, static_cast<int>(n_layers)));
      CUTAWAY_ASSIGN(values, from_run(edit, path_of(edit.from->run), tap));
    } else {
      const auto file = formats::SafetensorsFile::open(path_of(edit.from->file));
      if (!file.ok()) return file.error().within(edit.field("from.file"));
      const auto tensor = file->find(name);
      if (!tensor.ok()) return tensor.error().within(edit.field("from.tensor"));
      auto data = file->read(*tensor);
      if (!data.ok()) return data.error().within(edit.field("from"));
      CUTAWAY_ASSIGN(values, shape_patch(edit, std::move(*data), tensor->shape,
                                         file->path() + ": \"" + name + "\""));
    }
    out.back() = std::make_shared<const PatchValues>(std::move(values));
  }
  CUTAWAY_OUT(span, "patches", out.size());
  return out;
}

// ---- binding -----------------------------------------------------------------------------------

namespace {

// Which row of its source a patch puts where.
Status bind_patch(BoundEdit& bound, int64_t prompt) {
  CUTAWAY_SPAN(span, "inspect::bind_patch", "item", bound.edit.item);
  const PatchValues& source = *bound.patch;
  const TapEdit& edit = bound.edit;
  const trace::IndexSet& from = edit.from->positions;
  if (!from.all()) {
    const std::string field = edit.field("from.positions");
    std::vector<int64_t> rows;
    for (trace::IndexRange range : from.resolve(source.prompt)) {
      if (range.end == INT64_MAX) range.end = std::max(source.n, range.begin + 1);
      for (int64_t i = range.begin; i < range.end; ++i) {
        if (i < 0 || i >= source.n) {
          return Error{
              ErrorCode::kInvalidArgument,
              fmt::format("{} has {}; the source has positions 0 to {}", field, i, source.n - 1),
              field};
        }
        rows.push_back(i);
      }
    }
    if (rows.size() == 1) {
      bound.one_row = rows.front();
      return {};
    }
    std::vector<int64_t> targets;
    for (const trace::IndexRange& range : edit.positions.resolve(prompt)) {
      const int64_t end = std::min(range.end, range.begin + std::ssize(rows) + 1);
      for (int64_t i = range.begin; i < end; ++i) targets.push_back(i);
    }
    if (edit.positions.all() || targets.size() != rows.size()) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("{} has {} positions; {} must name as many, in the same order",
                               field, rows.size(), edit.field("positions")),
                   field};
    }
    std::vector<int64_t> sorted = targets;
    std::sort(sorted.begin(), sorted.end());
    if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
        twice != sorted.end()) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("{} has {} twice", edit.field("positions"), *twice),
                   edit.field("positions")};
    }
    for (size_t i = 0; i < rows.size(); ++i) bound.rows.emplace_back(targets[i], rows[i]);
    return {};
  }
  if (source.everywhere) {
    bound.one_row = 0;
    return {};
  }
  for (trace::IndexRange& range : bound.positions) {
    if (!edit.positions.all() && range.end == range.begin + 1 && range.begin >= source.n) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("{} has {}; the source has positions 0 to {}. \"from\": "
                               "{{\"positions\": …}} says which of them goes where",
                               edit.field("positions"), range.begin, source.n - 1),
                   edit.field("positions")};
    }
    range.end = std::min(range.end, source.n);
  }
  return {};
}

}  // namespace

Result<InterventionEditor> InterventionEditor::bind(const InterventionSpec& spec, Patches patches,
                                                    int64_t prompt) {
  CUTAWAY_SPAN(span, "inspect::InterventionEditor::bind", "edits", spec.edits.size(), "prompt",
               prompt);
  CUTAWAY_CHECK(patches.size() == spec.edits.size());
  InterventionEditor out;
  out.by_site_.resize(trace::kSiteCount);
  for (size_t i = 0; i < spec.edits.size(); ++i) {
    BoundEdit bound;
    bound.edit = spec.edits[i];
    bound.patch = std::move(patches[i]);
    const TapEdit& edit = bound.edit;
    for (const auto& [set, member] :
         {std::pair{&edit.positions, "positions"}, std::pair{&edit.keys, "keys"}}) {
      if (const auto bad = set->before_first(prompt)) {
        return Error{
            ErrorCode::kInvalidArgument,
            fmt::format("{} has {}; the prompt has {} tokens", edit.field(member), *bad, prompt),
            edit.field(member)};
      }
    }
    bound.positions = edit.positions.resolve(prompt);
    bound.keys = edit.keys.resolve(prompt);
    // Step s is the position that chose token s: step 0 the prompt's last one.
    for (trace::IndexRange& range : bound.steps = edit.steps.resolve(0)) {
      if (!edit.steps.all()) range.begin += prompt - 1;
      if (range.end != INT64_MAX) range.end += prompt - 1;
    }
    if (edit.steps.has_word()) bound.steps.push_back({0, prompt});
    if (bound.patch != nullptr) CUTAWAY_TRY(bind_patch(bound, prompt));
    auto& layers = out.by_site_[static_cast<size_t>(edit.tap.site)];
    const auto layer = static_cast<size_t>(edit.tap.layer + 1);
    if (layers.size() <= layer) layers.resize(layer + 1);
    layers[layer].push_back(i);
    out.bound_.push_back(std::move(bound));
  }
  out.fired_.resize(spec.edits.size());
  CUTAWAY_OUT(span, "bound", out.bound_.size());
  return out;
}

// ---- editing -----------------------------------------------------------------------------------

namespace {

bool chooses(const BoundEdit& bound, int64_t position) {
  return holds(bound.positions, position) && holds(bound.steps, position);
}

int64_t source_row(const BoundEdit& bound, int64_t position) {
  if (bound.one_row >= 0) return bound.one_row;
  for (const auto& [to, from] : bound.rows) {
    if (to == position) return from;
  }
  return position;
}

// {rows, groups, width}
void change_row(const BoundEdit& bound, const trace::TapEvent& event, int64_t row, float* values) {
  const TapEdit& edit = bound.edit;
  const PatchValues* patch = bound.patch.get();
  const int64_t width = edit.layout.width, row_size = edit.layout.groups * width;
  const bool all = edit.features.empty();
  const int64_t n = all ? width : std::ssize(edit.features);
  const int64_t from =
      patch == nullptr ? 0 : source_row(bound, event.first_position + row) * row_size;
  for (size_t g = 0; g < edit.groups.size(); ++g) {
    const int64_t first = edit.groups[g] * width;
    float* head = values + row * row_size + first;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t j = all ? i : edit.features[static_cast<size_t>(i)];
      const float by =
          patch != nullptr  ? edit.values[0] * patch->data[static_cast<size_t>(from + first + j)]
          : edit.value_each ? edit.values[g * static_cast<size_t>(n) + static_cast<size_t>(i)]
                            : edit.values[g];
      head[j] = combine(edit.op, head[j], by);
    }
  }
}

// {heads, rows, keys}
void change_map(const BoundEdit& bound, const trace::TapEvent& event, int64_t row, float* values) {
  const TapEdit& edit = bound.edit;
  const PatchValues* patch = bound.patch.get();
  const int64_t rows = event.values.shape[1], n_keys = event.values.shape[2];
  const float unseen =
      event.site == trace::Site::kAttnScores ? -std::numeric_limits<float>::infinity() : 0.0f;
  const int64_t position = event.first_position + row;
  for (size_t g = 0; g < edit.groups.size(); ++g) {
    float* map = values + (edit.groups[g] * rows + row) * n_keys;
    const float* from = nullptr;
    if (patch != nullptr) {
      from = patch->data.data() +
             (edit.groups[g] * patch->n + source_row(bound, position)) * patch->keys;
    }
    for (int64_t k = 0; k <= position && k < n_keys; ++k) {
      if (!holds(bound.keys, k)) continue;
      const float by = from == nullptr   ? edit.values[g]
                       : k < patch->keys ? edit.values[0] * from[k]
                                         : unseen;
      map[k] = combine(edit.op, map[k], by);
    }
  }
}

}  // namespace

void InterventionEditor::edit(const trace::TapEvent& event, float* values) {
  CUTAWAY_SPAN(span, "inspect::InterventionEditor::edit", "tap",
               trace::tap_name(event.site, event.layer), "position", event.first_position);
  const auto& layers = by_site_[static_cast<size_t>(event.site)];
  int64_t changed = 0;
  for (const size_t i : layers[static_cast<size_t>(event.layer + 1)]) {
    const BoundEdit& bound = bound_[i];
    const int64_t rows = event.values.shape[bound.edit.layout.map ? 1 : 0];
    for (int64_t row = 0; row < rows; ++row) {
      if (!chooses(bound, event.first_position + row)) continue;
      (bound.edit.layout.map ? change_map : change_row)(bound, event, row, values);
      ++fired_[i];
      ++changed;
    }
  }
  CUTAWAY_OUT(span, "positions", changed);
}

// ---- what a recording keeps --------------------------------------------------------------------

Json recorded_spec(const InterventionSpec& spec, const Patches& patches,
                   const std::string& tensors) {
  CUTAWAY_SPAN(span, "inspect::recorded_spec", "edits", spec.edits.size());
  Json items = Json::array();
  for (size_t i = 0; i < spec.edits.size(); ++i) {
    const TapEdit& edit = spec.edits[i];
    Json item = edit.source;
    item.erase("layers");
    item["tap"] = trace::tap_name(edit.tap.site, edit.tap.layer);
    if (edit.from) {
      Json from = {{"file", tensors}, {"tensor", patch_name(edit, i)}};
      if (!edit.from->positions.all()) {
        Json positions = Json::array();
        for (const trace::IndexRange& range : edit.from->positions.resolve(patches[i]->prompt)) {
          positions.push_back(
              fmt::format("{}:{}", range.begin, std::min(range.end, patches[i]->n)));
        }
        from["positions"] = std::move(positions);
      }
      item["from"] = std::move(from);
    }
    items.push_back(std::move(item));
  }
  Json out = {{"interventions", std::move(items)}, {"tokens", token_rules_json(spec)}};
  CUTAWAY_OUT(span, "items", spec.edits.size());
  return out;
}

Status write_patches(const InterventionSpec& spec, const Patches& patches,
                     const std::string& path) {
  CUTAWAY_SPAN(span, "inspect::write_patches", "path", path);
  std::vector<formats::SafetensorsWriter::Tensor> tensors;
  for (size_t i = 0; i < patches.size(); ++i) {
    if (patches[i] == nullptr) continue;
    tensors.push_back({patch_name(spec.edits[i], i), patch_shape(spec.edits[i], *patches[i])});
  }
  if (tensors.empty()) return {};
  CUTAWAY_ASSIGN(
      formats::SafetensorsWriter writer,
      formats::SafetensorsWriter::create(path, tensors, {{"format", "cutaway interventions"}}));
  size_t index = 0;
  for (const auto& patch : patches) {
    if (patch != nullptr) writer.write(index++, 0, patch->data);
  }
  CUTAWAY_TRY(writer.commit());
  CUTAWAY_OUT(span, "tensors", tensors.size());
  return {};
}

}  // namespace cutaway::inspect
