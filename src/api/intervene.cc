#include "api/intervene.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "api/record.h"
#include "base/input_file.h"
#include "formats/safetensors_reader.h"
#include "inspect/capture.h"

namespace cutaway {
namespace api {
namespace {

Result<inspect::PatchValues> compute_tap(const inspect::TapEdit& edit, const trace::TapName& tap,
                                         const inspect::Recording& recording,
                                         const std::string& directory,
                                         const model::LoadedModel& model, Engine::Impl& engine) {
  CUTAWAY_SPAN(span, "api::compute_tap", "directory", directory, "tap",
               trace::tap_name(tap.site, tap.layer));
  CUTAWAY_TRY(check_model(recording, model));
  CUTAWAY_ASSIGN(const SessionOptions options, recorded_session(recording));
  CUTAWAY_ASSIGN(const ResolvedSession session, resolve_session(options, model, engine));
  const std::vector<int32_t> tokens = recording.computed_tokens();
  const int64_t n_pages = kv::Geometry::pages_for(std::ssize(tokens));
  const kv::Geometry geometry = kv_geometry(model, session.cache_type);
  CUTAWAY_TRY(check_memory(geometry, n_pages, "the run that is patched from", "from"));
  kv::PagePool pages(geometry, n_pages);
  inference::Runner runner(model, *engine.selection.table, *engine.pool, session.precise);
  runner.set_context(session.context);
  CUTAWAY_ASSIGN(const auto own, Intervened::of_recording(recording, directory, model));
  if (own != nullptr) runner.set_editors(own->editors());
  inspect::CaptureJob job;
  job.selection.taps = {tap};
  job.range = {0, std::ssize(tokens)};
  job.chunk = session.prefill_chunk;
  CUTAWAY_ASSIGN(const inspect::MemoryCapture kept,
                 inspect::capture_in_memory(runner, pages, tokens, job));
  const inspect::CapturedTap& values = kept.outcome.taps.front();
  int64_t n = 1;
  for (const int64_t dim : values.shape) n *= dim;
  const auto* data = static_cast<const float*>(values.data);
  CUTAWAY_OUT(span, "values", n);
  return inspect::shape_patch(edit, {data, data + n}, values.shape, directory + ": " + values.name);
}

Result<inspect::PatchValues> tap_of_run(const inspect::TapEdit& edit, const std::string& directory,
                                        const trace::TapName& tap, const model::LoadedModel& model,
                                        Engine::Impl& engine) {
  CUTAWAY_SPAN(span, "api::tap_of_run", "directory", directory, "tap",
               trace::tap_name(tap.site, tap.layer));
  const std::string name = trace::tap_name(tap.site, tap.layer);
  auto recording = inspect::read_recording(directory);
  if (!recording.ok()) return recording.error().within(edit.field("from.run"));
  inspect::PatchValues out;
  bool kept = false;
  const auto layout = inspect::tap_layout(tap.site, model.shape());
  if (recording->has_tensors && layout) {
    // Kept of some positions or heads alone, it is computed again.
    const auto n = std::ssize(recording->computed_tokens());
    const int64_t whole = n * layout->groups * (layout->map ? n : layout->width);
    CUTAWAY_ASSIGN(const auto file,
                   formats::SafetensorsFile::open(inspect::recorded_tensors_path(directory)));
    for (const auto& tensor : file.tensors()) {
      if (tensor.name != name || tensor.elements() != whole) continue;
      kept = true;
      CUTAWAY_ASSIGN(auto data, file.read(tensor));
      CUTAWAY_ASSIGN(out, inspect::shape_patch(edit, std::move(data), tensor.shape,
                                               file.path() + ": \"" + name + "\""));
    }
  }
  if (!kept) {
    auto computed = compute_tap(edit, tap, *recording, directory, model, engine);
    if (!computed.ok()) {
      const Error& error = computed.error();  // a shape that does not fit names the field itself
      return error.message.starts_with(edit.field("from")) ? error
                                                           : error.within(edit.field("from.run"));
    }
    out = std::move(*computed);
  }
  out.prompt = std::ssize(recording->prompt);
  CUTAWAY_OUT(span, "kept", kept, "positions", out.n);
  return out;
}

int64_t steps_of(const sampling::TokenRules::Ban& ban, int64_t steps) {
  int64_t n = 0;
  for (int64_t step = 0; step < steps; ++step) n += ban.holds(step) ? 1 : 0;
  return n;
}

}  // namespace

Result<Intervened> Intervened::make(const Interventions& interventions, int64_t prompt,
                                    const model::LoadedModel& model,
                                    const inspect::FromRun& from_run) {
  CUTAWAY_SPAN(span, "api::Intervened::make", "prompt", prompt, "directory",
               interventions.directory);
  const arch::ModelShape& shape = model.shape();
  CUTAWAY_ASSIGN(
      inspect::InterventionSpec spec,
      inspect::parse_interventions(interventions.specification, shape, *model.tokenizer()));
  CUTAWAY_ASSIGN(inspect::Patches patches,
                 inspect::load_patches(spec, interventions.directory, shape.n_layers, from_run));
  CUTAWAY_ASSIGN(inspect::InterventionEditor editor,
                 inspect::InterventionEditor::bind(spec, patches, prompt));
  CUTAWAY_OUT(span, "edits", spec.edits.size());
  return Intervened(std::move(spec), std::move(patches), prompt, std::move(editor));
}

Result<Intervened> Intervened::prepare(const Interventions& interventions, int64_t prompt,
                                       const model::LoadedModel& model, Engine::Impl& engine) {
  CUTAWAY_SPAN(span, "api::Intervened::prepare", "prompt", prompt);
  auto out = make(
      interventions, prompt, model,
      [&](const inspect::TapEdit& edit, const std::string& directory, const trace::TapName& tap) {
        return tap_of_run(edit, directory, tap, model, engine);
      });
  CUTAWAY_OUT(span, "ok", out.ok());
  return out;
}

Result<std::unique_ptr<Intervened>> Intervened::of_recording(const inspect::Recording& recording,
                                                             const std::string& directory,
                                                             const model::LoadedModel& model) {
  CUTAWAY_SPAN(span, "api::Intervened::of_recording", "directory", directory);
  if (!recording.interventions) return std::unique_ptr<Intervened>();
  auto made = make({*recording.interventions, directory}, std::ssize(recording.prompt), model,
                   [](const inspect::TapEdit& edit, const std::string&,
                      const trace::TapName&) -> Result<inspect::PatchValues> {
                     return Error{ErrorCode::kInvalidFile,
                                  edit.field("from.run") +
                                      " is there; a recording keeps its patches in its own file",
                                  "recording"};
                   });
  if (!made.ok()) return made.error().within(directory + "/interventions.json");
  CUTAWAY_OUT(span, "edits", made->spec_.edits.size());
  return std::make_unique<Intervened>(std::move(*made));
}

Result<Intervened> Intervened::again() const {
  CUTAWAY_SPAN(span, "api::Intervened::again", "prompt", prompt_);
  CUTAWAY_ASSIGN(inspect::InterventionEditor editor,
                 inspect::InterventionEditor::bind(spec_, patches_, prompt_));
  CUTAWAY_OUT(span, "edits", spec_.edits.size());
  return Intervened(spec_, patches_, prompt_, std::move(editor));
}

std::vector<trace::Editor*> Intervened::editors() {
  CUTAWAY_SPAN(span, "api::Intervened::editors", "edits", spec_.edits.size());
  if (spec_.edits.empty()) return {};
  return {&editor_};
}

Json Intervened::report(int64_t steps, const text::Tokenizer& tokenizer) const {
  CUTAWAY_SPAN(span, "api::Intervened::report", "steps", steps);
  Json taps = Json::array(), force = Json::array(), ban = Json::array();
  for (size_t i = 0; i < spec_.edits.size(); ++i) {
    const inspect::TapEdit& edit = spec_.edits[i];
    taps.push_back({{"item", edit.item},
                    {"tap", trace::tap_name(edit.tap.site, edit.tap.layer)},
                    {"op", inspect::edit_op_name(edit.op)},
                    {"fired", editor_.fired()[i]}});
  }
  for (const auto& [step, id] : spec_.rules().forced) {
    force.push_back({{"step", step},
                     {"id", id},
                     {"piece", tokenizer.piece(id)},
                     {"fired", step < steps ? 1 : 0}});
  }
  const Json rules = inspect::token_rules_json(spec_);
  for (size_t i = 0; i < spec_.ban.size(); ++i) {
    Json one = rules.at("ban")[i];
    one["fired"] = steps_of(spec_.ban[i], steps);
    ban.push_back(std::move(one));
  }
  CUTAWAY_OUT(span, "taps", taps.size());
  return {{"taps", std::move(taps)}, {"force", std::move(force)}, {"ban", std::move(ban)}};
}

std::vector<std::string> Intervened::warnings(int64_t steps) const {
  CUTAWAY_SPAN(span, "api::Intervened::warnings", "steps", steps);
  std::vector<std::string> out;
  for (size_t i = 0; i < spec_.edits.size(); ++i) {
    if (editor_.fired()[i] > 0) continue;
    const inspect::TapEdit& edit = spec_.edits[i];
    out.push_back(fmt::format("interventions[{}] changed nothing: {} came to none of its positions",
                              edit.item, trace::tap_name(edit.tap.site, edit.tap.layer)));
  }
  for (size_t i = 0; i < spec_.force.size(); ++i) {
    if (spec_.force[i].step + std::ssize(spec_.force[i].ids) <= steps) continue;
    out.push_back(
        fmt::format("tokens.force[{}] was not reached: the answer has {} tokens", i, steps));
  }
  for (size_t i = 0; i < spec_.ban.size(); ++i) {
    if (steps_of(spec_.ban[i], steps) > 0) continue;
    out.push_back(
        fmt::format("tokens.ban[{}] was not reached: the answer has {} tokens", i, steps));
  }
  CUTAWAY_OUT(span, "n", out.size());
  return out;
}

Status Intervened::keep(inspect::Recording& recording,
                        const inspect::RecordingWriter& writer) const {
  CUTAWAY_SPAN(span, "api::Intervened::keep", "edits", spec_.edits.size());
  const std::filesystem::path path = writer.patches_path();
  CUTAWAY_TRY(inspect::write_patches(spec_, patches_, path.string()));
  recording.interventions = inspect::recorded_spec(spec_, patches_, path.filename().string());
  CUTAWAY_OUT(span, "path", path.string());
  return {};
}

}  // namespace api

Result<Interventions> parse_interventions(const std::string& text) {
  auto json = parse_written_json(text);
  if (json.ok()) return Interventions{std::move(*json), ""};
  return Error{ErrorCode::kInvalidFile, "the specification is no JSON: " + json.error().message,
               "intervene"};
}

Result<Interventions> read_interventions(const std::string& path) {
  constexpr uint64_t kMost = uint64_t{256} << 20;
  auto opened = InputFile::open(path);
  if (!opened.ok()) return Error{opened.error().code, opened.error().message, "intervene"};
  const InputFile& file = *opened;
  if (file.size() > kMost) {
    return Error{ErrorCode::kTooLarge,
                 fmt::format("{} has {} bytes; a specification has at most {}, larger values come "
                             "from safetensors files",
                             path, file.size(), kMost),
                 "intervene"};
  }
  std::string text(file.size(), '\0');
  CUTAWAY_TRY(file.read(0, {reinterpret_cast<uint8_t*>(text.data()), text.size()}));
  auto json = parse_written_json(text);
  if (!json.ok()) {
    return Error{ErrorCode::kInvalidFile, path + " is no JSON: " + json.error().message,
                 "intervene"};
  }
  return Interventions{std::move(*json), std::filesystem::path(path).parent_path().string()};
}

}  // namespace cutaway
