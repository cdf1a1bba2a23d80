#include "text/chat/chat_template.h"

#include <algorithm>
#include <set>

#include "base/clock.h"
#include "base/rust_bridge.h"
#include "base/utf8.h"
#include "text/chat/spellings.h"
#include "text/chat/taint.h"
#include "trace/trace.h"

namespace cutaway::text {
namespace {

// How much of a leaf is hidden from the template's logic, from most to least. Each weaker plan is
// for templates that look into what they are given ("'</think>' in content").
struct Plan {
  enum Kind {
    kAll,             // every character
    kAllButLiterals,  // but occurrences of the template's own string literals
    kDangers,         // only what could become a control token
    kBrokenDangers,   // as much of each of them as the template's literals leave, at least one
    kDangersBut,  // what could become a control token, but for what the template's logic handles
    kNothing,
  } kind = kNothing;
  std::vector<std::string> spared = {};  // kDangersBut
};

// Renderings that one call may take to find out which leaves the template looks into.
constexpr int kMaxRenderings = 200;

bool overlaps(const TextRange& a, const std::vector<TextRange>& ranges) {
  const auto it = std::partition_point(ranges.begin(), ranges.end(),
                                       [&](const TextRange& r) { return r.end <= a.begin; });
  return it != ranges.end() && it->begin < a.end;
}

class JinjaTemplate final : public ChatTemplate {
 public:
  JinjaTemplate(std::string source, std::unique_ptr<const RustTemplate> rust, std::string bos,
                std::string eos, std::vector<std::string> literals,
                std::vector<std::string> control_spellings)
      : source_(std::move(source)),
        rust_(std::move(rust)),
        bos_(std::move(bos)),
        eos_(std::move(eos)),
        literals_(std::move(literals)),
        spellings_(std::move(control_spellings)) {}

  Result<std::vector<Segment>> render(const Input& input) const override;
  const std::string& source() const override { return source_; }

  std::vector<TextRange> ranges_to_hide(const Leaf& leaf, const Plan& plan) const;
  std::vector<TextRange> broken(std::string_view text, const std::vector<TextRange>& dangers) const;
  // The output for these variables and the model's BOS and EOS texts, which are the template's own.
  // A token that the file does not name is undefined, as in transformers.
  Result<std::string> output(Json context, int64_t wall_us) const {
    if (!bos_.empty()) context["bos_token"] = bos_;
    if (!eos_.empty()) context["eos_token"] = eos_;
    return rust_->render(to_text(context), wall_us);
  }
  const ControlSpellings& spellings() const { return spellings_; }
  const std::vector<std::string>& literals() const { return literals_; }

 private:
  Result<Json> context_of(const Input& input) const;

  std::string source_;
  std::unique_ptr<const RustTemplate> rust_;
  std::string bos_, eos_;
  std::vector<std::string> literals_;
  ControlSpellings spellings_;
};

// One call of render(): the text that Jinja2 would give, and the strongest plans under which the
// template still gives it.
class Rendering {
 public:
  Rendering(const JinjaTemplate& owner, const Json& context, std::vector<Leaf> leaves)
      : owner_(owner),
        context_(context),
        leaves_(std::move(leaves)),
        plans_(leaves_.size()),
        alphabet_(leaves_, {owner.source()}),
        wall_us_(wall_us()) {}

  Result<std::vector<Segment>> run() {
    if (!alphabet_.complete()) {
      return Error{
          ErrorCode::kInvalidArgument,
          "messages: the texts use nearly every private-use and unassigned character; some "
          "must be free to tell the texts from the template's own",
          "messages"};
    }
    CUTAWAY_ASSIGN(expected_, owner_.output(context_, wall_us_));
    hidden_ = expected_;
    if (!raise(0, leaves_.size(), {Plan::kAll})) CUTAWAY_TRY(settle(0, leaves_.size()));
    return alphabet_.segments(hidden_);
  }

