#include "inspect/intervention_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/suggest.h"
#include "trace/trace.h"

namespace cutaway::inspect {
namespace {

using trace::IndexSet;
using trace::Site;

// What negative positions count from.
constexpr trace::IndexRules kPositions{"the prompt's end"};
constexpr trace::IndexRules kPlain{};

Error wrong(const std::string& field, const std::string& what) {
  return {ErrorCode::kInvalidArgument, field + " " + what, field};
}

// Error when an object has a member that nobody reads.
Status check_members(const Json& json, const std::string& field,
                     const std::vector<std::string>& known) {
  if (!json.is_object()) return wrong(field, "is " + to_text(json) + "; it takes an object");
  for (const auto& [name, value] : json.items()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string nearest = nearest_word(name, known);
    std::string all;
    for (const std::string& word : known) all += (all.empty() ? "" : ", ") + word;
    return wrong(field, "has \"" + name + "\"" +
                            (nearest.empty() ? "; it may have: " + all
                                             : "; did you mean \"" + nearest + "\"?"));
  }
  return {};
}

Json member(const Json& json, const char* name) {
  const auto it = json.find(name);
  return it == json.end() ? Json() : *it;
}

Result<float> finite(const Json& json, const std::string& field) {
  const double value = json.is_number() ? json.get<double>() : NAN;
  if (!(std::fabs(value) <= static_cast<double>(std::numeric_limits<float>::max()))) {
    return wrong(field, "is " + to_text(json) + "; it takes a finite number");
  }
  return static_cast<float>(value);
}

// `n` numbers from a list of so many.
Status read_list(const Json& json, const std::string& field, size_t n, const std::string& of,
                 std::vector<float>& out) {
  if (json.size() != n) {
    return wrong(field, fmt::format("has {} numbers; {} has {}", json.size(), of, n));
  }
  for (size_t i = 0; i < n; ++i) {
    CUTAWAY_ASSIGN(const float value, finite(json[i], fmt::format("{}[{}]", field, i)));
    out.push_back(value);
  }
  return {};
}

// "value": a number; a list, for each feature; {"per_head": […]} of these.
Status read_value(const Json& json, TapEdit& edit) {
  const std::string field = edit.field("value");
  const std::string name = trace::tap_name(edit.tap.site, edit.tap.layer);
  const size_t groups = edit.groups.size();
  const size_t width =
      edit.features.empty() ? static_cast<size_t>(edit.layout.width) : edit.features.size();
  const std::string of = edit.features.empty()
                             ? "a row of " + name + (edit.layout.heads() ? ", a head's," : "")
                             : "\"features\"";
  const auto is_list = [&](const Json& value) { return value.is_array(); };
  if (json.is_object()) {
    CUTAWAY_TRY(check_members(json, field, {"per_head"}));
    const Json list = member(json, "per_head");
    if (!edit.layout.heads()) return wrong(field, "is per_head; " + name + " has no heads");
    if (!list.is_array() || list.size() != groups) {
      return wrong(field + ".per_head",
                   fmt::format("is {}; it takes a list of {}, one for each head{}", to_text(list),
                               groups, edit.source.contains("heads") ? " of \"heads\"" : ""));
    }
    edit.value_each = std::any_of(list.begin(), list.end(), is_list);
    if (edit.value_each && edit.layout.map) {
      return wrong(field, "has lists; at " + name + " each head takes one number");
    }
    for (size_t g = 0; g < groups; ++g) {
      const std::string at = fmt::format("{}.per_head[{}]", field, g);
      if (is_list(list[g])) {
        CUTAWAY_TRY(read_list(list[g], at, width, of, edit.values));
      } else {
        CUTAWAY_ASSIGN(const float value, finite(list[g], at));
        edit.values.insert(edit.values.end(), edit.value_each ? width : 1, value);
      }
    }
    return {};
  }
  if (!json.is_array()) {
    CUTAWAY_ASSIGN(const float value, finite(json, field));
    edit.values.assign(groups, value);
    return {};
  }
  if (edit.layout.map) {
    return wrong(field, "is a list; at " + name + " it takes a number, or {\"per_head\": […]}");
  }
  std::vector<float> row;
  CUTAWAY_TRY(read_list(json, field, width, of, row));
  edit.value_each = true;
  for (size_t g = 0; g < groups; ++g) edit.values.insert(edit.values.end(), row.begin(), row.end());
  return {};
}

Result<std::string> text_member(const Json& json, const char* name, const std::string& field) {
  const Json value = member(json, name);
  if (value.is_null()) return std::string();
  const std::string at = field + "." + name;
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    return wrong(at, "is " + to_text(value) + "; it takes a text");
  }
  return value.get<std::string>();
}

Result<PatchOrigin> read_origin(const Json& json, const std::string& field,
                                const trace::TapDomain& domain) {
  CUTAWAY_TRY(check_members(json, field, {"file", "tensor", "run", "tap", "positions"}));
  PatchOrigin out;
  CUTAWAY_ASSIGN(out.file, text_member(json, "file", field));
  CUTAWAY_ASSIGN(out.run, text_member(json, "run", field));
  if (out.file.empty() == out.run.empty()) {
    return wrong(field, "needs one of \"file\" (with \"tensor\") and \"run\" (with \"tap\")");
  }
  const char* const other = out.file.empty() ? "tensor" : "tap";
  if (json.contains(other)) {
    return wrong(field + "." + other, std::string("goes with \"") +
                                          (out.file.empty() ? "file" : "run") +
                                          "\", which is not there");
  }
  CUTAWAY_ASSIGN(out.tensor, text_member(json, out.file.empty() ? "tap" : "tensor", field));
  if (!out.run.empty() && !out.tensor.empty()) {
    CUTAWAY_ASSIGN(const auto taps, trace::match_taps({out.tensor}, {}, domain,
                                                      {field + ".tap", field + ".layers"}));
    if (taps.size() != 1) {
      return wrong(field + ".tap", fmt::format("is {}, which is {} taps; it takes one",
                                               to_text(json.at("tap")), taps.size()));
    }
    out.tensor = trace::tap_name(taps.front().site, taps.front().layer);
  }
  CUTAWAY_ASSIGN(out.positions, IndexSet::parse(member(json, "positions"), field + ".positions",
                                                {"the end of the source's prompt"}));
  return out;
}

Status check_site(const TapEdit& edit, const std::string& written) {
  const std::string name = trace::tap_name(edit.tap.site, edit.tap.layer);
  if (edit.tap.site == Site::kTokens) {
    return Error{
        ErrorCode::kUnsupported,
        edit.field("tap") + " is " + written +
            ", the token ids, which cannot be changed; hook_embed can, what they stand for",
        edit.field("tap")};
  }
  if (edit.tap.site == Site::kExpertIndices) {
    return Error{ErrorCode::kUnsupported,
                 edit.field("tap") + " is " + written + ", which follows from the router; " +
                     trace::tap_name(Site::kRouterLogits, edit.tap.layer) +
                     " can be changed, and the experts with it",
                 edit.field("tap")};
  }
  return {};
}

// "tap" and "layers".
Result<std::vector<trace::TapName>> read_taps(const TapEdit& edit, const trace::TapDomain& domain) {
  const std::string field = edit.field("tap");
  const Json json = member(edit.source, "tap");
  const Json list = json.is_array() ? json : Json::array({json});
  if (json.is_null()) {
    return wrong(field, "is missing; it names a tap, like \"blocks.3.attn.hook_z\"");
  }
  std::vector<std::string> names;
  for (const Json& name : list) {
    if (!name.is_string()) {
      return wrong(field, "is " + to_text(json) + "; it takes a tap's name, or a list of these");
    }
    names.push_back(name.get<std::string>());
  }
  if (names.empty()) return wrong(field, "is empty; it names at least one tap");
  CUTAWAY_ASSIGN(const IndexSet layers,
                 IndexSet::parse(member(edit.source, "layers"), edit.field("layers"),
                                 {nullptr, nullptr, domain.n_layers}));
  CUTAWAY_ASSIGN(auto out, trace::match_taps(names, layers, domain, {field, edit.field("layers")}));
  if (out.empty()) {
    return wrong(edit.field("layers"), "leaves nothing of \"tap\", which is " + to_text(json));
  }
  return out;
}

// The fields that depend on the tap.
Result<TapEdit> read_tap_edit(TapEdit edit, const arch::ModelShape& shape) {
  const std::string name = trace::tap_name(edit.tap.site, edit.tap.layer);
  CUTAWAY_TRY(check_site(edit, name));
  edit.layout = tap_layout(edit.tap.site, shape).value_or(TapLayout{});
  const Json& item = edit.source;
  CUTAWAY_ASSIGN(const IndexSet heads,
                 IndexSet::parse(member(item, "heads"), edit.field("heads"), kPlain));
  if (!heads.all() && !edit.layout.heads()) {
    return wrong(edit.field("heads"), "is there; " + name + " has no heads");
  }
  CUTAWAY_ASSIGN(
      edit.groups,
      heads.indices(edit.layout.groups, edit.field("heads"),
                    edit.layout.of == TapLayout::Groups::kKvHeads ? "KV heads" : "heads"));
  CUTAWAY_ASSIGN(const IndexSet features,
                 IndexSet::parse(member(item, "features"), edit.field("features"), kPlain));
  if (!features.all()) {
    if (edit.layout.map) {
      return wrong(edit.field("features"), "is there; " + name + " has \"keys\" instead");
    }
    CUTAWAY_ASSIGN(edit.features,
                   features.indices(edit.layout.width, edit.field("features"), "features"));
  }
  CUTAWAY_ASSIGN(edit.keys, IndexSet::parse(member(item, "keys"), edit.field("keys"), kPositions));
  if (!edit.keys.all() && !edit.layout.map) {
    return wrong(edit.field("keys"),
                 "is there; " + name + " has no keys, as hook_attn_scores and hook_pattern have");
  }
  if (edit.from) {
    const Json by = member(item, "value");
    CUTAWAY_ASSIGN(const float factor, finite(by.is_null() ? Json(1) : by, edit.field("value")));
    edit.values.assign(1, factor);
  } else if (edit.op == EditOp::kZero) {
    edit.values.assign(edit.groups.size(), 0);
  } else {
    CUTAWAY_TRY(read_value(item.at("value"), edit));
  }
  return edit;
}

// "op", and that "value" and "from" are there when it needs them.
Status read_op(const Json& item, TapEdit& edit) {
  const Json op = member(item, "op");
  const auto* const known = std::find_if(std::begin(kEditOpNames), std::end(kEditOpNames),
                                         [&](const char* name) { return op == name; });
  if (known == std::end(kEditOpNames)) {
    return wrong(edit.field("op"), (op.is_null() ? "is missing" : "is " + to_text(op)) +
                                       "; it takes zero, scale, add, replace or patch");
  }
  edit.op = static_cast<EditOp>(known - std::begin(kEditOpNames));
  const std::string name = *known;
  const bool from = item.contains("from"), value = item.contains("value");
  if (from && edit.op != EditOp::kPatch && edit.op != EditOp::kAdd) {
    return wrong(edit.field("from"), "has no effect with " + name + "; patch and add take it");
  }
  if (!from && edit.op == EditOp::kPatch) {
    return wrong(edit.field("from"), "is missing; patch needs it");
  }
  const bool takes_value = edit.op != EditOp::kZero && edit.op != EditOp::kPatch;
  if (value && !takes_value) return wrong(edit.field("value"), "has no effect with " + name);
  if (!value && takes_value && !from) {
    return wrong(edit.field("value"), "is missing; " + name + " needs it");
  }
  return {};
}

Status read_item(const Json& item, size_t index, const arch::ModelShape& shape,
                 const trace::TapDomain& domain, InterventionSpec& out) {
  TapEdit edit;
  edit.item = index;
  edit.source = item;
  const std::string whole = fmt::format("interventions[{}]", index);
  CUTAWAY_TRY(check_members(
      item, whole,
      {"tap", "layers", "op", "value", "from", "heads", "features", "keys", "positions", "steps"}));
  CUTAWAY_ASSIGN(const auto taps, read_taps(edit, domain));
  CUTAWAY_TRY(read_op(item, edit));
  CUTAWAY_ASSIGN(edit.positions,
                 IndexSet::parse(member(item, "positions"), edit.field("positions"), kPositions));
  CUTAWAY_ASSIGN(edit.steps,
                 IndexSet::parse(member(item, "steps"), edit.field("steps"), {nullptr, "prompt"}));
  if (item.contains("from")) {
    CUTAWAY_ASSIGN(edit.from, read_origin(item.at("from"), edit.field("from"), domain));
  }
  for (const trace::TapName& tap : taps) {
    TapEdit one = edit;
    one.tap = tap;
    CUTAWAY_ASSIGN(one, read_tap_edit(std::move(one), shape));
    out.edits.push_back(std::move(one));
  }
  return {};
}

// "id" or "text" of a token; a text may be several.
Result<std::vector<int32_t>> read_tokens(const Json& id, const Json& text, const std::string& field,
                                         const text::Tokenizer& tokenizer) {
  if (id.is_null() == text.is_null()) {
    return wrong(field, "needs one of an id and a text");
  }
  if (!id.is_null()) {
    const int64_t last = tokenizer.vocab_size() - 1;
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > last) {
      return wrong(field, fmt::format("has the id {}; ids are 0 to {}", to_text(id), last));
    }
    return std::vector<int32_t>{id.get<int32_t>()};
  }
  if (!text.is_string() || text.get_ref<const std::string&>().empty()) {
    return wrong(field, "has the text " + to_text(text) + "; it takes at least one character");
  }
  auto ids = tokenizer.encode_ids(text.get_ref<const std::string&>(), true, false);
  if (!ids.ok()) return ids.error().within(field);
  return ids;
}

