#include <cmath>

#include "api/impl.h"

namespace cutaway {
namespace {

// JSON has no −inf; a probability of 0 gets the lowest number that OpenAI's API documents.
double finite_logprob(double logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

Json token_json(const GeneratedToken& token) {
  Json top = Json::array();
  for (const TokenAlternative& alternative : token.top) {
    top.push_back({{"id", alternative.id},
                   {"piece", alternative.piece},
                   {"logprob", finite_logprob(alternative.logprob)}});
  }
  Json out = {{"id", token.id},
              {"piece", token.piece},
              {"bytes", api::byte_array(token.bytes)},
              {"logprob", finite_logprob(token.logprob)},
              {"top", std::move(top)}};
  if (!token.ledger.is_null()) out["ledger"] = token.ledger;
  return out;
}

}  // namespace

Json to_json(const Generation& generation) {
  Json tokens = Json::array();
  for (const GeneratedToken& token : generation.tokens) tokens.push_back(token_json(token));
  const Usage& usage = generation.usage;
  const Timings& timings = generation.timings;
  Json out = {{"run", generation.run},
              {"model", generation.model},
              {"text", generation.text},
              {"finish_reason", generation.finish_reason},
              {"stop", generation.stop.empty() ? Json(nullptr) : Json(generation.stop)},
              {"tokens", std::move(tokens)},
              {"prompt_tokens", generation.prompt_tokens},
              {"usage",
               {{"input_tokens", usage.input_tokens},
                {"output_tokens", usage.output_tokens},
                {"reasoning_tokens", usage.reasoning_tokens},
                {"cached_tokens", usage.cached_tokens}}},
              {"timings",
               {{"load_ms", timings.load_ms},
                {"ttft_ms", timings.ttft_ms},
                {"prefill_tps", timings.prefill_tps},
                {"decode_tps", timings.decode_tps},
                {"total_ms", timings.total_ms},
                {"peak_rss_mb", timings.peak_rss_mb}}},
              {"seed", generation.seed},
              {"sampling", generation.sampling},
              {"session", generation.session},
              {"logits_hash", generation.logits_hash}};
  if (!generation.interventions.is_null()) out["interventions"] = generation.interventions;
  out["warnings"] = generation.warnings;
  return out;
}

}  // namespace cutaway
