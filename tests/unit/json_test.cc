#include "base/json.h"

#include <gtest/gtest.h>

namespace cutaway {
namespace {

TEST(Json, KeysKeepTheirOrderAndNumbersTheirKind) {
  const auto json = parse_json(R"({"b":1,"a":1.0,"c":[-3,18446744073709551615,1e2]})");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(to_text(*json), R"({"b":1,"a":1.0,"c":[-3,18446744073709551615,100.0]})");
}

TEST(Json, WhatIsNotJsonIsAnError) {
  for (const char* text : {"", "{", "[1,]", "nul", "\"\xFF\"", "1e999", "[-1e400]", "{\"a\":1}x"}) {
    const auto json = parse_json(text);
    ASSERT_FALSE(json.ok()) << text;
    EXPECT_EQ(json.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_FALSE(parse_json(std::string(100'000, '[')).ok());
  EXPECT_TRUE(parse_json(std::string(500, '[') + std::string(500, ']')).ok());
}

TEST(Json, WhatPeopleWriteHasEveryKeyOnce) {
  for (const char* text : {R"({"a":1,"a":1})", R"([{"b":{"a":1,"c":[{"a":2}],"a":3}}])"}) {
    EXPECT_TRUE(parse_json(text).ok()) << text;
    const auto json = parse_written_json(text);
    ASSERT_FALSE(json.ok()) << text;
    EXPECT_EQ(json.error().message, R"("a" is there twice in one object)");
  }
  const char* sound = R"({"a":{"a":[{"a":1},{"a":2}]},"b":"a","c":{"a":null}})";
  const auto json = parse_written_json(sound);
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(to_text(*json), sound);
  EXPECT_EQ(parse_written_json("{").error().message, parse_json("{").error().message);
}

TEST(Json, ALineStaysALine) {
  EXPECT_EQ(to_text(Json("a\u2028\u2029\u0085\n")), "\"a\\u2028\\u2029\\u0085\\n\"");
  EXPECT_EQ(to_text(Json("\xE2\x82")), "\"\xEF\xBF\xBD\"");
}

}  // namespace
}  // namespace cutaway
