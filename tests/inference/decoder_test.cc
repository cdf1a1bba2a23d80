// The loop, on a model whose answer the test writes: how it ends, what is streamed, what is
// counted.

#include "inference/decoder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/utf8.h"
#include "tests/support/scripted_model.h"

namespace cutaway {
namespace {

using inference::Choice;
using inference::DecodeOptions;
using inference::FinishReason;
using inference::Outcome;

constexpr int32_t kPromptEnd = '?';

// A scripted model, and everything that one sequence on it needs.
struct Rig {
  Rig(const std::vector<int32_t>& script, bool ends, ThreadPool& pool,
      const kernels::KernelTable& table)
      : scripted(kPromptEnd, script, ends, pool),
        pages(geometry(*scripted.model()), 4),
        runner(*scripted.model(), table, pool, false),
        decoder(runner, scripted.model()->tokenizer()),
        sequence(pages) {}

  static kv::Geometry geometry(const model::LoadedModel& model) {
    const arch::ModelShape& m = model.shape();
    return {m.n_layers, m.n_kv_heads, m.d_head, m.d_head, kernels::KvType::kF16};
  }

  testing::ScriptedModel scripted;
  kv::PagePool pages;
  inference::Runner runner;
  inference::Decoder decoder;
  inference::SequenceState sequence;
};

struct Streamed {
  Result<Outcome> outcome = Error{};
  std::vector<std::string> parts;  // what each token released, then the tail
  std::string text;
};

class DecoderTest : public ::testing::Test {
 protected:
  // Byte tokens are their own ids: a script is the bytes of a text.
  static std::vector<int32_t> bytes(std::string_view text) {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }

  Streamed run(const std::vector<int32_t>& script, bool ends, DecodeOptions options = {},
               int64_t stop_after = -1) {
    Rig rig(script, ends, pool_, *table_);
    if (options.context == 0) options.context = 64;
    if (options.max_tokens == 0) options.max_tokens = 1000;
    const std::vector<int32_t> prompt{'W', 'h', 'y', kPromptEnd};
    Streamed out;
    out.outcome = rig.decoder.generate(rig.sequence, prompt, options, [&](const Choice& choice) {
      out.parts.push_back(choice.text);
      return static_cast<int64_t>(out.parts.size()) != stop_after;
    });
    if (out.outcome.ok()) out.parts.push_back(out.outcome->tail);
    for (const std::string& part : out.parts) out.text += part;
    return out;
  }