 private:
  // Puts leaves [begin, end) under a plan, if the output stays the same.
  bool raise(size_t begin, size_t end, const Plan& plan) {
    if (begin == end) return true;
    std::vector<Plan> tried = plans_;
    std::fill(tried.begin() + static_cast<ptrdiff_t>(begin),
              tried.begin() + static_cast<ptrdiff_t>(end), plan);
    std::vector<std::string> texts = texts_under(tried);
    if (failed_.contains(texts)) return false;  // another plan hid the same
    ++renderings_;
    auto out = output_of(texts);
    if (!out.ok() || alphabet_.show(*out) != expected_) {
      failed_.insert(std::move(texts));
      return false;
    }
    plans_ = std::move(tried);
    hidden_ = std::move(*out);
    return true;
  }

  std::vector<std::string> texts_under(const std::vector<Plan>& plans) const {
    std::vector<std::string> texts;
    texts.reserve(leaves_.size());
    for (size_t i = 0; i < leaves_.size(); ++i) {
      texts.push_back(alphabet_.hide(leaves_[i].text, owner_.ranges_to_hide(leaves_[i], plans[i])));
    }
    return texts;
  }

  Result<std::string> output_of(const std::vector<std::string>& texts) const {
    Json hidden = replace_leaves(context_, texts);
    hidden["hidden texts"] = true;  // what Rust's filters ask for; no template can name it
    return owner_.output(std::move(hidden), wall_us_);
  }

  // Finds the leaves that the template looks into, by halves, and what can be hidden of each.
  Status settle(size_t begin, size_t end) {
    if (renderings_ > kMaxRenderings) {
      return Error{ErrorCode::kInvalidArgument,
                   "messages: more than " + std::to_string(kMaxRenderings) +
                       " texts that the chat template looks into spell control tokens",
                   "messages"};
    }
    if (raise(begin, end, {Plan::kAllButLiterals})) return {};
    if (end - begin > 1) {
      const size_t middle = begin + (end - begin) / 2;
      CUTAWAY_TRY(settle(begin, middle));
      return settle(middle, end);
    }
    const Leaf& leaf = leaves_[begin];
    const std::vector<TextRange> dangers = owner_.spellings().dangers(leaf.text);
    if (dangers.empty() || raise(begin, end, {Plan::kDangers})) return {};
    if (raise(begin, end, {Plan::kBrokenDangers})) return {};
    return settle_inspected(begin, leaf);
  }

  // A leaf whose control spellings the template's logic depends on, as when it cuts the assistant's
  // <think>…</think> off. As few of them as possible are left to it. From anyone but the assistant
  // they must not come out again: that would be speaking in the template's name.
  Status settle_inspected(size_t i, const Leaf& leaf) {
    Plan plan{Plan::kDangersBut, {}};
    for (const TextRange& r : owner_.spellings().complete(leaf.text)) {
      std::string spelling = leaf.text.substr(r.begin, r.end - r.begin);
      const bool known = std::any_of(
          owner_.literals().begin(), owner_.literals().end(),
          [&](const std::string& literal) { return literal.find(spelling) != std::string::npos; });
      if (known &&
          std::find(plan.spared.begin(), plan.spared.end(), spelling) == plan.spared.end()) {
        plan.spared.push_back(std::move(spelling));
      }
    }
    if (plan.spared.empty() || !raise(i, i + 1, plan)) return refusal(leaf);
    for (size_t k = 0; k < plan.spared.size();) {
      Plan fewer = plan;
      fewer.spared.erase(fewer.spared.begin() + static_cast<ptrdiff_t>(k));
      if (raise(i, i + 1, fewer)) {
        plan = fewer;
      } else {
        ++k;
      }
    }
    if (!leaf.from_assistant && comes_out(i, plan.spared)) return refusal(leaf);
    return {};
  }

