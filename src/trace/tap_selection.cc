#include "trace/tap_selection.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>
#include <tuple>

#include "base/utf8.h"
#include "trace/trace.h"

namespace cutaway::trace {
namespace {

Error wrong(const std::string& field, const std::string& message) {
  return {ErrorCode::kInvalidArgument, message, field};
}

std::string in_quotes(std::string_view text) {
  return std::string(1, '"').append(utf8_replace_invalid(text.substr(0, 128))).append(1, '"');
}

// A whole number, perhaps negative, that is all of `text`.
std::optional<int64_t> integer(std::string_view text) {
  int64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || end.ec != std::errc() || end.ptr != text.data() + text.size()) return {};
  return value;
}

// "0,3-5", of n: ascending.
Result<std::vector<int32_t>> parse_set(const char* field, std::string_view text, int n) {
  CUTAWAY_ASSIGN(const IndexSet set, IndexSet::parse_text(text, field, {nullptr, nullptr, n}));
  CUTAWAY_ASSIGN(const std::vector<int64_t> indices, set.indices(n, field, field));
  std::vector<int32_t> out(indices.begin(), indices.end());
  std::sort(out.begin(), out.end());
  return out;
}

// "a:b", "a:", ":b" or "a"
Result<IndexRange> parse_window(const char* field, std::string_view text) {
  CUTAWAY_ASSIGN(const IndexSet set,
                 IndexSet::parse_text(text, field, {"the end", nullptr, -1, true}));
  const auto range = set.one_range();
  if (!range) {
    return wrong(field, std::string(field) + " is " + in_quotes(text) +
                            "; here it takes one range, like 0:16 or -4:");
  }
  return *range;
}

int64_t from_start(int64_t at, int64_t n) { return at < 0 ? at + n : at; }

bool per_layer(Site site) { return tap_name(site, 0) != tap_name(site, 1); }

// A site's name without its layer: "attn.hook_pattern", "hook_resid_pre", "logits".
std::string tail_of(Site site) {
  const std::string name = tap_name(site, 0);
  constexpr std::string_view kBlock = "blocks.0.";
  return name.starts_with(kBlock) ? name.substr(kBlock.size()) : name;
}

// "pattern", "ln1.scale", "logits"
std::string short_name(Site site) {
  std::string name = tail_of(site);
  for (const std::string_view part : {"attn.", "mlp.", "hook_"}) {
    if (const size_t at = name.find(part); at != std::string::npos) name.erase(at, part.size());
  }
  return name;
}

// '*' stands for any characters. Goes back to the last one only, so the time is that of |pattern| ·
// |text|.
bool matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

// The site that a name without a layer means: "pattern", "hook_pattern", "attn.hook_pattern",
// "ln1.scale"; "scores" is short for attn_scores.
std::optional<Site> site_of(std::string_view name) {
  if (name == "scores") return Site::kAttnScores;
  for (int i = 0; i < kSiteCount; ++i) {
    const auto site = static_cast<Site>(i);
    const std::string tail = tail_of(site);
    // Three norms have a hook_scale and a hook_normalized: these need the norm's name.
    const bool last = name.starts_with("hook_") && !tail.starts_with("ln") &&
                      tail.ends_with(std::string(1, '.').append(name));
    if (name == short_name(site) || name == tail || last) return site;
  }
  return {};
}

// Which sites and layers one pattern means.
class Pattern {
 public:
  // Not a pattern: nothing.
  static Result<std::optional<Pattern>> parse(std::string_view text, int n_layers) {
    Pattern out;
    out.first_ = 0;
    out.last_ = n_layers - 1;
    std::string name(text);
    if (name == "all") name.assign(1, '*');
    // blocks.0-3.…
    constexpr std::string_view kBlocks = "blocks.";
    bool ranged = false;
    if (name.starts_with(kBlocks)) {
      const size_t dot = name.find('.', kBlocks.size());
      const std::string number =
          name.substr(kBlocks.size(), dot == std::string::npos ? dot : dot - kBlocks.size());
      const bool range =
          number.find(':') != std::string::npos || number.find('-', 1) != std::string::npos;
      if (dot != std::string::npos && range) {
        const auto set = IndexSet::parse_text(number, "layers", {nullptr, nullptr, n_layers});
        const auto layers = set.ok() ? set->indices(n_layers, "layers", "layers") : set.error();
        if (!layers.ok()) {
          return wrong("taps", "tap " + in_quotes(text) + ": " + in_quotes(number) +
                                   " is no range of layers; they are 0 to " +
                                   std::to_string(n_layers - 1));
        }
        out.first_ = layers->front();
        out.last_ = layers->back();
        name.replace(kBlocks.size(), number.size(), 1, '*');
        ranged = true;
      }
    }
    if (name.find('*') != std::string::npos) {
      out.form_ = name;
      return std::optional(out);
    }
    if (ranged) return std::optional<Pattern>();
    out.site_ = site_of(name);
    if (out.site_) return std::optional(out);
    // A short name with its layer.
    const size_t dash = name.rfind('-');
    if (dash == std::string::npos) return std::optional<Pattern>();
    const auto layer = integer(std::string_view(name).substr(dash + 1));
    out.site_ = site_of(name.substr(0, dash));
    if (layer && out.site_ && per_layer(*out.site_)) {
      if (*layer < 0 || *layer >= n_layers) {
        return wrong("taps", "tap " + in_quotes(text) +
                                 ": there is no such layer; layers are 0 to " +
                                 std::to_string(n_layers - 1));
      }
      out.first_ = out.last_ = *layer;
      return std::optional(out);
    }
    return std::optional<Pattern>();
  }