Status read_force(const Json& list, const text::Tokenizer& tokenizer, InterventionSpec& out) {
  constexpr int64_t kLastStep = INT32_MAX;
  if (!list.is_null() && !list.is_array()) return wrong("tokens.force", "takes a list");
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string field = fmt::format("tokens.force[{}]", i);
    CUTAWAY_TRY(check_members(list[i], field, {"step", "id", "text"}));
    const Json step = member(list[i], "step");
    if (!step.is_number_integer() || step.get<int64_t>() < 0 || step.get<int64_t>() > kLastStep) {
      return wrong(field + ".step", (step.is_null() ? "is missing" : "is " + to_text(step)) +
                                        "; it takes a step of the answer, from 0");
    }
    ForcedTokens forced;
    forced.step = step.get<int64_t>();
    CUTAWAY_ASSIGN(forced.ids,
                   read_tokens(member(list[i], "id"), member(list[i], "text"), field, tokenizer));
    if (std::ssize(forced.ids) - 1 > kLastStep - forced.step) {
      return wrong(field, fmt::format("forces {} tokens from step {} on; the last step is {}",
                                      forced.ids.size(), forced.step, kLastStep));
    }
    for (const ForcedTokens& other : out.force) {
      const auto end = [](const ForcedTokens& f) { return f.step + std::ssize(f.ids); };
      if (forced.step < end(other) && other.step < end(forced)) {
        return wrong(field, fmt::format("forces step {}, which another of tokens.force does",
                                        std::max(forced.step, other.step)));
      }
    }
    out.force.push_back(std::move(forced));
  }
  return {};
}

