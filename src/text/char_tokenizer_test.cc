#include "text/char_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "core/base/testing/fails.h"
#include "core/base/testing/limited_env.h"

namespace tdock::text {
namespace {

using testing::ElementsAre;

using Ids = std::vector<int32_t>;

std::unique_ptr<CharTokenizer> Make(absl::string_view alphabet) {
  absl::StatusOr<std::unique_ptr<CharTokenizer>> made = CharTokenizer::Create(alphabet, 64);
  EXPECT_EQ(made.status(), absl::OkStatus());
  return *std::move(made);
}

std::string MakeTempFolder() {
  std::string path = testing::TempDir() + "/tokenizer_test_XXXXXX";
  return ::mkdtemp(path.data());
}

TEST(CharTokenizer, NumbersTheAlphabetAndThenTheSpecialTokens) {
  const auto tokenizer = Make("0123456789+=");
  EXPECT_EQ(tokenizer->vocab_size(), 14);
  EXPECT_EQ(tokenizer->pad_id(), 12);
  EXPECT_EQ(tokenizer->eos_id(), 13);
}

TEST(CharTokenizer, EncodesAndDecodes) {
  const auto tokenizer = Make("0123456789+=");
  EXPECT_THAT(tokenizer->Encode("37+85=").value(), ElementsAre(3, 7, 10, 8, 5, 11));
  EXPECT_THAT(tokenizer->Encode("").value(), ElementsAre());
  const Ids ids = {2, 2, 1, 13, 12};
  EXPECT_EQ(tokenizer->Decode(ids).value(), "221");
  EXPECT_EQ(tokenizer->Decode(ids, SpecialTokens::kKeep).value(), "221<eos><pad>");
}

TEST(CharTokenizer, TakesCharactersOfSeveralBytes) {
  const auto tokenizer = Make("aé€😀 \n");
  EXPECT_THAT(tokenizer->Encode("😀é€\na").value(), ElementsAre(3, 1, 2, 5, 0));
  EXPECT_EQ(tokenizer->Decode(Ids{3, 1, 2, 4, 0}).value(), "😀é€ a");
}

TEST(CharTokenizer, NamesACharacterOutsideItsVocabularyAndThePosition) {
  const auto tokenizer = Make("aé");
  const auto expect = [&](absl::string_view text, std::vector<std::string> names) {
    EXPECT_THAT(tokenizer->Encode(text).status(), Fails(absl::StatusCode::kInvalidArgument, std::move(names)));
  };
  expect("éaéb", {"\"b\"", "U+0062", "position 3"});
  expect("é😀", {"\"😀\"", "U+1F600", "position 1"});
  expect("é\xFF", {"\"\uFFFD\"", "U+FFFD", "position 1"});
}

TEST(CharTokenizer, RefusesTextThatSpellsASpecialToken) {
  const auto tokenizer = Make("<eos>pad é");
  EXPECT_THAT(tokenizer->Encode("éé <eos>").status(),
              Fails(absl::StatusCode::kInvalidArgument, {"\"<eos>\"", "position 3"}));
  EXPECT_THAT(tokenizer->Encode("<eos").value().size(), 4u);
}

TEST(CharTokenizer, ReadsSpelledSpecialTokensAsAskedFor) {
  const auto tokenizer = Make("<eos>é");
  const EncodeOptions parse{.spelled = SpelledSpecial::kParse}, as_text{.spelled = SpelledSpecial::kAsText};
  const Encoding parsed = tokenizer->EncodeWithRanges("é<eos>s", parse).value();
  EXPECT_THAT(parsed.ids, ElementsAre(5, 7, 3));
  EXPECT_THAT(parsed.ranges, ElementsAre(TextRange{0, 2}, TextRange{2, 7}, TextRange{7, 8}));
  EXPECT_THAT(tokenizer->Encode("<eos>", as_text).value(), ElementsAre(0, 1, 2, 3, 4));
  const std::vector<TextRange> first = {{0, 5}};
  EXPECT_THAT(tokenizer->Encode("<eos><eos>", {.spelled = SpelledSpecial::kParse, .as_text = first}).value(),
              ElementsAre(0, 1, 2, 3, 4, 7));
}

TEST(CharTokenizer, LooksTokensUp) {
  const auto tokenizer = Make("aé");
  EXPECT_EQ(tokenizer->TokenToId("é"), 1);
  EXPECT_EQ(tokenizer->TokenToId("<eos>"), 3);
  EXPECT_EQ(tokenizer->TokenToId("b"), std::nullopt);
  EXPECT_EQ(tokenizer->IdToToken(2), "<pad>");
  EXPECT_EQ(tokenizer->IdToToken(4), std::nullopt);
  EXPECT_TRUE(tokenizer->IsSpecial(2));
  EXPECT_FALSE(tokenizer->IsSpecial(1));
  EXPECT_FALSE(tokenizer->IsSpecial(-1));
}

TEST(CharTokenizer, StreamsWhatItDecodes) {
  const auto tokenizer = Make("aé");
  const auto stream = tokenizer->MakeStreamDecoder();
  EXPECT_EQ(stream->Push(1).value(), "é");
  EXPECT_EQ(stream->Push(3).value(), "");
  EXPECT_EQ(stream->Push(9).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stream->Finish(), "");
  EXPECT_EQ(tokenizer->MakeStreamDecoder(SpecialTokens::kKeep)->Push(3).value(), "<eos>");
}

TEST(CharTokenizer, NamesAnIdOutsideItsVocabulary) {
  const auto tokenizer = Make("ab");
  EXPECT_THAT(tokenizer->Decode(Ids{0, 4}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"position 1: ", "id 4", "highest is 3"}));
  EXPECT_EQ(tokenizer->Decode(Ids{-1}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CharTokenizer, RefusesABadAlphabet) {
  const auto refuses = [](std::vector<std::string> names) {
    return Fails(absl::StatusCode::kInvalidArgument, std::move(names));
  };
  EXPECT_THAT(CharTokenizer::Create("").status(), refuses({"alphabet", "empty"}));
  EXPECT_THAT(CharTokenizer::Create("abéa").status(), refuses({"\"a\"", "twice"}));
  EXPECT_THAT(CharTokenizer::Create("ab\xC3").status(), refuses({"UTF-8", "position 2"}));
  EXPECT_THAT(CharTokenizer::Create("ab", 0).status(), refuses({"longest text", "one token"}));
  EXPECT_THAT(CharTokenizer::FromTokens({{"ab"}, {"<e>", true}}, 1, 1).status(),
              refuses({"token 0", "\"ab\"", "one character"}));
  EXPECT_THAT(CharTokenizer::FromTokens({{"a"}, {"<e>", true}}, 0, 1).status(), refuses({"token 0", "special"}));
  EXPECT_THAT(CharTokenizer::FromTokens({{"a"}, {"", true}}, 1, 1).status(), refuses({"token 1", "empty"}));
}

TEST(Save, WritesWhatLoadTokenizerReadsBack) {
  const std::string folder = JoinPath(MakeTempFolder(), "new/model");
  const auto tokenizer = Make("ab\"\\é€😀 \n");
  ASSERT_EQ(tokenizer->Save(Env::Real(), folder), absl::OkStatus());
  EXPECT_THAT(Env::Real().List(folder).value(),
              ElementsAre("special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"));
  const auto loaded = LoadTokenizer(Env::Real(), folder);
  ASSERT_EQ(loaded.status(), absl::OkStatus());
  EXPECT_EQ((*loaded)->vocab_size(), tokenizer->vocab_size());
  EXPECT_EQ((*loaded)->eos_id(), tokenizer->eos_id());
  EXPECT_EQ((*loaded)->pad_id(), tokenizer->pad_id());
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    const auto text = [&](const Tokenizer& of) { return of.Decode(std::span(&id, 1), SpecialTokens::kKeep).value(); };
    EXPECT_EQ(text(**loaded), text(*tokenizer));
  }
  EXPECT_EQ((*loaded)->Encode("😀\"é\n").value(), tokenizer->Encode("😀\"é\n").value());
}

TEST(Save, AFullDiskLeavesTheOldFilesWhole) {
  const std::string folder = MakeTempFolder();
  ASSERT_EQ(Make("ab")->Save(Env::Real(), folder), absl::OkStatus());
  for (int64_t capacity = 0; capacity < 1500; capacity += 50) {
    LimitedEnv full(Env::Real(), capacity);
    const absl::Status saved = Make("ab")->Save(full, folder);
    if (!saved.ok()) {
      EXPECT_EQ(saved.code(), absl::StatusCode::kResourceExhausted);
    }
    EXPECT_EQ(Env::Real().List(folder).value().size(), 3u);
    EXPECT_EQ(LoadTokenizer(Env::Real(), folder).status(), absl::OkStatus());
  }
}

TEST(LoadTokenizer, NamesAMissingFile) {
  const std::string folder = MakeTempFolder();
  EXPECT_THAT(LoadTokenizer(Env::Real(), folder).status(),
              Fails(absl::StatusCode::kNotFound, {folder + "/tokenizer.json"}));
  ASSERT_EQ(WriteFileAtomically(Env::Real(), JoinPath(folder, "tokenizer.json"), "{}"), absl::OkStatus());
  EXPECT_THAT(LoadTokenizer(Env::Real(), folder).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"tokenizer.json: ", "model", "null"}));
}

}  // namespace
}  // namespace tdock::text
