// Interventions behind the door: a specification made ready for one run, and what came of it.
#pragma once

#include "api/impl.h"
#include "inspect/interventions.h"
#include "inspect/recording.h"

namespace cutaway::api {

class Intervened {
 public:
  // Checks the specification against the model and a prompt of `prompt` tokens, and has the values
  // of its patches: read, or computed again from recordings. Errors: those of parse_interventions,
  // load_patches and InterventionEditor::bind; kInvalidArgument when a recording is another
  // model's.
  static Result<Intervened> prepare(const Interventions& interventions, int64_t prompt,
                                    const model::LoadedModel& model, Engine::Impl& engine);
  // What a recording keeps of its own: null, or its interventions ready to be done again.
  static Result<std::unique_ptr<Intervened>> of_recording(const inspect::Recording& recording,
                                                          const std::string& directory,
                                                          const model::LoadedModel& model);

  // The same, of which nothing has happened yet.
  Result<Intervened> again() const;
  // For Runner::set_editors: none when no tap is changed. Valid while this is and is not moved.
  std::vector<trace::Editor*> editors();
  sampling::TokenRules rules() const { return spec_.rules(); }

  // {"taps":[{"item","tap","op","fired"}],"force":[{"step","id","piece","fired"}],"ban":[{"ids",
  // "steps","fired"}]}: how many positions or steps each took effect at, in an answer of `steps`.
  Json report(int64_t steps, const text::Tokenizer& tokenizer) const;
  // Names what took no effect.
  std::vector<std::string> warnings(int64_t steps) const;

  // Puts the specification into the recording, and the patches' values beside it.
  Status keep(inspect::Recording& recording, const inspect::RecordingWriter& writer) const;

 private:
  Intervened(inspect::InterventionSpec spec, inspect::Patches patches, int64_t prompt,
             inspect::InterventionEditor editor)
      : spec_(std::move(spec)),
        patches_(std::move(patches)),
        prompt_(prompt),
        editor_(std::move(editor)) {}
  static Result<Intervened> make(const Interventions& interventions, int64_t prompt,
                                 const model::LoadedModel& model, const inspect::FromRun& from_run);

  inspect::InterventionSpec spec_;
  inspect::Patches patches_;
  int64_t prompt_;
  inspect::InterventionEditor editor_;
};

}  // namespace cutaway::api
