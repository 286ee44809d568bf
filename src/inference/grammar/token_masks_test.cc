#include "inference/grammar/token_masks.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/testing/fails.h"
#include "inference/grammar/testing/text_matcher.h"
#include "inference/grammar/token_bytes.h"
#include "text/json_tokenizer.h"
#include "text/testing/small_tokenizers.h"

namespace tdock::inference {
namespace {

TEST(TokenBytes, KnowsPartsOfCharacters) {
  const auto tokenizer = text::JsonTokenizer::Create(text::small::SmallByteLevel(), {}, {}).value();
  const std::vector<std::string> bytes = TokenBytes(*tokenizer);
  EXPECT_EQ(bytes[0xC3], "\xC3");
  EXPECT_EQ(bytes['a'], "a");
  EXPECT_EQ(bytes[' '], " ");
  EXPECT_EQ(bytes[259], tokenizer->Decode(std::vector<int32_t>{259}).value());
  EXPECT_EQ(bytes[261], "") << "<|end|>";
  const std::vector<std::string> special = SpecialTexts(*tokenizer);
  EXPECT_EQ(special[261], "<|end|>");
  EXPECT_EQ(special['a'], "");
}

// Bytes and what goes beyond the ends of texts, objects and lists.
std::vector<std::string> MaskTokens() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* const token :
       {"{\"",  "\":", "\",\"", "\"}",          "}}", "]}",     "}]}",    "}}}}",  "[[",   "[[[[", "[{",
        "]]",   "{}",  "[]",    ", ",           "  ", " \"",    "12",     "1,",    "1}",   "1]}",  "aa",
        "aaaa", "a\"", "a\"}",  "aa\",\"b\":[", "é",  "\xa9\"", "\"a\":", "null}", "true", "\\\"", "\\u00e9\"}"}) {
    tokens.emplace_back(token);
  }
  return tokens;
}

// Looks at each token on its own.
void ExpectMask(const TokenMask& mask, const TextMatcher& matcher, const std::vector<std::string>& tokens, int32_t end,
                const std::string& text) {
  for (size_t token = 0; token < tokens.size(); ++token) {
    const bool is_end = static_cast<int32_t>(token) == end;
    const bool allowed = is_end ? matcher.may_end() : TextMatcher(matcher).Push(tokens[token]);
    ASSERT_EQ((mask[token / 64] >> (token % 64) & 1) != 0, allowed) << text << " then " << tokens[token];
  }
}

TEST(TokenMasks, HaveTheTokensWhoseBytesAreAccepted) {
  std::vector<std::string> tokens = MaskTokens();
  tokens.emplace_back("a");  // an end token that is a text as well, which no answer has
  const auto end = static_cast<int32_t>(tokens.size() - 1);
  const auto vocabulary =
      std::make_shared<const Vocabulary>(tokens, std::vector<std::string>(), std::vector<int32_t>{end, 100'000, -1});
  const std::vector<GrammarSpec> specs = {
      {},
      {.kind = GrammarSpec::Kind::kJsonSchema,
       .text = R"({"type": "object", "properties": {"a": {"type": "string", "minLength": 3, "maxLength": 7},
        "b": {"type": "array", "items": {"type": "string", "maxLength": 2}, "minItems": 2, "maxItems": 4}, "c": {"$ref": "#"}},
        "additionalProperties": {"type": "integer", "maximum": 120}})"},
      {.kind = GrammarSpec::Kind::kJsonSchema,
       .text =
           R"({"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"properties": {"a": {"enum": ["aa", "aaaaa", 12]},
        "b": {"type": "null"}}, "required": ["a"]}, {"type": "string", "pattern": "^[aé]{2,}$"}]})"},
      {.kind = GrammarSpec::Kind::kRegex, .text = "a{3,9}|(12|é)*\"?"},
      {.kind = GrammarSpec::Kind::kChoices, .choices = {"aa", "aaaaa", "{}"}},
  };
  Rng rng(7);
  for (const GrammarSpec& spec : specs) {
    const auto grammar = CompileGrammar(spec).value();
    // With so little room, everything begins anew at each token.
    for (const size_t max_bytes : {TokenMasks::kMaxBytes, size_t{1}}) {
      TokenMasks masks(grammar, vocabulary, max_bytes);
      for (int round = 0; round < (max_bytes == 1 ? 3 : 12); ++round) {
        TokenMasks::Place place = masks.Start();
        TextMatcher matcher(grammar);
        std::string text;
        for (int step = 0; step < 25; ++step) {
          const auto mask = masks.Allowed(place);
          ASSERT_NO_FATAL_FAILURE(ExpectMask(*mask, matcher, tokens, end, text));
          EXPECT_EQ(place.may_end(), matcher.may_end()) << text;
          EXPECT_EQ(place.complete(), matcher.complete()) << text;
          EXPECT_TRUE(max_bytes == 1 || masks.Allowed(place) == mask) << "kept";
          std::vector<int32_t> allowed;
          for (int32_t token = 0; token < end; ++token) {
            if (((*mask)[static_cast<size_t>(token) / 64] >> (token % 64) & 1) != 0) allowed.push_back(token);
          }
          if (allowed.empty()) break;
          // Longer tokens have higher ids.
          const int32_t token = rng.Below(2) == 0 ? allowed.back() : allowed[rng.Below(allowed.size())];
          text += tokens[static_cast<size_t>(token)];
          masks.Accept(place, token);
          ASSERT_TRUE(matcher.Push(tokens[static_cast<size_t>(token)])) << text;
        }
      }
    }
  }
}

