#include "text/char_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/limited_env.h"
#include "base/rng.h"
#include "text/arithmetic.h"
#include "text/tokenizer_files.h"

namespace tdock::text {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

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
  const auto tokenizer = Make(kAdditionAlphabet);
  EXPECT_EQ(tokenizer->vocab_size(), 14);
  EXPECT_EQ(tokenizer->pad_id(), 12);
  EXPECT_EQ(tokenizer->eos_id(), 13);
}

TEST(CharTokenizer, EncodesAndDecodes) {
  const auto tokenizer = Make(kAdditionAlphabet);
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
  EXPECT_EQ(tokenizer->Encode("éaéb").status().message(),
            "the character \"b\" (U+0062) at position 3 is not in the vocabulary");
  EXPECT_THAT(tokenizer->Encode("é😀").status().message(), HasSubstr("\"😀\" (U+1F600) at position 1"));
  EXPECT_THAT(tokenizer->Encode("é\xFF").status().message(), HasSubstr("\"\uFFFD\" (U+FFFD) at position 1"));
}

TEST(CharTokenizer, RefusesTextThatSpellsASpecialToken) {
  const auto tokenizer = Make("<eos>pad é");
  EXPECT_EQ(tokenizer->Encode("éé <eos>").status().message(),
            "the text spells the special token \"<eos>\" at position 3");
  EXPECT_THAT(tokenizer->Encode("<eos").value().size(), 4u);
}

TEST(CharTokenizer, ReadsSpelledSpecialTokensAsAskedFor) {
  const auto tokenizer = Make("<eos>é");
  const EncodeOptions parse{.spelled = SpelledSpecial::kParse}, as_text{.spelled = SpelledSpecial::kAsText};
  const Encoding parsed = tokenizer->EncodeWithRanges("é<eos>s", parse).value();
  EXPECT_THAT(parsed.ids, ElementsAre(5, 7, 3));
  EXPECT_THAT(parsed.ranges, ElementsAre(TextRange{0, 2}, TextRange{2, 7}, TextRange{7, 8}));
  EXPECT_THAT(tokenizer->Encode("<eos>", as_text).value(), ElementsAre(0, 1, 2, 3, 4));
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
  EXPECT_EQ(tokenizer->Decode(Ids{0, 4}).status().message(),
            "position 1: id 4 is not a token of the vocabulary, whose highest is 3");
  EXPECT_EQ(tokenizer->Decode(Ids{-1}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CharTokenizer, RefusesABadAlphabet) {
  EXPECT_THAT(CharTokenizer::Create("").status().message(), HasSubstr("empty"));
  EXPECT_THAT(CharTokenizer::Create("abéa").status().message(), HasSubstr("\"a\" comes twice"));
  EXPECT_THAT(CharTokenizer::Create("ab\xC3").status().message(), HasSubstr("not valid UTF-8 at position 2"));
  EXPECT_THAT(CharTokenizer::Create("ab", 0).status().message(), HasSubstr("at least one token"));
  EXPECT_THAT(CharTokenizer::FromTokens({{"ab"}, {"<e>", true}}, 1, 1).status().message(),
              HasSubstr("\"ab\", is not one character"));
  EXPECT_THAT(CharTokenizer::FromTokens({{"a"}, {"<e>", true}}, 0, 1).status().message(),
              HasSubstr("token 0 is not a special token"));
  EXPECT_THAT(CharTokenizer::FromTokens({{"a"}, {"", true}}, 1, 1).status().message(), HasSubstr("token 1 is empty"));
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
  EXPECT_EQ(dynamic_cast<const CharTokenizer&>(**loaded).max_length(), 64);
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
  EXPECT_EQ(LoadTokenizer(Env::Real(), folder).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(LoadTokenizer(Env::Real(), folder).status().message(), HasSubstr(folder + "/tokenizer.json"));
  ASSERT_EQ(WriteFileAtomically(Env::Real(), JoinPath(folder, "tokenizer.json"), "{}"), absl::OkStatus());
  EXPECT_THAT(LoadTokenizer(Env::Real(), folder).status().message(), HasSubstr("tokenizer.json: the model is null"));
}

TokenizerFiles SmallFiles() {
  return WriteTokenizerFiles(
      {.tokens = {{"a"}, {"b"}, {"<pad>", true}, {"<eos>", true}}, .eos_id = 3, .pad_id = 2, .max_length = 64});
}

absl::Status ReadAfter(const std::function<void(json&)>& change) {
  const TokenizerFiles files = SmallFiles();
  json tokenizer = json::parse(files.tokenizer);
  change(tokenizer);
  return ReadTokenizerFiles(tokenizer.dump(), files.tokenizer_config).status();
}

TEST(ReadTokenizerFiles, RefusesWhatItDoesNotImplementByName) {
  const std::pair<const char*, const char*> changes[] = {
      {"/normalizer", R"({"type": "NFC"})"},
      {"/pre_tokenizer", R"({"type": "ByteLevel"})"},
      {"/post_processor", R"({"type": "TemplateProcessing"})"},
      {"/truncation", R"({"max_length": 5})"},
      {"/padding", R"({"strategy": {"Fixed": 8}})"},
      {"/post_processor", R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}},
                                                                     {"SpecialToken": {"id": "<eos>", "type_id": 0}}]})"},
      {"/decoder", R"({"type": "ByteLevel"})"},
      {"/decoder", "null"},
      {"/version", R"("2.0")"},
      {"/surprise", "1"},
      {"/model/type", R"("WordPiece")"},
      {"/model/merges", R"(["a b"])"},
      {"/model/dropout", "0.1"},
      {"/model/unk_token", R"("<unk>")"},
      {"/model/end_of_word_suffix", R"("</w>")"},
      {"/model/byte_fallback", "true"},
      {"/model/ignore_merges", "true"},
      {"/model/surprise", "{}"},
      {"/added_tokens/0/special", "false"},
      {"/added_tokens/0/lstrip", "true"},
      {"/added_tokens/0/single_word", "true"},
  };
  for (const auto& [pointer, value] : changes) {
    const absl::Status read =
        ReadAfter([&](json& tokenizer) { tokenizer[json::json_pointer(pointer)] = json::parse(value); });
    EXPECT_EQ(read.code(), absl::StatusCode::kUnimplemented) << pointer << ": " << read;
    const std::string path = pointer;
    EXPECT_THAT(read.message(),
                HasSubstr(pointer == std::string("/model/type") ? "WordPiece" : path.substr(path.rfind('/') + 1)));
  }
}

