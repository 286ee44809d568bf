#include "text/sentencepiece_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "core/base/testing/fails.h"
#include "text/testing/small_tokenizers.h"

namespace tdock::text {
namespace {

using small::BytesField;
using small::SmallPiece;
using small::SmallSentencePiece;
using ::testing::ElementsAre;

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
  EXPECT_THAT((*tokenizer)->Encode("a</s>").status(),
              Fails(absl::StatusCode::kInvalidArgument, {"\"</s>\"", "position 1"}));
  EXPECT_THAT((*tokenizer)->Encode("ab</s>", {.spelled = SpelledSpecial::kParse}).value(), ElementsAre(5, 2));
  const std::vector<TextRange> content = {{2, 6}};
  EXPECT_EQ((*tokenizer)->Encode("ab</s>", {.spelled = SpelledSpecial::kParse, .as_text = content}).value(),
            (*tokenizer)->Encode("ab</s>", {.spelled = SpelledSpecial::kAsText}).value());
}

absl::Status Checked(const std::string& model) { return SentencePieceTokenizer::Create(model, {}, {}).status(); }

// Matches the error of a damaged model, whose message contains `names`.
auto IsDamaged(std::vector<std::string> names) { return Fails(absl::StatusCode::kInvalidArgument, std::move(names)); }

TEST(CheckSentencePieceModel, NamesDamage) {
  const std::string good = SmallSentencePiece();
  EXPECT_THAT(Checked(""), IsDamaged({"no pieces"}));
  EXPECT_THAT(Checked(good.substr(0, good.size() - 1)), IsDamaged({"truncated", "field"}));
  EXPECT_THAT(Checked(good + SmallPiece("a", 1)), IsDamaged({"piece \"a\"", "twice"}));
  EXPECT_THAT(Checked(good + SmallPiece("", 1)), IsDamaged({"piece", "empty"}));
  EXPECT_THAT(Checked(good + SmallPiece("\xFF", 1)), IsDamaged({"piece", "UTF-8"}));
  EXPECT_THAT(Checked(good + SmallPiece("x", 9)), IsDamaged({"piece", "type 9"}));
  EXPECT_THAT(Checked(good + SmallPiece("x", 6)), IsDamaged({"piece \"x\"", "no byte"}));
  EXPECT_THAT(Checked(good + BytesField(5, BytesField(2, "x"))),
              Fails(absl::StatusCode::kUnimplemented, {"denormalizer"}));
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
  const auto checked = [&](const std::string& table) { return Checked(pieces + BytesField(3, BytesField(2, table))); };
  EXPECT_EQ(checked(Table(1U << 10)), absl::OkStatus()) << "a table of nothing";
  EXPECT_THAT(checked(Table(0)), IsDamaged({"table", "cycle"}));
  EXPECT_THAT(checked(Table(1U << 30)), IsDamaged({"table", "its end"}));
  EXPECT_THAT(checked(Table(0x100, 0x80000000 | 5)), IsDamaged({"table", "its strings"}));
  EXPECT_THAT(checked(Table(0).substr(0, 100)), IsDamaged({"table", "cut off"}));
  EXPECT_THAT(checked(Table(0) + "y"), IsDamaged({"last string", "table"}));
}

}  // namespace
}  // namespace tdock::text
