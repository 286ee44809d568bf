#include "serve/grammar/json_acceptor.h"

#include <gtest/gtest.h>

#include <cctype>
#include <random>
#include <string>

#include "nlohmann/json.hpp"
#include "serve/grammar/token_bytes.h"
#include "serve/grammar/token_masks.h"
#include "text/json_tokenizer.h"
#include "text/testing/small_tokenizers.h"

namespace tdock::serve {
namespace {

bool IsObject(const std::string& text) {
  JsonAcceptor acceptor;
  return acceptor.Push(text) && acceptor.complete();
}

TEST(JsonAcceptor, TakesObjects) {
  for (const char* text :
       {"{}", " {\n}", R"({"a": 1})", R"({"a":[1,-0.5e+3,0,10E9],"b":{"c":null,"d":[true,false,[]]}})",
        R"({"\u00e9\n\"":"é€😀\\\/"})", R"({"a" : "" , "b" : [ ] })", R"({"a":0.0,"b":-0,"c":1e5})"}) {
    EXPECT_TRUE(IsObject(text)) << text;
    EXPECT_TRUE(nlohmann::json::accept(text)) << text;
  }
}

TEST(JsonAcceptor, TakesNothingElse) {
  for (const char* text : {"",
                           "[]",
                           "1",
                           "{",
                           "{}}",
                           "{} ",
                           "{1:2}",
                           R"({"a"})",
                           R"({"a":})",
                           R"({"a":1,})",
                           R"({"a":[1,]})",
                           R"({"a":01})",
                           R"({"a":+1})",
                           R"({"a":1.})",
                           R"({"a":.5})",
                           R"({"a":1e})",
                           R"({"a":tru})",
                           R"({"a":truee})",
                           R"({"a":"\x"})",
                           R"({"a":"\u12g4"})",
                           R"({"a":"\ud800"})",
                           "{\"a\":\"\n\"}",
                           "{\"a\":\"\xff\"}",
                           "{\"a\":\"\xc3\"}",
                           "{\"a\":\"\xed\xa0\x80\"}",
                           "{\"a\":\"\xc0\x80\"}",
                           R"({"a":[1}})",
                           R"({"a" 1})"}) {
    EXPECT_FALSE(IsObject(text)) << text;
  }
}

TEST(JsonAcceptor, BoundsWhatAModelCouldRepeatForEver) {
  EXPECT_TRUE(IsObject(std::string(40, ' ') + "{}"));
  EXPECT_FALSE(IsObject(std::string(41, ' ') + "{}"));
  const auto nested = [](size_t lists) { return "{\"a\":" + std::string(lists, '[') + std::string(lists, ']') + "}"; };
  EXPECT_TRUE(IsObject(nested(31)));
  EXPECT_FALSE(IsObject(nested(32)));
}

// Whatever is put together from bytes that are accepted is JSON as nlohmann reads it.
TEST(JsonAcceptor, AgreesWithAParserOnRandomTexts) {
  std::mt19937 random(1);
  const std::string alphabet = "{}[]\":,\\ue0129.-+Etrfalsn \n\xc3\xa9\xe2\x82\xac";
  int complete = 0;
  for (int round = 0; round < 3000; ++round) {
    JsonAcceptor acceptor;
    std::string text;
    for (int i = 0; i < 3000 && !acceptor.complete(); ++i) {
      JsonAcceptor next = acceptor;
      const char byte = alphabet[random() % alphabet.size()];
      // No number so long that nlohmann has no value for it.
      const auto digits_at = [&](size_t back) {
        return text.size() >= back && std::isdigit(text[text.size() - back]) != 0;
      };
      if (std::isdigit(byte) != 0 && digits_at(1) && digits_at(2)) continue;
      if (!next.Push(byte)) continue;
      acceptor = next;
      text += byte;
    }
    if (!acceptor.complete()) continue;
    ++complete;
    EXPECT_TRUE(nlohmann::json::accept(text)) << text;
  }
  EXPECT_GT(complete, 1000);
}

TEST(TokenBytes, KnowsPartsOfCharacters) {
  const auto tokenizer = text::JsonTokenizer::Create(text::small::SmallByteLevel(), {}, {}).value();
  const std::vector<std::string> bytes = TokenBytes(*tokenizer);
  EXPECT_EQ(bytes[0xC3], "\xC3");
  EXPECT_EQ(bytes['a'], "a");
  EXPECT_EQ(bytes[' '], " ");
  EXPECT_EQ(bytes[259], tokenizer->Decode(std::vector<int32_t>{259}).value());
  EXPECT_EQ(bytes[261], "") << "<|end|>";
}

TEST(TokenMasks, HaveTheTokensWhoseBytesAreAccepted) {
  std::vector<std::string> bytes = {"{",    "}",         "{}", "{\"", "\":",  "a",   "1",
                                    "true", "\"a\": tr", "",   "}}",  "\xc3", "\xa9"};
  const std::vector<int32_t> ends = {9, 5};  // the second one is a text as well, which no object has then
  TokenMasks masks(bytes, ends);
  for (const char* text : {"", "{", "{\"", "{\"a\":", "{\"a\":1", "{\"a\":{\"b\":2", "{\"\xc3", "{}"}) {
    JsonAcceptor acceptor;
    ASSERT_TRUE(acceptor.Push(text));
    const auto mask = masks.For(acceptor);
    for (size_t token = 0; token < bytes.size(); ++token) {
      JsonAcceptor after = acceptor;
      const bool is_end = token == 9 || token == 5;
      const bool allowed = acceptor.complete() ? is_end : !is_end && !bytes[token].empty() && after.Push(bytes[token]);
      EXPECT_EQ((*mask)[0] >> token & 1, allowed ? 1U : 0U) << text << " then " << bytes[token];
    }
    EXPECT_EQ(masks.For(acceptor), mask) << "kept";
  }
}

}  // namespace
}  // namespace tdock::serve
