#include "sampling/sampler.h"
#include "trace/trace.h"

namespace cutaway::sampling {
namespace {

Json removed_json(const std::vector<StageRecord::Removed>& tokens) {
  Json removed = Json::array();
  for (const StageRecord::Removed& token : tokens) {
    removed.push_back({{"id", token.id}, {"prob", token.prob}});
  }
  return removed;
}

Json stage_json(const StageRecord& stage) {
  return {{"name", stage.name},
          {"params", stage.params},
          {"before", {{"count", stage.before_count}, {"mass", stage.before_mass}}},
          {"after", {{"count", stage.after_count}, {"mass", stage.after_mass}}},
          {"removed", removed_json(stage.removed)}};
}

}  // namespace

Json to_json(const Ledger& ledger) {
  CUTAWAY_SPAN(span, "sampling::to_json", "position", ledger.position, "stages",
               ledger.stages.size());
  Json top = Json::array();
  for (const Ledger::Raw& token : ledger.raw_top) {
    top.push_back({{"id", token.id}, {"logit", token.logit}, {"logprob", token.logprob}});
  }
  Json stages = Json::array();
  for (const StageRecord& stage : ledger.stages) stages.push_back(stage_json(stage));
  // No number is drawn for a greedy choice: the one token that is left owns the whole line.
  const Json u = ledger.greedy ? Json(nullptr) : Json(ledger.draw_u);
  Json out = {
      {"position", ledger.position},
      {"step", ledger.step},
      {"raw", {{"top", std::move(top)}, {"entropy", ledger.raw_entropy}}},
      {"stages", std::move(stages)},
      {"draw", {{"u", u}, {"interval", Json::array({ledger.interval_begin, ledger.interval_end})}}},
      {"chosen",
       {{"id", ledger.chosen},
        {"rank", ledger.chosen_rank},
        {"raw_prob", ledger.chosen_raw_prob},
        {"prob", ledger.chosen_prob}}}};
  if (ledger.mask) {
    out["mask"] = {{"by", "ban"},
                   {"removed_mass", ledger.mask->removed_mass},
                   {"wanted", ledger.mask->wanted},
                   {"removed", removed_json(ledger.mask->removed)}};
  }
  if (ledger.forced) {
    out["forced"] = {{"by", "intervention"}, {"instead_of", ledger.forced->instead_of}};
  }
  CUTAWAY_OUT(span, "chosen", ledger.chosen);
  return out;
}

}  // namespace cutaway::sampling
