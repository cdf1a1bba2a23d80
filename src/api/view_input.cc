#include "api/view_input.h"

#include <fmt/format.h>

#include <algorithm>

namespace cutaway::api {

Result<std::vector<int32_t>> view_tokens(const ViewText& input, const model::LoadedModel& model,
                                         const ResolvedSession& session) {
  CUTAWAY_SPAN(span, "api::view_tokens", "given", input.tokens.has_value());
  if (input.text.has_value() == input.tokens.has_value()) {
    return Error{ErrorCode::kInvalidArgument, "exactly one of text and tokens must be given",
                 "text"};
  }
  std::vector<int32_t> tokens;
  if (input.tokens) {
    tokens = *input.tokens;
    const int64_t vocab = model.tokenizer()->vocab_size();
    for (const int32_t id : tokens) {
      if (id >= 0 && id < vocab) continue;
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("token id {} is outside the vocabulary (0 to {})", id, vocab - 1),
                   "tokens"};
    }
  } else {
    CUTAWAY_ASSIGN(tokens, model.tokenizer()->encode_ids(*input.text, input.parse_special, true));
  }
  if (tokens.empty()) {
    return Error{ErrorCode::kInvalidArgument, "the text is empty (0 tokens)", "text"};
  }
  if (static_cast<int64_t>(tokens.size()) > session.context) {
    return Error{
        ErrorCode::kTooLarge,
        fmt::format("the text has {} tokens; the context holds {}", tokens.size(), session.context),
        "text"};
  }
  CUTAWAY_OUT(span, "tokens", tokens);
  return tokens;
}

ViewRun::ViewRun(const model::LoadedModel& model, Engine::Impl& engine,
                 const ResolvedSession& session, int64_t tokens)
    : pages(kv_geometry(model, session.cache_type), kv::Geometry::pages_for(tokens)),
      runner(model, *engine.selection.table, *engine.pool, session.precise) {
  runner.set_context(session.context);
}

Result<std::unique_ptr<ViewRun>> ViewRun::create(const model::LoadedModel& model,
                                                 Engine::Impl& engine,
                                                 const ResolvedSession& session, int64_t tokens) {
  CUTAWAY_SPAN(span, "api::ViewRun::create", "tokens", tokens);
  CUTAWAY_TRY(check_memory(kv_geometry(model, session.cache_type), kv::Geometry::pages_for(tokens),
                           fmt::format("a text of {} tokens", tokens), "text"));
  return std::make_unique<ViewRun>(model, engine, session, tokens);
}

Status ViewRun::intervene(const std::optional<ViewInterventions>& wanted, int64_t tokens,
                          const model::LoadedModel& model, Engine::Impl& engine) {
  CUTAWAY_SPAN(span, "api::ViewRun::intervene", "wanted", wanted.has_value());
  if (!wanted) return {};
  const int64_t prompt = wanted->prompt.value_or(tokens);
  if (prompt < 1 || prompt > tokens) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("prompt is {}, must be 1 to {}, the text's tokens", prompt, tokens),
                 "prompt"};
  }
  CUTAWAY_ASSIGN(intervened, Intervened::prepare(wanted->what, prompt, model, engine));
  if (!intervened->rules().empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "tokens.force and tokens.ban have no effect: a view chooses no token", "tokens"};
  }
  runner.set_editors(intervened->editors());
  CUTAWAY_OUT(span, "prompt", prompt);
  return {};
}

void ViewRun::report(const text::Tokenizer& tokenizer, Json& view) const {
  CUTAWAY_SPAN(span, "api::ViewRun::report", "intervened", intervened.has_value());
  if (!intervened) return;
  view["interventions"] = intervened->report(0, tokenizer);
  for (const std::string& warning : intervened->warnings(0)) view["warnings"].push_back(warning);
}

Json token_json(const text::Tokenizer& tokenizer, int32_t id) {
  CUTAWAY_SPAN(span, "api::token_json", "id", id);
  return {{"id", id},
          {"piece", tokenizer.piece(id)},
          {"bytes", byte_array(tokenizer.token_bytes(id, true))},
          {"special", tokenizer.token_type(id) == text::TokenType::kControl}};
}

std::string base64(const void* data, size_t bytes) {
  CUTAWAY_SPAN(span, "api::base64", "bytes", bytes);
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto* in = static_cast<const uint8_t*>(data);
  std::string out;
  out.reserve((bytes + 2) / 3 * 4);
  for (size_t i = 0; i < bytes; i += 3) {
    const size_t n = std::min<size_t>(3, bytes - i);
    const uint32_t word = uint32_t{in[i]} << 16 | (n > 1 ? uint32_t{in[i + 1]} << 8 : 0) |
                          (n > 2 ? uint32_t{in[i + 2]} : 0);
    for (size_t digit = 0; digit < 4; ++digit) {
      out += digit <= n ? kDigits[word >> (18 - 6 * digit) & 63] : '=';
    }
  }
  return out;
}

Result<std::vector<int>> choose_indices(const std::string& what, const std::string& given,
                                        int64_t count, const char* word) {
  CUTAWAY_SPAN(span, "api::choose_indices", "what", what, "given", given);
  CUTAWAY_ASSIGN(const trace::IndexSet set,
                 trace::IndexSet::parse_text(given, what, {nullptr, word, count}));
  if (set.word_twice()) {
    return Error{ErrorCode::kInvalidArgument, fmt::format("{} has {} twice", what, word), what};
  }
  std::vector<int> out;
  if (set.has_word() || (word != nullptr && set.all())) out.push_back(-1);
  if (!set.has_word() || set.has_indices()) {
    CUTAWAY_ASSIGN(const std::vector<int64_t> indices, set.indices(count, what, what));
    out.insert(out.end(), indices.begin(), indices.end());
  }
  std::sort(out.begin(), out.end());
  CUTAWAY_OUT(span, "n", out.size());
  return out;
}

}  // namespace cutaway::api