  ThreadPool pool_{1};
  const kernels::KernelTable* table_ = kernels::select_table("")->table;
};

TEST_F(DecoderTest, WritesTheScriptAndStopsAtTheEndToken) {
  const Streamed got = run(bytes("Hi, you."), true);
  ASSERT_TRUE(got.outcome.ok()) << got.outcome.error().message;
  EXPECT_EQ(got.text, "Hi, you.");
  EXPECT_EQ(got.outcome->finish, FinishReason::kStop);
  EXPECT_EQ(got.outcome->stop, "<|im_end|>");
  EXPECT_EQ(got.outcome->ids.size(), 9u) << "the end token is counted";
  EXPECT_EQ(got.outcome->ids.back(), testing::kTurnEnd);
}

TEST_F(DecoderTest, ACharacterOverFourTokensIsReleasedWhole) {
  const Streamed got = run(bytes("a\xF0\x9F\x8D\x8A"
                                 "b"),
                           true);
  ASSERT_TRUE(got.outcome.ok());
  EXPECT_EQ(got.parts, (std::vector<std::string>{"a", "", "", "", "🍊", "b", "", ""}));
  for (const std::string& part : got.parts) EXPECT_TRUE(utf8_valid(part));
}

TEST_F(DecoderTest, HalfACharacterAtTheEndIsNotLost) {
  DecodeOptions options;
  options.max_tokens = 3;
  const Streamed got = run(bytes("a\xF0\x9F\x8D\x8A"), true, options);
  ASSERT_TRUE(got.outcome.ok());
  EXPECT_EQ(got.outcome->finish, FinishReason::kLength);
  EXPECT_EQ(got.text, "a\xF0\x9F");
  EXPECT_EQ(got.parts.back(), "\xF0\x9F");
}

TEST_F(DecoderTest, AStopStringAcrossTokensLeaksNothing) {
  DecodeOptions options;
  options.stop = {"STOP", "xyz"};
  const Streamed got = run(bytes("ab STOP!"), true, options);
  ASSERT_TRUE(got.outcome.ok());
  EXPECT_EQ(got.text, "ab ");
  EXPECT_EQ(got.outcome->finish, FinishReason::kStop);
  EXPECT_EQ(got.outcome->stop, "STOP");
  EXPECT_EQ(got.outcome->ids.size(), 7u) << "tokens whose text was removed are still chosen tokens";
}

TEST_F(DecoderTest, WhatLooksLikeAStopStringAndIsNoneIsReleased) {
  DecodeOptions options;
  options.stop = {"STOPPED"};
  const Streamed got = run(bytes("ab STOP!"), true, options);
  ASSERT_TRUE(got.outcome.ok());
  EXPECT_EQ(got.text, "ab STOP!");
  EXPECT_EQ(got.outcome->stop, "<|im_end|>");
}

TEST_F(DecoderTest, TheLimitAndTheContextsEndAreLength) {
  DecodeOptions options;
  options.max_tokens = 2;
  const Streamed limited = run(bytes("abcdef"), true, options);
  EXPECT_EQ(limited.outcome->finish, FinishReason::kLength);
  EXPECT_EQ(limited.text, "ab");
  options = {};
  options.context = 7;  // four are the prompt's
  const Streamed full = run(bytes("abcdef"), true, options);
  ASSERT_TRUE(full.outcome.ok());
  EXPECT_EQ(full.outcome->finish, FinishReason::kLength);
  EXPECT_EQ(full.text, "abc");
}

TEST_F(DecoderTest, APromptThatDoesNotFitIsAnErrorWithBothCounts) {
  DecodeOptions options;
  options.context = 3;
  const Streamed got = run(bytes("abc"), true, options);
  ASSERT_FALSE(got.outcome.ok());
  EXPECT_EQ(got.outcome.error().code, ErrorCode::kTooLarge);
  EXPECT_NE(got.outcome.error().message.find("4 tokens"), std::string::npos);
  EXPECT_NE(got.outcome.error().message.find("holds 3"), std::string::npos);
  options.context = 4;
  const Streamed no_room = run(bytes("abc"), true, options);
  ASSERT_FALSE(no_room.outcome.ok());
  EXPECT_NE(no_room.outcome.error().message.find("no room"), std::string::npos);
}

TEST_F(DecoderTest, TheReaderCanEndIt) {
  const Streamed got = run(bytes("abcdef"), true, {}, 3);
  ASSERT_TRUE(got.outcome.ok());
  EXPECT_EQ(got.outcome->finish, FinishReason::kCancelled);
  EXPECT_EQ(got.text, "abc");
}

TEST_F(DecoderTest, CancellingBeforeTheFirstTokenGivesNone) {
  DecodeOptions options;
  options.cancelled = [] { return true; };
  const Streamed got = run(bytes("abcdef"), true, options);
  ASSERT_TRUE(got.outcome.ok());
  EXPECT_EQ(got.outcome->finish, FinishReason::kCancelled);
  EXPECT_TRUE(got.outcome->ids.empty());
}

TEST_F(DecoderTest, LogprobsAndTheLedgerAreOfTheModelsOwnDistribution) {
  DecodeOptions options;
  options.max_tokens = 1;
  options.logprobs = true;
  options.top_logprobs = 3;
  options.ledger = true;
  options.sampling.logit_bias[' '] = 50;  // another token wins, with its own log-probability
  Rig rig(bytes("a"), true, pool_, *table_);
  options.context = 64;
  const std::vector<int32_t> prompt{kPromptEnd};
  std::optional<Choice> choice;
  auto outcome = rig.decoder.generate(rig.sequence, prompt, options, [&](const Choice& c) {
    choice = c;
    return true;
  });
  ASSERT_TRUE(outcome.ok() && choice);
  EXPECT_EQ(choice->id, ' ');
  EXPECT_EQ(choice->top[0].id, 'a') << "the bias is not in the alternatives";
  EXPECT_LT(*choice->logprob, choice->top[0].logprob);
  EXPECT_EQ(choice->ledger->chosen, ' ');
  EXPECT_GT(choice->ledger->chosen_rank, 0);
}

TEST_F(DecoderTest, RowsThatPadTheHeadHaveNoShareInTheDistribution) {
  // The head has 263 rows, the tokenizer 259 tokens; all but one of the logits are 0.
  DecodeOptions options;
  options.max_tokens = 1;
  options.logprobs = true;
  options.top_logprobs = 20;
  std::optional<Choice> choice;
  Rig rig(bytes("a"), true, pool_, *table_);
  ASSERT_EQ(rig.scripted.model()->shape().vocab, 263);
  ASSERT_EQ(rig.scripted.model()->tokenizer()->vocab_size(), 259);
  options.context = 64;
  const std::vector<int32_t> prompt{kPromptEnd};
  auto outcome = rig.decoder.generate(rig.sequence, prompt, options, [&](const Choice& c) {
    choice = c;
    return true;
  });
  ASSERT_TRUE(outcome.ok() && choice);
  const double logit = choice->top[0].logit;
  EXPECT_NEAR(*choice->logprob, logit - std::log(std::exp(logit) + 258), 1e-12);
  EXPECT_NEAR(choice->top[0].logprob, *choice->logprob, 1e-12);
  for (const auto& entry : choice->top) EXPECT_LT(entry.id, 259);
}

TEST_F(DecoderTest, ASecondPromptKeepsTheCommonBeginning) {
  Rig rig(bytes("abc"), true, pool_, *table_);
  DecodeOptions options;
  options.context = options.max_tokens = 64;
  const auto first = rig.decoder.generate(rig.sequence, bytes("Who are you?"), options, {});
  const auto again = rig.decoder.generate(rig.sequence, bytes("Who are you?"), options, {});
  const auto other = rig.decoder.generate(rig.sequence, bytes("Who is it?"), options, {});
  ASSERT_TRUE(first.ok() && again.ok() && other.ok());
  EXPECT_EQ(first->cached_tokens, 0);
  EXPECT_EQ(again->cached_tokens, 11) << "all but the last, whose logits are needed";
  EXPECT_EQ(other->cached_tokens, 4);
  EXPECT_EQ(first->logits_hash, again->logits_hash);
  EXPECT_EQ(first->logits_hash, other->logits_hash) << "this model looks at the last token only";
}

// Changes nothing; that it is there is what matters.
class IdleEditor final : public trace::Editor {
 public:
  bool changes(trace::Site site, int) const override { return site == trace::Site::kEmbed; }
  void edit(const trace::TapEvent&, float*) override { ++events; }
  int events = 0;
};

TEST_F(DecoderTest, KeysAndValuesOfAnInterventionServeNoOtherRun) {
  Rig rig(bytes("abc"), true, pool_, *table_);
  DecodeOptions options;
  options.context = options.max_tokens = 64;
  IdleEditor editor;
  const auto cached = [&](bool edited) {
    rig.runner.set_editors(edited ? std::vector<trace::Editor*>{&editor}
                                  : std::vector<trace::Editor*>{});
    const auto outcome = rig.decoder.generate(rig.sequence, bytes("Who are you?"), options, {});
    EXPECT_TRUE(outcome.ok());
    return outcome->cached_tokens;
  };
  EXPECT_EQ(cached(false), 0);
  EXPECT_EQ(cached(false), 11);
  EXPECT_EQ(cached(true), 0) << "what was there was computed without the intervention";
  EXPECT_GT(editor.events, 0);
  EXPECT_EQ(cached(true), 0) << "another run, though it does the same";
  EXPECT_EQ(cached(false), 0) << "what is there was computed under an intervention";
  EXPECT_EQ(cached(false), 11);
}

TEST_F(DecoderTest, TokensAreForcedAndBannedAtTheirSteps) {
  Rig rig(bytes("abc"), true, pool_, *table_);
  DecodeOptions options;
  options.context = 64;
  options.max_tokens = 4;
  options.ledger = options.logprobs = true;
  const auto ids = [&] {
    std::vector<Choice> choices;
    const auto outcome = rig.decoder.generate(rig.sequence, bytes("Who are you?"), options,
                                              [&](const Choice& choice) {
                                                choices.push_back(choice);
                                                return true;
                                              });
    EXPECT_TRUE(outcome.ok());
    return choices;
  };
  const auto own = ids();
  options.rules.forced = {{1, 'x'}};
  options.rules.bans = {{{own[0].id}, {{0, 1}}}};
  const auto ruled = ids();
  ASSERT_GE(ruled.size(), 2u);
  EXPECT_NE(ruled[0].id, own[0].id);
  ASSERT_TRUE(ruled[0].ledger->mask);
  EXPECT_EQ(ruled[0].ledger->mask->wanted, own[0].id);
  EXPECT_DOUBLE_EQ(ruled[0].ledger->mask->removed_mass, own[0].ledger->chosen_raw_prob);
  EXPECT_EQ(ruled[0].ledger->raw_top[0].id, own[0].id) << "the model's own";
  EXPECT_EQ(ruled[1].id, 'x');
  ASSERT_TRUE(ruled[1].ledger->forced);
  EXPECT_TRUE(ruled[1].ledger->stages.empty());
  EXPECT_LT(*ruled[1].logprob, 0);

  // Bans that leave nothing are an error that says so.
  sampling::TokenRules::Ban all{{}, {{}}};
  for (int32_t id = 0; id < rig.scripted.model()->tokenizer()->vocab_size(); ++id) {
    all.ids.push_back(id);
  }
  options.rules = {{}, {all}};
  const auto outcome = rig.decoder.generate(rig.sequence, bytes("Who are you?"), options, {});
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(outcome.error().message.find("tokens.ban leaves no token"), std::string::npos);
}

TEST_F(DecoderTest, AnEmptyPromptIsAnError) {
  Rig rig(bytes("a"), true, pool_, *table_);
  DecodeOptions options;
  options.context = options.max_tokens = 64;
  const auto outcome = rig.decoder.generate(rig.sequence, {}, options, {});
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(outcome.error().message.find("empty"), std::string::npos);
}

}  // namespace
}  // namespace cutaway
