#include "trace/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cutaway::trace {
namespace {

using testing::HasSubstr;

void expect_tap(const std::string& text, Site site, int layer) {
  const auto tap = parse_tap_name(text, 30);
  ASSERT_TRUE(tap.ok()) << tap.error().message;
  EXPECT_EQ(tap->site, site) << text;
  EXPECT_EQ(tap->layer, layer) << text;
}

std::string error_of(const std::string& text, int n_layers = 30) {
  const auto tap = parse_tap_name(text, n_layers);
  EXPECT_FALSE(tap.ok()) << text;
  return tap.ok() ? "" : tap.error().message;
}

TEST(TapName, EveryNameReadsBack) {
  for (int i = 0; i < kSiteCount; ++i) {
    const auto site = static_cast<Site>(i);
    for (const int layer : {0, 7, 29}) {
      const std::string name = tap_name(site, layer);
      expect_tap(name, site, name.starts_with("blocks.") ? layer : -1);
    }
  }
}

TEST(TapName, NamesOfTheContract) {
  EXPECT_EQ(tap_name(Site::kTokens, 3), "hook_tokens");
  EXPECT_EQ(tap_name(Site::kEmbed, 3), "hook_embed");
  EXPECT_EQ(tap_name(Site::kPosEmbed, 3), "hook_pos_embed");
  EXPECT_EQ(tap_name(Site::kResidPre, 3), "blocks.3.hook_resid_pre");
  EXPECT_EQ(tap_name(Site::kLn1Scale, 3), "blocks.3.ln1.hook_scale");
  EXPECT_EQ(tap_name(Site::kLn1Normalized, 3), "blocks.3.ln1.hook_normalized");
  EXPECT_EQ(tap_name(Site::kQ, 3), "blocks.3.attn.hook_q");
  EXPECT_EQ(tap_name(Site::kK, 3), "blocks.3.attn.hook_k");
  EXPECT_EQ(tap_name(Site::kV, 3), "blocks.3.attn.hook_v");
  EXPECT_EQ(tap_name(Site::kRotQ, 3), "blocks.3.attn.hook_rot_q");
  EXPECT_EQ(tap_name(Site::kRotK, 3), "blocks.3.attn.hook_rot_k");
  EXPECT_EQ(tap_name(Site::kAttnScores, 3), "blocks.3.attn.hook_attn_scores");
  EXPECT_EQ(tap_name(Site::kPattern, 3), "blocks.3.attn.hook_pattern");
  EXPECT_EQ(tap_name(Site::kZ, 3), "blocks.3.attn.hook_z");
  EXPECT_EQ(tap_name(Site::kResult, 3), "blocks.3.attn.hook_result");
  EXPECT_EQ(tap_name(Site::kAttnOut, 3), "blocks.3.hook_attn_out");
  EXPECT_EQ(tap_name(Site::kResidMid, 3), "blocks.3.hook_resid_mid");
  EXPECT_EQ(tap_name(Site::kLn2Scale, 3), "blocks.3.ln2.hook_scale");
  EXPECT_EQ(tap_name(Site::kLn2Normalized, 3), "blocks.3.ln2.hook_normalized");
  EXPECT_EQ(tap_name(Site::kRouterLogits, 3), "blocks.3.mlp.hook_router_logits");
  EXPECT_EQ(tap_name(Site::kExpertIndices, 3), "blocks.3.mlp.hook_expert_indices");
  EXPECT_EQ(tap_name(Site::kExpertWeights, 3), "blocks.3.mlp.hook_expert_weights");
  EXPECT_EQ(tap_name(Site::kMlpPre, 3), "blocks.3.mlp.hook_pre");
  EXPECT_EQ(tap_name(Site::kMlpPreLinear, 3), "blocks.3.mlp.hook_pre_linear");
  EXPECT_EQ(tap_name(Site::kMlpPost, 3), "blocks.3.mlp.hook_post");
  EXPECT_EQ(tap_name(Site::kMlpOut, 3), "blocks.3.hook_mlp_out");
  EXPECT_EQ(tap_name(Site::kResidPost, 13), "blocks.13.hook_resid_post");
  EXPECT_EQ(tap_name(Site::kLnFinalScale, 3), "ln_final.hook_scale");
  EXPECT_EQ(tap_name(Site::kLnFinalNormalized, 3), "ln_final.hook_normalized");
  EXPECT_EQ(tap_name(Site::kLogits, 3), "logits");
}

TEST(TapName, GgmlNames) {
  expect_tap("Qcur-3", Site::kQ, 3);
  expect_tap("Kcur-29", Site::kK, 29);
  expect_tap("Vcur-0", Site::kV, 0);
  expect_tap("kqv_out-3", Site::kZ, 3);
  expect_tap("ffn_inp-3", Site::kResidMid, 3);
  expect_tap("l_out-3", Site::kResidPost, 3);
  expect_tap("result_output", Site::kLogits, -1);
}

TEST(TapName, HuggingFacePaths) {
  expect_tap("model.embed_tokens", Site::kEmbed, -1);
  expect_tap("model.layers.3", Site::kResidPost, 3);
  expect_tap("model.layers.3.self_attn", Site::kAttnOut, 3);
  expect_tap("model.layers.3.self_attn.q_proj", Site::kQ, 3);
  expect_tap("model.layers.12.mlp", Site::kMlpOut, 12);
  expect_tap("model.layers.12.mlp.gate_proj", Site::kMlpPre, 12);
  expect_tap("lm_head", Site::kLogits, -1);
}

TEST(TapName, ALayerThatIsNotThere) {
  EXPECT_THAT(error_of("blocks.30.hook_resid_pre"), HasSubstr("layers are 0 to 29"));
  EXPECT_THAT(error_of("blocks.30.hook_resid_pre"), HasSubstr("blocks.30.hook_resid_pre"));
  EXPECT_THAT(error_of("l_out-99999999999999999999999999"), HasSubstr("layers are 0 to 29"));
  EXPECT_THAT(error_of("model.layers.1", 1), HasSubstr("one layer, 0"));
  EXPECT_THAT(error_of("model.layers.0", 0), HasSubstr("no layers"));
  EXPECT_TRUE(parse_tap_name("logits", 0).ok());
}

TEST(TapName, TheNearestName) {
  EXPECT_THAT(error_of("blocks.3.attn.hook_patern"), HasSubstr("\"blocks.3.attn.hook_pattern\""));
  EXPECT_THAT(error_of("blocks.3.hook_resid_pst"), HasSubstr("\"blocks.3.hook_resid_post\""));
  EXPECT_THAT(error_of("blocks.3.hook_resid_pst"), HasSubstr("layers are 0 to 29"));
  EXPECT_THAT(error_of("logit"), HasSubstr("\"logits\""));
  EXPECT_THAT(error_of("Qcurr-5"), HasSubstr("\"Qcur-5\""));
  EXPECT_THAT(error_of("blocks.77.hook_mlp_ot"), HasSubstr("\"blocks.0.hook_mlp_out\""));
}

TEST(TapName, NotNames) {
  for (const std::string text :
       {"", "blocks..hook_resid_pre", "blocks.-1.hook_resid_pre", "blocks.x.hook_resid_pre",
        "blocks.{l}.hook_resid_pre", "blocks.3.hook_embed", "Logits", "logits ", "hook_tokens.3"}) {
    EXPECT_THAT(error_of(text), HasSubstr("no tap is called \"" + text + "\"")) << text;
  }
  EXPECT_THAT(error_of("zebra"), HasSubstr("names look like \"blocks.0.hook_resid_post\""));
  EXPECT_LT(error_of(std::string(100'000, 'x')).size(), 400U);
  EXPECT_THAT(error_of("a\xFF"), HasSubstr("a\uFFFD"));
}

// These have the norm's weight in them: no tap holds that value, and none is given in its place.
TEST(TapName, WeightedNormsAreRefusedWithTheReason) {
  EXPECT_THAT(error_of("attn_norm-3"), HasSubstr("blocks.3.ln1.hook_normalized"));
  EXPECT_THAT(error_of("attn_norm-3"), HasSubstr("before the weight"));
  EXPECT_THAT(error_of("model.norm"), HasSubstr("ln_final.hook_normalized"));
  EXPECT_THAT(error_of("attn_norm-30"), HasSubstr("layers are 0 to 29"));
}

}  // namespace
}  // namespace cutaway::trace
