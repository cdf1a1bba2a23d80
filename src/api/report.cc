#include "cutaway/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "api/impl.h"
#include "base/utf8.h"
#include "cutaway/recording.h"
#include "inspect/recording.h"

namespace cutaway {
namespace {

// The names of tokens: those that the recording holds, and with a model all that are asked for.
class Pieces {
 public:
  explicit Pieces(Json recorded) : pieces_(std::move(recorded)) {
    if (!pieces_.is_object()) pieces_ = Json::object();
  }

  void add(const std::set<int32_t>& ids, const Model& model) {
    std::vector<int32_t> missing;
    for (const int32_t id : ids) {
      if (!pieces_.contains(std::to_string(id))) missing.push_back(id);
    }
    const auto tokens = model.describe(missing);
    if (!tokens.ok()) return;  // ids of no vocabulary stay numbers
    for (const Json& token : *tokens) {
      const std::string text = bytes_of(token.at("bytes"));
      pieces_[std::to_string(token.at("id").get<int32_t>())] =
          utf8_valid(text) ? Json(text) : token.at("bytes");
    }
  }

  // {"id","piece","bytes"}; without a name the id alone.
  Json token(int32_t id) const {
    const auto it = pieces_.find(std::to_string(id));
    if (it == pieces_.end()) return {{"id", id}};
    const std::string text = it->is_string() ? it->get<std::string>() : bytes_of(*it);
    return {{"id", id}, {"piece", utf8_replace_invalid(text)}, {"bytes", api::byte_array(text)}};
  }

  const Json& json() const { return pieces_; }

 private:
  // What is no list of bytes names nothing: a file can hold anything.
  static std::string bytes_of(const Json& bytes) {
    std::string out;
    if (!bytes.is_array()) return out;
    for (const Json& byte : bytes) {
      if (byte.is_number_integer()) out += static_cast<char>(byte.get<int64_t>());
    }
    return out;
  }

  Json pieces_;
};

// Every id that the ledgers name.
void collect_ids(const Json& ledger, std::set<int32_t>& out) {
  if (ledger.is_object()) {
    for (const auto& [key, value] : ledger.items()) {
      if (key == "id" && value.is_number_integer() && value.get<int64_t>() >= 0 &&
          value.get<int64_t>() <= INT32_MAX) {
        out.insert(value.get<int32_t>());
      } else {
        collect_ids(value, out);
      }
    }
  } else if (ledger.is_array()) {
    for (const Json& value : ledger) collect_ids(value, out);
  }
}

Json at_or_null(const Json& ledger, const char* object, const char* key) {
  const auto it = ledger.find(object);
  if (it == ledger.end() || !it->is_object() || !it->contains(key)) return nullptr;
  return it->at(key);
}

class Report {
 public:
  Report(const ReportRequest& request, Json recording)
      : request_(request),
        run_(std::move(recording)),
        pieces_(run_.value("pieces", Json::object())) {
    prompt_ = run_.at("prompt_tokens").get<std::vector<int32_t>>();
    choices_ = std::move(run_["tokens"]);
    for (const char* key : {"pieces", "prompt_tokens", "tokens"}) run_.erase(key);
    tokens_ = prompt_;
    for (const Json& choice : choices_) tokens_.push_back(choice.at("id").get<int32_t>());
  }

  // The proof, and both views; what the recording does not name.
  Status compute(const Model& model) {
    CUTAWAY_ASSIGN(replay_, replay(model, {.directory = request_.directory,
                                           .step = std::nullopt,
                                           .taps = {},
                                           .output = {},
                                           .cancelled = request_.cancelled}));
    std::set<int32_t> ids(tokens_.begin(), tokens_.end());
    for (int64_t i = 0; i < shown_choices(); ++i) {
      collect_ids(choices_[static_cast<size_t>(i)].at("ledger"), ids);
    }
    pieces_.add(ids, model);
    if (tokens_.empty()) return {};
    CUTAWAY_TRY(read_changes());
    CUTAWAY_ASSIGN(const SessionOptions session, session_options());
    CUTAWAY_TRY(add_lens(model, session));
    return add_attention(model, session);
  }

  // What the recording has of the run's own trace.
  Status read_trace() {
    if (!run_.value("has_trace", false)) return {};
    CUTAWAY_ASSIGN(inspect::RecordedTrace trace,
                   inspect::read_trace(request_.directory, request_.limits.trace_lines));
    if (std::ssize(trace.lines) < trace.count) {
      left_out_.push_back({{"what", "trace lines"},
                           {"shown", trace.lines.size()},
                           {"of", trace.count},
                           {"how", request_.directory + "/trace.jsonl"}});
    }
    trace_ = std::move(trace.lines);
    return {};
  }

  Json document() const {
    Json prompt = Json::array(), answer = Json::array();
    for (const int32_t id : prompt_) prompt.push_back(pieces_.token(id));
    for (size_t step = 0; step < choices_.size(); ++step) answer.push_back(choice_json(step));
    Json left_out = left_out_;
    const auto n = static_cast<int64_t>(choices_.size());
    if (shown_choices() < n) {
      left_out.push_back({{"what", "ledgers"},
                          {"shown", shown_choices()},
                          {"of", n},
                          {"how", "cutaway replay " + request_.directory + " --step N"}});
    }
    return {{"view", "report"},
            {"recording", request_.directory},
            {"cutaway", version()},
            {"run", run_},
            {"prompt", std::move(prompt)},
            {"answer", std::move(answer)},
            {"pieces", pieces_.json()},
            {"replay", replay_},
            {"lens", lens_},
            {"attention", attention_},
            {"trace", trace_},
            {"without_model", replay_.is_null() ? Json(request_.without_model) : Json(nullptr)},
            {"left_out", std::move(left_out)},
            {"warnings", Json::array()}};
  }

