#include "engine/answer_end.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/base/rng.h"
#include "core/base/testing/growth.h"
#include "text/json_tokenizer.h"
#include "text/testing/small_tokenizers.h"

namespace tdock::engine {
namespace {

using Texts = std::vector<std::string>;
using Ids = std::vector<int32_t>;

std::unique_ptr<text::JsonTokenizer> SmallTokenizer(const nlohmann::json& json) {
  return text::JsonTokenizer::Create(json, {}, {}).value();
}

// Gives the tokens to an answer until it ends, or has no room for more than there are.
Completion Ended(const SamplingParams& params, const Ids& tokens, const text::Tokenizer* tokenizer = nullptr,
                 bool may_end = true) {
  static const Ids ends = {261};
  const AnswerEnds answer_ends(params, ends, tokenizer);
  const auto reader = answer_ends.MakeReader();
  Completion completion;
  for (size_t i = 0; i < tokens.size() && !completion.finished; ++i) {
    completion.tokens.push_back(tokens[i]);
    EXPECT_TRUE(answer_ends.Update(completion, i + 1 == tokens.size(), may_end, reader.get()).ok());
  }
  return completion;
}

void ExpectEnd(const Completion& given, FinishReason reason, size_t tokens, std::optional<size_t> text_bytes = {}) {
  EXPECT_EQ(given.finish_reason, reason);
  EXPECT_EQ(given.finished, reason != FinishReason::kLength);
  EXPECT_EQ(given.tokens.size(), tokens);
  EXPECT_EQ(given.text_bytes, text_bytes);
}

TEST(AnswerEnds, AtAnEndToken) {
  ExpectEnd(Ended({}, {1, 2, 261, 3}), FinishReason::kEndToken, 3);
  ExpectEnd(Ended({}, {1, 2, 3}), FinishReason::kLength, 3);
  ExpectEnd(Ended({}, {1, 261}), FinishReason::kEndToken, 2);
}

TEST(AnswerEnds, NotAtAnEndTokenThatIsIgnored) {
  ExpectEnd(Ended({.ignore_eos = true}, {1, 261, 3}), FinishReason::kLength, 3);
  ExpectEnd(Ended({.ignore_eos = true, .stop_tokens = {261}}, {1, 261, 3}), FinishReason::kStop, 2);
}

TEST(AnswerEnds, AtAStopToken) {
  ExpectEnd(Ended({.stop_tokens = {7, 2}}, {1, 2, 3}), FinishReason::kStop, 2);
  ExpectEnd(Ended({.stop_tokens = {7, 261}}, {1, 261}), FinishReason::kEndToken, 2);
}

TEST(AnswerEnds, AtAStopTextThatStraddlesTokens) {
  const auto tokenizer = SmallTokenizer(text::small::SmallByteLevel());
  const Ids tokens = {'o', 258, 260, 'i', '!'};  // o hell " h" i !
  const auto ended = [&](Texts stop) { return Ended({.stop = std::move(stop)}, tokens, tokenizer.get()); };
  const Completion stopped = ended({"ll hi"});
  ExpectEnd(stopped, FinishReason::kStop, 4, 3);
  EXPECT_EQ(TextOf(stopped, *tokenizer).value(), "ohe");
  ExpectEnd(ended({"e"}), FinishReason::kStop, 2, 2);
  ExpectEnd(ended({"ohell"}), FinishReason::kStop, 2, 0);
  ExpectEnd(ended({"!"}), FinishReason::kStop, 5, 8);
  ExpectEnd(ended({"ll i", "hello"}), FinishReason::kLength, 5);
  EXPECT_EQ(TextOf(ended({"x"}), *tokenizer).value(), "ohell hi!");
}

TEST(AnswerEnds, AtTheStopTextThatIsCompleteFirst) {
  const auto tokenizer = SmallTokenizer(text::small::SmallByteLevel());
  // The longer one begins first, but the shorter one is complete first, in one token or in several.
  for (const Ids& tokens : {Ids{258, 'x'}, Ids{'h', 'e', 'l', 'l', 'x'}}) {
    const Completion stopped = Ended({.stop = {"hell", "e"}}, tokens, tokenizer.get());
    EXPECT_EQ(stopped.text_bytes, 1u);
  }
  EXPECT_EQ(Ended({.stop = {"l", "ell", "ll"}}, {'h', 'e', 'l', 'l'}, tokenizer.get()).text_bytes, 2u);
  EXPECT_EQ(Ended({.stop = {"ll", "ell"}}, {'h', 'e', 'l', 'l'}, tokenizer.get()).text_bytes, 1u);
}

TEST(AnswerEnds, AtAStopTextWithinACharacterOfSeveralTokens) {
  const auto tokenizer = SmallTokenizer(text::small::SmallByteLevel());
  const Ids tokens = {'a', 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 'b'};  // a é € b
  const auto ended = [&](Texts stop) { return Ended({.stop = std::move(stop)}, tokens, tokenizer.get()); };
  ExpectEnd(ended({"é"}), FinishReason::kStop, 3, 1);
  ExpectEnd(ended({"€"}), FinishReason::kStop, 6, 3);
  ExpectEnd(ended({"é€b"}), FinishReason::kStop, 7, 1);
  ExpectEnd(ended({"\xC2\xA9", "\xC3\xA8"}), FinishReason::kLength, 7);  // © and è share a byte with é
  EXPECT_EQ(TextOf(ended({"€"}), *tokenizer).value(), "aé");
  // What is no character becomes U+FFFD as soon as that is certain, at the end at the latest.
  ExpectEnd(Ended({.stop = {"\uFFFD"}}, {'a', 0xC3, 'b', 'c'}, tokenizer.get()), FinishReason::kStop, 3, 1);
  ExpectEnd(Ended({.stop = {"\uFFFD"}}, {'a', 0xC3}, tokenizer.get()), FinishReason::kStop, 2, 1);
}

TEST(AnswerEnds, AtAStopTextThatIsOnlyCertainWhenTheAnswerEnds) {
  // This kind of tokenizer decodes a run of bytes as a whole: a line feed shows with what follows it.
  const auto tokenizer = SmallTokenizer(text::small::SmallByteFallback());
  const int32_t line_feed = 2 + '\n';
  const SamplingParams params{.stop = {"\n"}};
  ExpectEnd(Ended(params, {259, line_feed, 260, 260}, tokenizer.get()), FinishReason::kStop, 3, 1);
  ExpectEnd(Ended(params, {259, line_feed}, tokenizer.get()), FinishReason::kStop, 2, 1);
}

TEST(AnswerEnds, NotAtAStopTextBeforeMinNewTokens) {
  const auto tokenizer = SmallTokenizer(text::small::SmallByteLevel());
  const auto ended = [&](const Ids& tokens) {
    return Ended({.min_new_tokens = 3, .stop = {"ab"}}, tokens, tokenizer.get());
  };
  ExpectEnd(ended({'a', 'b', 'c', 'd'}), FinishReason::kLength, 4);
  ExpectEnd(ended({'x', 'a', 'b', 'd'}), FinishReason::kStop, 3, 1);
  ExpectEnd(ended({'a', 'b', 'a', 'b', 'd'}), FinishReason::kStop, 4, 2);
}

TEST(AnswerEnds, NowhereBeforeItMay) {
  const auto tokenizer = SmallTokenizer(text::small::SmallByteLevel());
  const SamplingParams params{.stop_tokens = {'b'}, .stop = {"c", "d"}};
  ExpectEnd(Ended(params, {'a', 'b', 'c', 261, 'd'}, tokenizer.get(), /*may_end=*/false), FinishReason::kLength, 5);
}

TEST(AnswerEnds, SpecialTokensAreNotPartOfTheText) {
  const auto tokenizer = SmallTokenizer(text::small::SmallByteLevel());
  const SamplingParams params{.ignore_eos = true, .stop = {"ab", "end"}};
  ExpectEnd(Ended(params, {'a', 261, 'b', 'c'}, tokenizer.get()), FinishReason::kStop, 3, 0);
}

// What a search after each byte finds.
std::optional<size_t> PlainSearch(const std::string& text, const Texts& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    for (size_t begin = 0; begin < end; ++begin) {
      if (std::find(stops.begin(), stops.end(), text.substr(begin, end - begin)) != stops.end()) return begin;
    }
  }
  return std::nullopt;
}

TEST(StopTextFinder, FindsTheSameHoweverTheTextIsCut) {
  Rng rng(1);
  const auto random_text = [&](uint64_t longest) {
    std::string text;
    for (uint64_t i = 1 + rng.Below(longest); i > 0; --i) text += static_cast<char>('a' + rng.Below(3));
    return text;
  };
  int found = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    Texts stops(1 + rng.Below(3));
    for (std::string& stop : stops) stop = random_text(5);
    const std::string text = random_text(40);
    const StopTexts known(stops);
    StopTextFinder finder(known);
    std::optional<size_t> given;
    for (size_t begin = 0; begin < text.size() && !given;) {
      const size_t size = rng.Below(6);
      given = finder.Push(absl::string_view(text).substr(begin, size));
      begin += size;
    }
    ASSERT_EQ(given, PlainSearch(text, stops)) << text;
    found += given ? 1 : 0;
  }
  EXPECT_GT(found, 500);
  EXPECT_LT(found, 2900);
}