TEST(TokenMasks, KnowHowDeepTokensGo) {
  const std::vector<std::string> tokens = MaskTokens();
  const auto vocabulary =
      std::make_shared<const Vocabulary>(tokens, std::vector<std::string>(), std::vector<int32_t>{});
  const auto grammar = CompileGrammar({}).value();
  TokenMasks masks(grammar, vocabulary);
  TokenMasks::Place place = masks.Start();
  TextMatcher matcher(grammar);
  std::string text = "{\"a\":";
  for (int depth = 1; depth <= 32; ++depth) {
    for (const char byte : text) masks.Accept(place, static_cast<uint8_t>(byte));
    ASSERT_TRUE(matcher.Push(text));
    ASSERT_NO_FATAL_FAILURE(ExpectMask(*masks.Allowed(place), matcher, tokens, -1, absl::StrCat(depth, " deep")));
    text = "[";
  }
}

TEST(TokenMasks, HaveSpecialTokensWhereCallsSpellThem) {
  std::vector<std::string> tokens = MaskTokens(), special(tokens.size());
  const auto call = static_cast<int32_t>(tokens.size());
  tokens.insert(tokens.end(), 3, "");
  special.insert(special.end(), {"<|call|>", "<|end|>", "<|other|>"});
  Grammars grammars(std::make_shared<const Vocabulary>(tokens, special, std::vector<int32_t>{}));
  GrammarSpec spec{.kind = GrammarSpec::Kind::kCalls, .calls = {{.name = "f"}}, .one_call = true};
  spec.before_call = "<|call|>f";
  spec.after_call = "<|end|>";
  spec.calls[0].before = " ";
  const auto masks = grammars.For(spec).value();
  EXPECT_EQ(grammars.For(spec).value(), masks) << "kept";
  TokenMasks::Place place = masks->Start();
  const auto only = [&](int32_t token) {
    TokenMask expected(masks->Allowed(place)->size());
    expected[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64);
    return *masks->Allowed(place) == expected;
  };
  EXPECT_TRUE(only(call));
  masks->Accept(place, call);
  EXPECT_TRUE(only('f'));
  for (const char c : std::string("f {\"a\":\"<|end|>\"}")) masks->Accept(place, c);
  EXPECT_FALSE(place.may_end());
  EXPECT_TRUE(only(call + 1));
  masks->Accept(place, call + 1);
  EXPECT_TRUE(place.complete());
}

TEST(TokenMasks, HaveNoTokenWhereTheVocabularyHasNone) {
  const auto vocabulary = std::make_shared<const Vocabulary>(std::vector<std::string>{"a", "b"},
                                                             std::vector<std::string>(), std::vector<int32_t>{1});
  TokenMasks masks(CompileGrammar({.kind = GrammarSpec::Kind::kChoices, .choices = {"ac"}}).value(), vocabulary);
  TokenMasks::Place place = masks.Start();
  EXPECT_EQ(*masks.Allowed(place), TokenMask{1});
  masks.Accept(place, 0);
  EXPECT_EQ(*masks.Allowed(place), TokenMask{0});
  masks.Accept(place, 0);  // not allowed
  EXPECT_EQ(*masks.Allowed(place), TokenMask{0});
  EXPECT_FALSE(place.may_end());
}

TEST(Grammars, KeepThoseThatWereAskedForLast) {
  const auto vocabulary =
      std::make_shared<const Vocabulary>(MaskTokens(), std::vector<std::string>(), std::vector<int32_t>{});
  Grammars grammars(vocabulary, /*max_bytes=*/1);
  const auto pattern = [](const char* text) { return GrammarSpec{.kind = GrammarSpec::Kind::kRegex, .text = text}; };
  const auto a = grammars.For(pattern("a")).value();
  EXPECT_EQ(grammars.For(pattern("a")).value(), a);
  const auto b = grammars.For(pattern("b")).value();
  EXPECT_NE(b, a);
  EXPECT_EQ(grammars.For(pattern("b")).value(), b);
  EXPECT_NE(grammars.For(pattern("a")).value(), a) << "there is room for one";
  EXPECT_THAT(grammars.For(pattern("(")).status(), Fails(absl::StatusCode::kInvalidArgument, {"pattern"}));
}

}  // namespace
}  // namespace tdock::inference