  bool means(Site site, int layer) const {
    if (site_) return site == *site_ && (layer < 0 || (layer >= first_ && layer <= last_));
    return (layer < 0 || (layer >= first_ && layer <= last_)) &&
           matches(form_, tap_name(site, layer));
  }
  std::optional<Site> site() const { return site_; }

 private:
  std::string form_;
  std::optional<Site> site_;
  int64_t first_ = 0, last_ = 0;
};

Error absent(std::string_view text, Site site) {
  std::string why;
  switch (site) {
    case Site::kPosEmbed:
      why = "; it has no learned positions (they are rotated into q and k)";
      break;
    case Site::kMlpPreLinear:
      why = "; its MLP has no gate, so hook_pre is all that goes into the activation";
      break;
    case Site::kRouterLogits:
    case Site::kExpertIndices:
    case Site::kExpertWeights:
      why = "; it is no mixture of experts";
      break;
    default:
      break;
  }
  return {ErrorCode::kUnsupported, "this model has no such tap: " + std::string(text) + why,
          "taps"};
}

class Matcher {
 public:
  Matcher(const TapDomain& domain, std::vector<bool> layers, const TapFields& fields)
      : domain_(domain), layers_(std::move(layers)), fields_(fields) {}

  // Names, with commas between them.
  Status add_all(const std::string& text) {
    for (size_t at = 0; at <= text.size();) {
      const size_t comma = std::min(text.find(',', at), text.size());
      CUTAWAY_TRY(add(text.substr(at, comma - at)));
      at = comma + 1;
    }
    return {};
  }

  std::vector<TapName> taps() const {
    std::vector<TapName> out;
    for (const auto& [layer, site] : taps_) out.push_back({site, layer});
    // The order of the pass: what comes before the blocks, they themselves, what comes after.
    const auto place = [](const TapName& tap) {
      const int part = tap.layer >= 0 ? 1 : tap.site > Site::kResidPost ? 2 : 0;
      return std::tuple(part, tap.layer, tap.site);
    };
    std::sort(out.begin(), out.end(),
              [&](const TapName& a, const TapName& b) { return place(a) < place(b); });
    return out;
  }

 private:
  Status add(const std::string& text) {
    const Result<TapName> one = parse_tap_name(text, domain_.n_layers);
    if (one.ok()) return add_one(text, *one);
    CUTAWAY_ASSIGN(const std::optional<Pattern> pattern, Pattern::parse(text, domain_.n_layers));
    if (!pattern) return one.error();
    if (pattern->site() && !has(*pattern->site())) return absent(text, *pattern->site());
    bool any = false;
    for (int i = 0; i < kSiteCount; ++i) {
      const auto site = static_cast<Site>(i);
      if (!has(site) || (!pattern->site() && domain_.hidden[static_cast<size_t>(i)])) continue;
      const bool layered = per_layer(site);
      for (int layer = layered ? 0 : -1; layer < (layered ? domain_.n_layers : 0); ++layer) {
        if (!pattern->means(site, layer)) continue;
        any = true;
        if (layered && !chosen(layer)) continue;
        taps_.insert({layer, site});
      }
    }
    if (any) return {};
    return wrong("taps", "no tap of this model is meant by " + in_quotes(text) +
                             "; names look like \"" + tap_name(Site::kResidPost, 0) +
                             "\", patterns like blocks.*.attn.hook_pattern");
  }