TEST(StopTextFinder, SaysWhereAStopTextHasBegun) {
  Rng rng(2);
  const auto random_text = [&](uint64_t longest) {
    std::string text;
    for (uint64_t i = 1 + rng.Below(longest); i > 0; --i) text += static_cast<char>('a' + rng.Below(2));
    return text;
  };
  for (int trial = 0; trial < 3000; ++trial) {
    Texts stops(1 + rng.Below(3));
    for (std::string& stop : stops) stop = random_text(6);
    const StopTexts known(stops);
    StopTextFinder finder(known);
    std::string text;
    for (int pieces = 0; pieces < 6; ++pieces) {
      const size_t before = text.size();
      const std::string piece = rng.Below(5) == 0 ? "" : random_text(5);
      text += piece;
      size_t first = text.size();
      for (const std::string& stop : stops) {
        for (size_t begin = 0; begin < text.size(); ++begin) {
          const bool is_whole = text.compare(begin, stop.size(), stop) == 0 && begin + stop.size() > before;
          const size_t left = text.size() - begin;
          const bool has_begun = left < stop.size() && text.compare(begin, left, stop, 0, left) == 0;
          if (is_whole || has_begun) first = std::min(first, begin);
        }
      }
      ASSERT_EQ(finder.FirstBegun(piece), first) << text;
    }
  }
}

TEST(StopTextFinder, TakesALinearTimeForLongTextsThatAlmostMatch) {
  ExpectLinear(
      [](int64_t n) {
        const StopTexts stops(
            {std::string(static_cast<size_t>(n), 'a') + "b", std::string(static_cast<size_t>(n), 'a') + "c"});
        StopTextFinder finder(stops), begun(stops);
        for (int64_t i = 0; i < n; ++i) {
          EXPECT_EQ(finder.Push("a"), std::nullopt);
          EXPECT_EQ(begun.FirstBegun("a"), 0U);
        }
      },
      500'000);
}

}  // namespace
}  // namespace tdock::engine