TEST(ReadTokenizerFiles, RefusesDamagedFiles) {
  const std::pair<const char*, const char*> changes[] = {
      {"/model", "null"},
      {"/model/vocab", "[]"},
      {"/model/merges", "null"},
      {"/added_tokens", "{}"},
      {"/added_tokens/0", "3"},
      {"/added_tokens/0/content", "null"},
      {"/added_tokens/0/id", "-1"},
      {"/added_tokens/0/id", "1"},
      {"/added_tokens/0/id", "9"},
      {"/model/vocab/a", "1"},
      {"/model/vocab/a", "\"0\""},
      {"/model/vocab/a", "0.5"},
      {"/model/vocab/a", "99999999999999999999"},
      {"/model/vocab/c", "1000000000"},
  };
  for (const auto& [pointer, value] : changes) {
    const absl::Status read =
        ReadAfter([&](json& tokenizer) { tokenizer[json::json_pointer(pointer)] = json::parse(value); });
    EXPECT_EQ(read.code(), absl::StatusCode::kInvalidArgument) << pointer << " = " << value << ": " << read;
    EXPECT_THAT(std::string(read.message()), testing::StartsWith("tokenizer.json: "));
  }
  EXPECT_THAT(ReadTokenizerFiles("{", "{}").status().message(), HasSubstr("not JSON"));
  EXPECT_THAT(ReadTokenizerFiles("[]", "{}").status().message(), HasSubstr("not a JSON object"));
  EXPECT_EQ(ReadTokenizerFiles(R"({"a": 1, "a": 2})", "{}").status().message(),
            "tokenizer.json: has 'a' twice in one object");
  EXPECT_THAT(ReadTokenizerFiles("{}", "{\"a\xFF").status().message(), HasSubstr("tokenizer_config.json: not JSON"));
  EXPECT_THAT(ReadTokenizerFiles(std::string(17 << 20, ' '), "{}").status().message(), HasSubstr("at most 16777216"));
  EXPECT_THAT(ReadTokenizerFiles(std::string(5 << 20, '['), "{}").status().message(),
              HasSubstr("more than 32 objects and lists"));
}

