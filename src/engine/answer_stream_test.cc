#include "engine/answer_stream.h"

#include <gtest/gtest.h>

#include <utility>

#include "engine/engine.h"
#include "text/json_tokenizer.h"
#include "text/testing/small_tokenizers.h"

namespace tdock::engine {
namespace {

// The pieces in which an answer of the bytes `said` is shown, each ended by a bar.
std::string Shown(std::vector<int32_t> said, std::vector<std::string> stops = {},
                  std::optional<size_t> text_bytes = std::nullopt) {
  const auto tokenizer = text::JsonTokenizer::Create(text::small::SmallByteLevel(), {}, {}).value();
  const std::vector<int32_t> ends = {'.'};
  const StopTexts known(std::move(stops));
  std::string shown;
  AnswerStream stream(*tokenizer, ends, known, [&](absl::string_view text) { shown += std::string(text) + "|"; });
  for (const int32_t token : said) EXPECT_TRUE(stream.Push(token).ok());
  stream.Finish(text_bytes);
  return shown;
}

TEST(AnswerStream, ShowsWholeCharactersOnly) {
  EXPECT_EQ(Shown({'a', 0xC3, 0xA9, 'b'}), "a|é|b|");
  EXPECT_EQ(Shown({'a', 0xC3}), "a|\uFFFD|");
}

TEST(AnswerStream, ShowsNeitherSpecialTokensNorEndTokens) { EXPECT_EQ(Shown({'a', 261, 'b', '.'}), "a|b|"); }

TEST(AnswerStream, HoldsBackWhatMayBeAStopText) {
  EXPECT_EQ(Shown({'a', 'b', 'c', 'd'}, {"bcd"}, 1), "a|");
  EXPECT_EQ(Shown({'a', 'b', 'c', 'e'}, {"bcd"}), "a|bce|");
  EXPECT_EQ(Shown({'a', 'b'}, {"bcd"}), "a|b|");
  EXPECT_EQ(Shown({'b', 'b', 'c', 'd'}, {"xy", "bcd"}, 1), "b|");
  EXPECT_EQ(Shown({'x', 259}, {"llo"}, 3), "x|he|");
  EXPECT_EQ(Shown({'x', 259}, {"el"}, 2), "x|h|");
  EXPECT_EQ(Shown({'x', 'l', 259}, {"lh", "xyz"}, 1), "x|") << "the first x may begin xyz";
}

TEST(AnswerStream, ShowsAStopTextThatDidNotCount) {
  EXPECT_EQ(Shown({'b', 'c', 'a'}, {"bc"}), "bca|");
  EXPECT_EQ(Shown({259, 'l', 'l'}, {"ll"}, 5), "he|llo|") << "the second one counts";
}

TEST(SaidTokens, LeavesOutWhatEndedTheAnswer) {
  const auto tokenizer = text::JsonTokenizer::Create(text::small::SmallByteLevel(), {}, {}).value();
  using Said = std::vector<int32_t>;
  const auto said = [&](Said tokens, FinishReason reason, std::optional<size_t> text_bytes = std::nullopt) {
    Completion completion;
    completion.tokens = std::move(tokens);
    completion.finish_reason = reason;
    completion.text_bytes = text_bytes;
    return SaidTokens(completion, *tokenizer).value();
  };
  EXPECT_EQ(said({'h', 'e', '.'}, FinishReason::kLength), (Said{'h', 'e', '.'}));
  EXPECT_EQ(said({'h', 0xC3}, FinishReason::kAborted), (Said{'h', 0xC3}));
  EXPECT_EQ(said({'h', 'e', '.'}, FinishReason::kEndToken), (Said{'h', 'e'}));
  EXPECT_EQ(said({'h', 'e', 261}, FinishReason::kStop), (Said{'h', 'e'})) << "<|end|>";
  EXPECT_EQ(said({'h', 'e', '.'}, FinishReason::kStop), (Said{'h', 'e', '.'})) << "a stop token that is text";
  EXPECT_EQ(said({'h', 'e', 'a', 'b'}, FinishReason::kStop, 2), (Said{'h', 'e'})) << "the stop text ab";
  EXPECT_EQ(said({'h', 'e', 259}, FinishReason::kStop, 4), (Said{'h', 'e', 256})) << "llo";
  EXPECT_EQ(said({259}, FinishReason::kStop, 0), Said{});
}

}  // namespace
}  // namespace tdock::engine
