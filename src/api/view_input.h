// What the views of a text share: which tokens, whether they fit, and what computes them.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "api/impl.h"
#include "api/intervene.h"
#include "cutaway/views.h"

namespace cutaway::api {

// A text's ids, or the given ones, checked: at least one, all of the vocabulary, within the
// context. Errors name the field.
struct ViewText {
  const std::optional<std::string>& text;
  const std::optional<std::vector<int32_t>>& tokens;
  bool parse_special;
};
Result<std::vector<int32_t>> view_tokens(const ViewText& input, const model::LoadedModel& model,
                                         const ResolvedSession& session);

// A runner and pages of its own for one view. `tokens` is how many positions are computed. Error
// kTooLarge when the available memory cannot hold their keys and values.
class ViewRun {
 public:
  static Result<std::unique_ptr<ViewRun>> create(const model::LoadedModel& model,
                                                 Engine::Impl& engine,
                                                 const ResolvedSession& session, int64_t tokens);
  ViewRun(const model::LoadedModel& model, Engine::Impl& engine, const ResolvedSession& session,
          int64_t tokens);

  // Lets the runner do what a request changes, if anything. Errors: those of Intervened::prepare;
  // kInvalidArgument when it forces or bans tokens.
  Status intervene(const std::optional<ViewInterventions>& wanted, int64_t tokens,
                   const model::LoadedModel& model, Engine::Impl& engine);
  // Into a view: "interventions", and a warning for what changed nothing.
  void report(const text::Tokenizer& tokenizer, Json& view) const;

  kv::PagePool pages;
  inference::Runner runner;
  std::optional<Intervened> intervened;
};

// {"id","piece","bytes","special"} of one token.
Json token_json(const text::Tokenizer& tokenizer, int32_t id);
// The shortest decimal number that reads back as this float: what JSON should have of one.
inline double shortest(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value);
  double out = 0;
  std::from_chars(text, end.ptr, out);
  return out;
}
// Rounded to six significant digits.
inline double six_digits(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::general, 6);
  double out = 0;
  std::from_chars(text, end.ptr, out);
  return out;
}
// RFC 4648, with padding.
std::string base64(const void* data, size_t bytes);

// The layers or heads (`what`) that `given` names of `count`, in the form of trace/index_set.h,
// ascending; empty: all. `word`, where there is one, stands for −1. Errors kInvalidArgument: those
// of IndexSet.
Result<std::vector<int>> choose_indices(const std::string& what, const std::string& given,
                                        int64_t count, const char* word = nullptr);

}  // namespace cutaway::api