 private:
  int64_t shown_choices() const {
    return std::min(static_cast<int64_t>(choices_.size()), request_.limits.choices);
  }

  // What the run changed inside itself, for the views to change as well.
  Status read_changes() {
    const auto changed = run_.find("interventions");
    if (changed == run_.end() || changed->is_null()) return {};
    CUTAWAY_ASSIGN(Interventions what,
                   read_interventions(request_.directory + "/interventions.json"));
    what.specification.erase("tokens");  // the tokens are there
    const auto items = what.specification.find("interventions");
    if (items == what.specification.end() || items->empty()) return {};
    changes_ = {std::move(what), std::ssize(prompt_)};
    return {};
  }

  Result<SessionOptions> session_options() const {
    const Json& session = run_.at("session");
    SessionOptions out;
    out.context = session.value("context", int64_t{0});
    out.precise = session.value("precise", false);
    out.prefill_chunk = session.value("prefill_chunk", int64_t{512});
    CUTAWAY_ASSIGN(out.cache_type, parse_cache_type(session.value("cache_type", "f16")));
    return out;
  }

  Json choice_json(size_t step) const {
    const Json& choice = choices_[step];
    const Json& ledger = choice.at("ledger");
    Json token = pieces_.token(choice.at("id").get<int32_t>());
    if (!token.contains("piece")) token["piece"] = choice.at("piece");
    return {{"step", step},
            {"position", prompt_.size() + step},
            {"token", std::move(token)},
            {"ms", choice.at("ms")},
            {"logits_xxh3", choice.at("logits_xxh3")},
            {"prob", at_or_null(ledger, "chosen", "raw_prob")},
            {"entropy", at_or_null(ledger, "raw", "entropy")},
            {"ledger", static_cast<int64_t>(step) < shown_choices() ? ledger : Json(nullptr)}};
  }

  std::string by_command(const char* command) const {
    return std::string("cutaway ") + command +
           " --tokens ID,… (prompt_tokens and tokens of run.json)";
  }

  Status add_lens(const Model& model, const SessionOptions& session) {
    const auto n = static_cast<int64_t>(tokens_.size());
    LensRequest lens;
    lens.tokens = tokens_;
    lens.last = std::max<int64_t>(1, std::min(n, request_.limits.lens_positions));
    lens.interventions = changes_;
    lens.cancelled = request_.cancelled;
    CUTAWAY_ASSIGN(lens_, model.lens(lens, session));
    if (*lens.last < n) {
      left_out_.push_back({{"what", "lens positions"},
                           {"shown", *lens.last},
                           {"of", n},
                           {"how", by_command("lens")}});
    }
    return {};
  }

  // All layers when their matrices fit, else as many as do, at equal distances.
  Status add_attention(const Model& model, const SessionOptions& session) {
    const auto n = static_cast<int64_t>(tokens_.size());
    const int64_t layers = run_.at("layers").get<int64_t>();
    const Json info = model.info(false);
    const int64_t each = (n * (n + 1) + 2) / 3 * 4 * info.at("heads").get<int64_t>();
    const int64_t fit = std::min(layers, request_.limits.pattern_bytes / each);
    if (fit < layers) {
      left_out_.push_back({{"what", "attention layers"},
                           {"shown", fit},
                           {"of", layers},
                           {"how", by_command("attention")}});
    }
    if (fit == 0) return {};
    AttentionRequest attention;
    attention.tokens = tokens_;
    for (int64_t i = 0; i < fit; ++i) {
      const int64_t layer = fit == 1 ? layers - 1 : i * (layers - 1) / (fit - 1);
      attention.layers += (i == 0 ? "" : ",") + std::to_string(layer);
    }
    attention.most_pattern_bytes = request_.limits.pattern_bytes;
    attention.interventions = changes_;
    attention.cancelled = request_.cancelled;
    CUTAWAY_ASSIGN(attention_, model.attention(attention, session));
    return {};
  }

  const ReportRequest& request_;
  Json run_, choices_;
  Pieces pieces_;
  std::vector<int32_t> prompt_, tokens_;
  std::optional<ViewInterventions> changes_;
  Json replay_ = nullptr, lens_ = nullptr, attention_ = nullptr, trace_ = nullptr,
       left_out_ = Json::array();
};

}  // namespace

Result<Json> report(const ReportRequest& request, const Model* model) {
  CUTAWAY_SPAN(span, "api::report", "directory", request.directory, "model", model != nullptr);
  CUTAWAY_ASSIGN(Json recording, read_recording(request.directory));
  Report made(request, std::move(recording));
  CUTAWAY_TRY(made.read_trace());
  if (model != nullptr) CUTAWAY_TRY(made.compute(*model));
  Json out = made.document();
  CUTAWAY_OUT(span, "answer", out.at("answer").size());
  return out;
}

}  // namespace cutaway
