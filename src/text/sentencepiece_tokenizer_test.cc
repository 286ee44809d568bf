#include "text/sentencepiece_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "text/testing/small_tokenizers.h"

namespace tdock::text {
namespace {

using small::BytesField;
using small::SmallPiece;
using small::SmallSentencePiece;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SentencePieceTokenizer, EncodesAndDecodesAsItsLibrary) {
  const auto tokenizer =
      SentencePieceTokenizer::Create(SmallSentencePiece(), {.bos = {}, .eos = {}, .pad = {}, .add_bos = true}, {});
  ASSERT_EQ(tokenizer.status(), absl::OkStatus());
  const Encoding encoding = (*tokenizer)->EncodeWithRanges("ab a").value();
  EXPECT_THAT(encoding.ids, ElementsAre(5, 3, 4));
  EXPECT_THAT(encoding.ranges, ElementsAre(TextRange{0, 2}, TextRange{2, 3}, TextRange{3, 4}));
  EXPECT_EQ((*tokenizer)->Decode(encoding.ids).value(), "ab a");
  EXPECT_THAT((*tokenizer)->Encode("a", {.add_special_tokens = true}).value(), ElementsAre(1, 3, 4));
  EXPECT_EQ((*tokenizer)->eos_id(), 2);
  EXPECT_EQ((*tokenizer)->pad_id(), std::nullopt);
  EXPECT_THAT((*tokenizer)->Encode("a</s>").status().message(), HasSubstr("\"</s>\" at position 1"));
  EXPECT_THAT((*tokenizer)->Encode("ab</s>", {.spelled = SpelledSpecial::kParse}).value(), ElementsAre(5, 2));
  const std::vector<TextRange> content = {{2, 6}};
  EXPECT_EQ((*tokenizer)->Encode("ab</s>", {.spelled = SpelledSpecial::kParse, .as_text = content}).value(),
            (*tokenizer)->Encode("ab</s>", {.spelled = SpelledSpecial::kAsText}).value());
}

std::string Refusal(const std::string& model) {
  return std::string(SentencePieceTokenizer::Create(model, {}, {}).status().message());
}

TEST(CheckSentencePieceModel, NamesDamage) {
  const std::string good = SmallSentencePiece();
  EXPECT_THAT(Refusal(""), HasSubstr("no pieces"));
  EXPECT_THAT(Refusal(good.substr(0, good.size() - 1)), HasSubstr("is truncated within a field"));
  EXPECT_THAT(Refusal(good + SmallPiece("a", 1)), HasSubstr("the piece \"a\" comes twice"));
  EXPECT_THAT(Refusal(good + SmallPiece("", 1)), HasSubstr("a piece is empty"));
  EXPECT_THAT(Refusal(good + SmallPiece("\xFF", 1)), HasSubstr("is not UTF-8"));
  EXPECT_THAT(Refusal(good + SmallPiece("x", 9)), HasSubstr("a piece is of type 9"));
  EXPECT_THAT(Refusal(good + SmallPiece("x", 6)), HasSubstr("names no byte"));
  EXPECT_THAT(Refusal(good + BytesField(5, BytesField(2, "x"))), HasSubstr("denormalizer is not supported"));
}

// A normalisation table of 256 units, of which the first is `first`, and a string.
std::string Table(uint32_t first, uint32_t other = 0x80000000) {
  std::string table(4, '\0');
  const uint32_t size = 256 * 4;
  std::memcpy(table.data(), &size, 4);
  for (int i = 0; i < 256; ++i) {
    table.append(reinterpret_cast<const char*>(i == 0 ? &first : &other), 4);
  }
  return table + std::string("x\0", 2);
}

TEST(CheckSentencePieceModel, RefusesATableThatPointsOutOfItself) {
  const std::string pieces = SmallPiece("<unk>", 2) + SmallPiece("a", 1);
  const auto refusal = [&](const std::string& table) { return Refusal(pieces + BytesField(3, BytesField(2, table))); };
  EXPECT_EQ(refusal(Table(1U << 10)), "") << "a table of nothing";
  EXPECT_THAT(refusal(Table(0)), HasSubstr("has a cycle"));
  EXPECT_THAT(refusal(Table(1U << 30)), HasSubstr("points past its end"));
  EXPECT_THAT(refusal(Table(0x100, 0x80000000 | 5)), HasSubstr("points past its strings"));
  EXPECT_THAT(refusal(Table(0).substr(0, 100)), HasSubstr("cut off"));
  EXPECT_THAT(refusal(Table(0) + "y"), HasSubstr("does not end"));
}

}  // namespace
}  // namespace tdock::text