  bool has(Site site) const { return domain_.sites[static_cast<size_t>(site)]; }
  bool chosen(int layer) const { return layers_.empty() || layers_[static_cast<size_t>(layer)]; }
  Status add_one(const std::string& text, const TapName& tap) {
    if (!has(tap.site)) return absent(text, tap.site);
    if (tap.layer >= 0 && !chosen(tap.layer)) {
      return wrong(fields_.layers, fields_.layers + " leaves out layer " +
                                       std::to_string(tap.layer) + " of the tap " +
                                       in_quotes(text));
    }
    if (!named_.insert({tap.layer, tap.site}).second) {
      return wrong("taps", "tap " + text + " is named twice");
    }
    taps_.insert({tap.layer, tap.site});
    return {};
  }

  const TapDomain& domain_;
  std::vector<bool> layers_;  // the chosen ones; empty: all
  const TapFields& fields_;
  std::set<std::pair<int, Site>> taps_, named_;
};

}  // namespace

Result<TapRange> TapSelection::range_of_text(int64_t n) const {
  if (!positions) return TapRange{0, n};
  const int64_t begin = from_start(positions->begin, n);
  const int64_t end = positions->end == INT64_MAX ? n : from_start(positions->end, n);
  if (begin < 0 || end > n || begin >= end) {
    return wrong(
        "positions",
        "positions: " + std::to_string(positions->begin) + ":" +
            (positions->end == INT64_MAX ? std::string() : std::to_string(positions->end)) +
            " is not within the text, which has the positions 0:" + std::to_string(n));
  }
  return TapRange{begin, end};
}

TapRange TapSelection::range_of_run(int64_t n, int64_t first_step) const {
  TapRange out{0, n};
  if (positions) {
    out.begin = from_start(positions->begin, n);
    out.end = positions->end == INT64_MAX ? n : from_start(positions->end, n);
  }
  if (steps) {
    const int64_t n_steps = n - first_step;
    out.begin = std::max(out.begin, first_step + from_start(steps->begin, n_steps));
    const int64_t end = steps->end == INT64_MAX ? n_steps : from_start(steps->end, n_steps);
    out.end = std::min(out.end, first_step + end);
  }
  out.begin = std::clamp<int64_t>(out.begin, 0, n);
  out.end = std::clamp<int64_t>(out.end, out.begin, n);
  return out;
}

Result<std::vector<TapName>> match_taps(const std::vector<std::string>& names,
                                        const IndexSet& layers, const TapDomain& domain,
                                        const TapFields& fields) {
  CUTAWAY_SPAN(span, "trace::match_taps", "names", names.size());
  std::vector<bool> chosen;
  if (!layers.all()) {
    CUTAWAY_ASSIGN(const std::vector<int64_t> indices,
                   layers.indices(domain.n_layers, fields.layers, "layers"));
    chosen.resize(static_cast<size_t>(domain.n_layers));
    for (const int64_t i : indices) chosen[static_cast<size_t>(i)] = true;
  }
  Matcher matcher(domain, std::move(chosen), fields);
  for (const std::string& name : names) {
    const Status added = matcher.add_all(name);
    if (added.ok()) continue;
    const Error& error = added.error();
    if (error.field == fields.layers || fields.taps == "taps") return error;
    return Error{error.code, fields.taps + ": " + error.message, fields.taps};
  }
  std::vector<TapName> out = matcher.taps();
  CUTAWAY_OUT(span, "taps", out.size());
  return out;
}

Result<TapSelection> parse_taps(const TapQuery& query, const TapDomain& domain) {
  CUTAWAY_SPAN(span, "trace::parse_taps", "names", query.names.size());
  TapSelection out;
  CUTAWAY_ASSIGN(const IndexSet layers,
                 IndexSet::parse_text(query.layers, "layers", {nullptr, nullptr, domain.n_layers}));
  if (!layers.all()) {
    CUTAWAY_ASSIGN(out.layers, parse_set("layers", query.layers, domain.n_layers));
  }
  if (!query.heads.empty()) {
    CUTAWAY_ASSIGN(out.heads, parse_set("heads", query.heads, domain.n_heads));
    if (static_cast<int>(out.heads.size()) == domain.n_heads) out.heads.clear();
  }
  if (!query.positions.empty()) {
    CUTAWAY_ASSIGN(out.positions, parse_window("positions", query.positions));
  }
  if (!query.steps.empty()) {
    CUTAWAY_ASSIGN(out.steps, parse_window("steps", query.steps));
  }
  CUTAWAY_ASSIGN(out.taps, match_taps(query.names, layers, domain));
  CUTAWAY_OUT(span, "taps", out.taps.size());
  return out;
}

}  // namespace cutaway::trace