TEST(ReadTokenizerFiles, ReadsSpecialTokensThatAreNotInTheModelsVocabulary) {
  const absl::Status read = ReadAfter([](json& tokenizer) {
    tokenizer["model"]["vocab"].erase("<pad>");
    tokenizer["model"]["vocab"].erase("<eos>");
  });
  EXPECT_EQ(read, absl::OkStatus());
  const absl::Status out_of_order = ReadAfter([](json& tokenizer) {
    tokenizer["model"]["vocab"].erase("<pad>");
    tokenizer["model"]["vocab"].erase("<eos>");
    std::swap(tokenizer["added_tokens"][0], tokenizer["added_tokens"][1]);
  });
  EXPECT_THAT(out_of_order.message(), HasSubstr("the id of the added token \"<eos>\" is 3, not 2"));
}

TEST(ReadTokenizerFiles, ReadsWhatTransformersAddsWhenItSaves) {
  const absl::Status read = ReadAfter([](json& tokenizer) {
    tokenizer["padding"] = json::parse(R"({"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": null,
                                           "pad_id": 2, "pad_type_id": 0, "pad_token": "<pad>"})");
    tokenizer["post_processor"] = json::parse(
        R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {}})");
  });
  EXPECT_EQ(read, absl::OkStatus());
}

TEST(ReadTokenizerFiles, RefusesAConfigurationThatWouldChangeTheText) {
  const TokenizerFiles files = SmallFiles();
  const auto read_with = [&](const char* key, const char* value) {
    json config = json::parse(files.tokenizer_config);
    config[key] = json::parse(value);
    return ReadTokenizerFiles(files.tokenizer, config.dump()).status();
  };
  EXPECT_THAT(read_with("tokenizer_class", R"("GPT2Tokenizer")").message(), HasSubstr("tokenizer_class"));
  EXPECT_THAT(read_with("clean_up_tokenization_spaces", "true").message(), HasSubstr("clean_up_tokenization_spaces"));
  EXPECT_THAT(read_with("add_bos_token", "true").message(), HasSubstr("add_bos_token"));
  EXPECT_THAT(read_with("eos_token", R"("<end>")").message(), HasSubstr("\"<end>\""));
  EXPECT_THAT(read_with("eos_token", R"("a")").message(), HasSubstr("added tokens"));
  EXPECT_THAT(read_with("pad_token", "null").message(), HasSubstr("\"pad_token\" is missing"));
  EXPECT_THAT(read_with("model_max_length", "0").message(), HasSubstr("model_max_length"));
  EXPECT_THAT(read_with("model_max_length", "1.5").message(), HasSubstr("model_max_length"));
  EXPECT_EQ(read_with("model_max_length", "1000000000000000019884624838656"), absl::OkStatus());
  EXPECT_EQ(read_with("eos_token", R"({"content": "<eos>", "lstrip": false})"), absl::OkStatus());
  EXPECT_EQ(read_with("chat_template", R"("{{ messages }}")"), absl::OkStatus());
}

TEST(ReadTokenizerFiles, RandomBytesNeverCrashIt) {
  const TokenizerFiles files = SmallFiles();
  const absl::string_view special = "[]{}:,\"\\0123456789-.eE+ntf \n\xC3\xA9";
  int accepted = 0;
  for (uint64_t seed = 0; seed < 3'000; ++seed) {
    Rng rng(seed);
    std::string texts[] = {seed % 4 == 0 ? "" : files.tokenizer, files.tokenizer_config};
    std::string& text = texts[seed % 5 == 0 ? 1 : 0];
    for (uint64_t edits = 1 + rng.Below(10); edits > 0; --edits) {
      const char c = rng.Below(3) == 0 ? static_cast<char>(rng.Below(256)) : special[rng.Below(special.size())];
      const size_t at = rng.Below(text.size() + 1);
      if (rng.Below(2) == 0 && at < text.size()) {
        text[at] = c;
      } else {
        text.insert(at, 1, c);
      }
    }
    const absl::StatusOr<TokenizerParts> read = ReadTokenizerFiles(texts[0], texts[1]);
    if (read.ok()) {
      ++accepted;
      CharTokenizer::FromTokens(read->tokens, read->eos_id, read->pad_id, read->max_length).status().IgnoreError();
    }
  }
  EXPECT_LT(accepted, 300);
}

}  // namespace
}  // namespace tdock::text
