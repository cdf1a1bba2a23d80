// Taps by name, pattern, layer, head and window, from text.
#include "trace/tap_selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cutaway::trace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A model of 6 layers and 9 heads, without what mixtures and learned positions have.
TapDomain domain() {
  TapDomain out;
  out.n_layers = 6;
  out.n_heads = 9;
  out.sites.set();
  for (const Site site :
       {Site::kPosEmbed, Site::kRouterLogits, Site::kExpertIndices, Site::kExpertWeights}) {
    out.sites.reset(static_cast<size_t>(site));
  }
  return out;
}

std::vector<std::string> names(const TapQuery& query) {
  const auto selection = parse_taps(query, domain());
  EXPECT_TRUE(selection.ok()) << selection.error().message;
  std::vector<std::string> out;
  if (!selection.ok()) return out;
  for (const TapName& tap : selection->taps) out.push_back(tap_name(tap.site, tap.layer));
  return out;
}

Error error_of(const TapQuery& query) {
  const auto selection = parse_taps(query, domain());
  EXPECT_FALSE(selection.ok());
  return selection.ok() ? Error{ErrorCode::kIo, "none"} : selection.error();
}

TEST(TapSelection, NamesAndPatterns) {
  EXPECT_THAT(names({{"logits", "blocks.3.attn.hook_pattern"}, "", "", "", ""}),
              ElementsAre("blocks.3.attn.hook_pattern", "logits"));
  EXPECT_THAT(names({{"pattern-3"}, "", "", "", ""}), ElementsAre("blocks.3.attn.hook_pattern"));
  EXPECT_EQ(names({{"pattern"}, "", "", "", ""}).size(), 6u);
  EXPECT_EQ(names({{"blocks.*.attn.hook_pattern"}, "", "", "", ""}),
            names({{"hook_pattern"}, "", "", "", ""}));
  EXPECT_THAT(names({{"blocks.1-2.hook_resid_post"}, "", "", "", ""}),
              ElementsAre("blocks.1.hook_resid_post", "blocks.2.hook_resid_post"));
  EXPECT_THAT(names({{"ln1.scale-0", "ln_final.scale"}, "", "", "", ""}),
              ElementsAre("blocks.0.ln1.hook_scale", "ln_final.hook_scale"));
  EXPECT_THAT(names({{"scores-5"}, "", "", "", ""}), ElementsAre("blocks.5.attn.hook_attn_scores"));
  EXPECT_THAT(names({{"l_out-2", "*hook_z"}, "2", "", "", ""}),
              ElementsAre("blocks.2.attn.hook_z", "blocks.2.hook_resid_post"));
  EXPECT_THAT(names({{"pattern-3,logits"}, "", "", "", ""}),
              ElementsAre("blocks.3.attn.hook_pattern", "logits"));
  EXPECT_EQ(names({{"blocks.1:3.hook_resid_post"}, "", "", "", ""}),
            names({{"blocks.1-2.hook_resid_post"}, "", "", "", ""}));
  // Names that a pattern means too are there once.
  EXPECT_EQ(names({{"z", "z-3"}, "", "", "", ""}).size(), 6u);
}

TEST(TapSelection, AllIsWhatTheModelHas) {
  // 24 sites of a block in 6 layers (3 of a router are not there), 5 outside (no pos_embed).
  EXPECT_EQ(names({{"all"}, "", "", "", ""}).size(), 21u * 6 + 5);
  EXPECT_EQ(names({{"all"}, "0,3-5", "", "", ""}).size(), 21u * 4 + 5);
}

TEST(TapSelection, LayersAndHeads) {
  const auto selection = parse_taps({{"z"}, "0,3:5,5", "8,0-1", "", ""}, domain());
  ASSERT_TRUE(selection.ok());
  EXPECT_THAT(selection->layers, ElementsAre(0, 3, 4, 5));
  EXPECT_THAT(selection->heads, ElementsAre(0, 1, 8));
  EXPECT_EQ(selection->taps.size(), 4u);
  const auto every = parse_taps({{"z"}, "", "0-8", "", ""}, domain());
  ASSERT_TRUE(every.ok());
  EXPECT_TRUE(every->heads.empty());
}

TapRange text_range(const std::string& positions, int64_t n) {
  const auto selection = parse_taps({{"z"}, "", "", positions, ""}, domain());
  EXPECT_TRUE(selection.ok()) << selection.error().message;
  const auto range = selection->range_of_text(n);
  EXPECT_TRUE(range.ok()) << range.error().message;
  return range.ok() ? *range : TapRange{};
}