  // Does what was spared in leaf i reach the output as trusted text? Compared with an output where
  // the template sees other characters in its place.
  bool comes_out(size_t i, const std::vector<std::string>& spared) const {
    std::vector<Plan> hidden_all = plans_;
    hidden_all[i] = {Plan::kDangers, {}};
    const auto without = output_of(texts_under(hidden_all));
    return !without.ok() || count_trusted(hidden_, spared) > count_trusted(*without, spared);
  }

  size_t count_trusted(const std::string& output, const std::vector<std::string>& texts) const {
    size_t n = 0;
    for (const Segment& segment : alphabet_.segments(output)) {
      if (!segment.parse_special) continue;
      for (const std::string& text : texts) {
        for (size_t at = segment.text.find(text); at != std::string::npos;
             at = segment.text.find(text, at + 1)) {
          ++n;
        }
      }
    }
    return n;
  }

  Error refusal(const Leaf& leaf) const {
    const std::vector<TextRange> complete = owner_.spellings().complete(leaf.text);
    const std::string_view text = leaf.text;
    const std::string_view spelling =
        complete.empty() ? text.substr(0, 40)
                         : text.substr(complete[0].begin, complete[0].end - complete[0].begin);
    return {ErrorCode::kInvalidArgument,
            "messages: a text spells the control token \"" + utf8_replace_invalid(spelling) +
                "\", which this model's chat template would act on; leave it out",
            "messages"};
  }