Status read_ban(const Json& list, const text::Tokenizer& tokenizer, InterventionSpec& out) {
  if (!list.is_null() && !list.is_array()) return wrong("tokens.ban", "takes a list");
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string field = fmt::format("tokens.ban[{}]", i);
    CUTAWAY_TRY(check_members(list[i], field, {"ids", "texts", "steps"}));
    sampling::TokenRules::Ban ban;
    for (const char* kind : {"ids", "texts"}) {
      const Json values = member(list[i], kind);
      if (!values.is_null() && !values.is_array()) return wrong(field + "." + kind, "takes a list");
      for (size_t j = 0; j < values.size(); ++j) {
        const std::string at = fmt::format("{}.{}[{}]", field, kind, j);
        const bool id = std::string(kind) == "ids";
        CUTAWAY_ASSIGN(const auto ids, read_tokens(id ? values[j] : Json(), id ? Json() : values[j],
                                                   at, tokenizer));
        if (ids.size() != 1) {
          return wrong(at, fmt::format("is {}, which is {} tokens; one token can be banned, by its "
                                       "text or its id",
                                       to_text(values[j]), ids.size()));
        }
        ban.ids.push_back(ids.front());
      }
    }
    if (ban.ids.empty()) return wrong(field, "names no token; it takes \"ids\" or \"texts\"");
    CUTAWAY_ASSIGN(const IndexSet steps,
                   IndexSet::parse(member(list[i], "steps"), field + ".steps", kPlain));
    for (const trace::IndexRange& range : steps.resolve(0))
      ban.steps.push_back({range.begin, range.end});
    out.ban.push_back(std::move(ban));
  }
  for (const auto& [step, id] : out.rules().forced) {
    for (const auto& ban : out.ban) {
      if (ban.holds(step) && std::find(ban.ids.begin(), ban.ids.end(), id) != ban.ids.end()) {
        return wrong("tokens",
                     fmt::format("forces token {} at step {} and bans it there", id, step));
      }
    }
  }
  return {};
}

}  // namespace