TEST(TapSelection, Windows) {
  const auto expect = [](const std::string& text, int64_t begin, int64_t end) {
    const TapRange range = text_range(text, 20);
    EXPECT_EQ(range.begin, begin) << text;
    EXPECT_EQ(range.end, end) << text;
  };
  expect("", 0, 20);
  expect("0:16", 0, 16);
  expect(":7", 0, 7);
  expect("-4:", 16, 20);
  expect("-4:-1", 16, 19);
  expect("5", 5, 6);
  expect("-1", 19, 20);
  expect("3-5", 3, 6);
  expect("3:-3", 3, 17);
  const auto beyond = parse_taps({{"z"}, "", "", "0:21", ""}, domain())->range_of_text(20);
  ASSERT_FALSE(beyond.ok());
  EXPECT_THAT(beyond.error().message, HasSubstr("0:20"));
  EXPECT_FALSE(parse_taps({{"z"}, "", "", "-21:", ""}, domain())->range_of_text(20).ok());
}

TEST(TapSelection, StepsArePositionsThatChose) {
  const auto of = [](const std::string& positions, const std::string& steps) {
    // 10 tokens of a prompt, 5 of an answer, the last of which was not computed.
    const TapRange range =
        parse_taps({{"z"}, "", "", positions, steps}, domain())->range_of_run(14, 9);
    return std::pair{range.begin, range.end};
  };
  EXPECT_EQ(of("", "0:4"), std::pair(int64_t{9}, int64_t{13}));
  EXPECT_EQ(of("", "-1"), std::pair(int64_t{13}, int64_t{14}));
  EXPECT_EQ(of("", "0:100"), std::pair(int64_t{9}, int64_t{14}));
  EXPECT_EQ(of("0:10", "0:4"), std::pair(int64_t{9}, int64_t{10}));
  const auto none = of("0:5", "0:4");
  EXPECT_EQ(none.first, none.second);
}

TEST(TapSelection, ErrorsSayWhatWouldDo) {
  for (const char* empty : {"5:2", "4:4", "3:0", "-2:-5"}) {
    EXPECT_THAT(error_of({{"z"}, "", "", empty, ""}).message,
                HasSubstr("\"" + std::string(empty) + "\", which holds nothing; it takes"));
  }
  EXPECT_THAT(error_of({{"patern"}, "", "", "", ""}).message, HasSubstr("no tap is called"));
  EXPECT_THAT(error_of({{"blocks.3.attn.hook_patern"}, "", "", "", ""}).message,
              HasSubstr("\"blocks.3.attn.hook_pattern\""));
  EXPECT_THAT(error_of({{"pattern-6"}, "", "", "", ""}).message, HasSubstr("layers are 0 to 5"));
  EXPECT_THAT(error_of({{"blocks.3-6.hook_z"}, "", "", "", ""}).message, HasSubstr("0 to 5"));
  EXPECT_THAT(error_of({{"zebra*"}, "", "", "", ""}).message, HasSubstr("zebra*"));
  EXPECT_EQ(error_of({{"router_logits"}, "", "", "", ""}).code, ErrorCode::kUnsupported);
  EXPECT_THAT(error_of({{"hook_pos_embed"}, "", "", "", ""}).message, HasSubstr("no such tap"));
  EXPECT_THAT(error_of({{"logits", "logits"}, "", "", "", ""}).message, HasSubstr("named twice"));
  EXPECT_EQ(error_of({{"l_out-3"}, "0-2", "", "", ""}).field, "layers");
  for (const char* bad : {"6", "-1", "2-1", "a", "1,,2", "1,", "3:9"}) {
    const Error error = error_of({{"z"}, bad, "", "", ""});
    EXPECT_EQ(error.field, "layers") << bad;
    EXPECT_THAT(error.message, HasSubstr("0 to 5")) << bad;
  }
  EXPECT_THAT(error_of({{"z"}, "3-5,4", "", "", ""}).message, HasSubstr("layers has 4 twice"));
  EXPECT_THAT(error_of({{"z"}, "", "9", "", ""}).message, HasSubstr("0 to 8"));
  EXPECT_THAT(error_of({{"z"}, "", "", "0:2,5", ""}).message, HasSubstr("takes one range"));
  for (const Error& error :
       {error_of({{"z"}, "", "", "x", ""}), error_of({{"z"}, "", "", "", "x"})}) {
    EXPECT_THAT(error.message, HasSubstr("an index or a range, like 2-5"));
    EXPECT_THAT(error.message, ::testing::Not(HasSubstr("several")));
  }
  for (const char* bad : {":0", "5:5", "7:3", "x", "1:2:3", "-1:-1"}) {
    EXPECT_EQ(error_of({{"z"}, "", "", bad, ""}).field, "positions") << bad;
    EXPECT_EQ(error_of({{"z"}, "", "", "", bad}).field, "steps") << bad;
  }
  // Many stars take no time.
  std::string stars;
  for (int i = 0; i < 2000; ++i) stars += "*k";
  EXPECT_THAT(error_of({{stars}, "", "", "", ""}).message, HasSubstr("no tap"));
}

}  // namespace
}  // namespace cutaway::trace