  const JinjaTemplate& owner_;
  const Json& context_;
  std::vector<Leaf> leaves_;
  std::vector<Plan> plans_;  // under which hidden_ was rendered
  PrivateAlphabet alphabet_;
  int64_t wall_us_;  // one time for all renderings
  std::string expected_, hidden_;
  std::set<std::vector<std::string>> failed_;  // texts under which the output is another
  int renderings_ = 0;
};

std::vector<TextRange> JinjaTemplate::ranges_to_hide(const Leaf& leaf, const Plan& plan) const {
  if (plan.kind == Plan::kNothing) return {};
  if (plan.kind == Plan::kAll) return {{0, leaf.text.size()}};
  std::vector<TextRange> dangers = spellings_.dangers(leaf.text);
  if (plan.kind == Plan::kDangers) return dangers;
  if (plan.kind == Plan::kDangersBut) {
    std::erase_if(dangers, [&](const TextRange& r) {
      const std::string_view danger = std::string_view(leaf.text).substr(r.begin, r.end - r.begin);
      return std::find(plan.spared.begin(), plan.spared.end(), danger) != plan.spared.end();
    });
    return dangers;
  }
  if (plan.kind == Plan::kBrokenDangers) return broken(leaf.text, dangers);
  std::vector<bool> shown(leaf.text.size(), false);
  for (const std::string& literal : literals_) {
    for (size_t at = leaf.text.find(literal); at != std::string::npos;
         at = leaf.text.find(literal, at + 1)) {
      if (overlaps({at, at + literal.size()}, dangers)) continue;
      std::fill_n(shown.begin() + static_cast<ptrdiff_t>(at), literal.size(), true);
    }
  }
  std::vector<TextRange> ranges;
  for (size_t pos = 0; pos < shown.size(); ++pos) {
    if (shown[pos]) continue;
    if (ranges.empty() || ranges.back().end != pos) ranges.push_back({pos, pos});
    ranges.back().end = pos + 1;
  }
  return ranges;
}

// What of each danger no literal of the template covers ("'<' in content" lets the '<' be seen):
// one hidden character breaks a control token. A danger that literals cover whole, or that is more
// than one control token, stays hidden whole.
std::vector<TextRange> JinjaTemplate::broken(std::string_view text,
                                             const std::vector<TextRange>& dangers) const {
  const std::vector<TextRange> complete = spellings_.complete(text);
  std::vector<TextRange> ranges;
  for (const TextRange& danger : dangers) {
    const size_t before = ranges.size();
    const bool one = std::any_of(complete.begin(), complete.end(), [&](const TextRange& r) {
      return r.begin == danger.begin && r.end == danger.end;
    });
    const std::string_view inside = text.substr(danger.begin, danger.end - danger.begin);
    std::vector<bool> shown(inside.size(), false);
    for (const std::string& literal : literals_) {
      for (size_t at = inside.find(literal); one && at != std::string::npos;
           at = inside.find(literal, at + 1)) {
        std::fill_n(shown.begin() + static_cast<ptrdiff_t>(at), literal.size(), true);
      }
    }
    for (size_t i = 0; one && i < inside.size(); ++i) {
      if (shown[i]) continue;
      const size_t pos = danger.begin + i;
      if (ranges.size() == before || ranges.back().end != pos) ranges.push_back({pos, pos});
      ranges.back().end = pos + 1;
    }
    if (ranges.size() == before) ranges.push_back(danger);
  }
  return ranges;
}

Result<Json> JinjaTemplate::context_of(const Input& input) const {
  Json context = Json::object();
  context["messages"] = input.messages;
  context["tools"] = input.tools;
  context["documents"] = nullptr;
  context["add_generation_prompt"] = input.add_generation_prompt;
  if (!input.extra.is_object()) {
    return Error{ErrorCode::kInvalidArgument, "the template's further variables must be an object",
                 "extra"};
  }
  for (auto it = input.extra.begin(); it != input.extra.end(); ++it) {
    const std::string& key = it.key();
    if (key == "messages" || key == "tools" || key == "add_generation_prompt" ||
        key == "bos_token" || key == "eos_token") {
      return Error{ErrorCode::kInvalidArgument,
                   "\"" + key + "\" is set by the request itself and cannot be given again", key};
    }
    context[key] = *it;
  }
  return context;
}

Result<std::vector<Segment>> JinjaTemplate::render(const Input& input) const {
  CUTAWAY_SPAN(span, "text::ChatTemplate::render", "messages", input.messages.size(), "tools",
               input.tools.size(), "add_generation_prompt", input.add_generation_prompt);
  if (!input.messages.is_array()) {
    return Error{ErrorCode::kInvalidArgument, "messages must be an array", "messages"};
  }
  CUTAWAY_ASSIGN(Json context, context_of(input));
  CUTAWAY_ASSIGN(std::vector<Leaf> leaves, collect_leaves(context));
  CUTAWAY_ASSIGN(std::vector<Segment> segments, Rendering(*this, context, std::move(leaves)).run());
  CUTAWAY_OUT(span, "segments", segments.size());
  return segments;
}

}  // namespace

std::vector<std::string> control_spellings(const Tokenizer& tokenizer) {
  CUTAWAY_SPAN(span, "text::control_spellings");
  std::vector<std::string> spellings;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.token_type(id) != TokenType::kControl) continue;
    spellings.emplace_back(tokenizer.token_bytes(id, true));
  }
  CUTAWAY_OUT(span, "n", spellings.size());
  return spellings;
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::create(
    std::string source, std::string bos_token, std::string eos_token,
    std::vector<std::string> control_spellings) {
  CUTAWAY_SPAN(span, "text::ChatTemplate::create", "source", source);
  if (!utf8_valid(source)) {
    return Error{ErrorCode::kInvalidFile, "the chat template is not valid UTF-8",
                 "tokenizer.chat_template"};
  }
  CUTAWAY_ASSIGN(std::unique_ptr<const RustTemplate> rust, RustTemplate::create(source));
  std::vector<std::string> literals = template_literals(source);
  if (control_spellings.empty()) {
    // Not told which tokens are control tokens: take what looks like one in the template.
    for (const std::string& literal : literals) {
      const bool looks = (literal.starts_with('<') && literal.ends_with('>')) ||
                         (literal.starts_with('[') && literal.ends_with(']'));
      if (looks) control_spellings.push_back(literal);
    }
  }
  return std::shared_ptr<const ChatTemplate>(std::make_shared<JinjaTemplate>(
      std::move(source), std::move(rust), std::move(bos_token), std::move(eos_token),
      std::move(literals), std::move(control_spellings)));
}

}  // namespace cutaway::text