sampling::TokenRules InterventionSpec::rules() const {
  CUTAWAY_SPAN(span, "inspect::InterventionSpec::rules", "force", force.size(), "ban", ban.size());
  sampling::TokenRules out;
  for (const ForcedTokens& forced : force) {
    int64_t step = forced.step;
    for (const int32_t id : forced.ids) out.forced[step++] = id;
  }
  out.bans = ban;
  CUTAWAY_OUT(span, "forced", out.forced.size());
  return out;
}

Result<InterventionSpec> parse_interventions(const Json& json, const arch::ModelShape& shape,
                                             const text::Tokenizer& tokenizer) {
  CUTAWAY_SPAN(span, "inspect::parse_interventions", "layers", shape.n_layers);
  InterventionSpec out;
  CUTAWAY_TRY(check_members(json, "the specification", {"interventions", "tokens"}));
  const Json items = member(json, "interventions");
  if (!items.is_null() && !items.is_array()) return wrong("interventions", "takes a list");
  out.items = items.size();
  trace::TapDomain domain = tap_domain(shape);
  for (int i = 0; i < trace::kSiteCount; ++i) {
    domain.hidden[static_cast<size_t>(i)] = !trace::can_change(static_cast<Site>(i));
  }
  for (size_t i = 0; i < items.size(); ++i) CUTAWAY_TRY(read_item(items[i], i, shape, domain, out));
  const Json tokens = member(json, "tokens");
  if (!tokens.is_null()) {
    CUTAWAY_TRY(check_members(tokens, "tokens", {"force", "ban"}));
    CUTAWAY_TRY(read_force(member(tokens, "force"), tokenizer, out));
    CUTAWAY_TRY(read_ban(member(tokens, "ban"), tokenizer, out));
  }
  if (out.edits.empty() && out.force.empty() && out.ban.empty()) {
    return wrong("the specification", "changes nothing; it takes \"interventions\" or \"tokens\"");
  }
  CUTAWAY_OUT(span, "edits", out.edits.size(), "force", out.force.size(), "ban", out.ban.size());
  return out;
}

Json token_rules_json(const InterventionSpec& spec) {
  CUTAWAY_SPAN(span, "inspect::token_rules_json");
  Json force = Json::array(), ban = Json::array();
  for (const auto& [step, id] : spec.rules().forced) force.push_back({{"step", step}, {"id", id}});
  for (const auto& one : spec.ban) {
    Json steps = Json::array();
    for (const sampling::StepRange& range : one.steps) {
      steps.push_back(fmt::format("{}:{}", range.begin,
                                  range.end == INT64_MAX ? "" : std::to_string(range.end)));
    }
    ban.push_back({{"ids", one.ids}, {"steps", std::move(steps)}});
  }
  CUTAWAY_OUT(span, "force", force.size(), "ban", ban.size());
  return {{"force", std::move(force)}, {"ban", std::move(ban)}};
}

}  // namespace cutaway::inspect
