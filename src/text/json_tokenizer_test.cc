#include "text/json_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "core/base/testing/fails.h"
#include "core/base/testing/hostile_text.h"
#include "text/testing/small_tokenizers.h"

namespace tdock::text {
namespace {

using small::AddedTokenJson;
using small::Json;
using small::SmallByteFallback;
using small::SmallByteLevel;
using ::testing::ElementsAre;

using Ids = std::vector<int32_t>;
const EncodeOptions kParse{.spelled = SpelledSpecial::kParse};

std::unique_ptr<JsonTokenizer> Make(const Json& json, const TokenizerConfig& config = {}) {
  auto made = JsonTokenizer::Create(json, config, {});
  EXPECT_EQ(made.status(), absl::OkStatus());
  return *std::move(made);
}

TEST(ByteLevelTokenizer, MergesWithinWords) {
  const auto tokenizer = Make(SmallByteLevel());
  const Encoding encoding = tokenizer->EncodeWithRanges("hello hé").value();
  EXPECT_THAT(encoding.ids, ElementsAre(259, 260, 0xC3, 0xA9));
  EXPECT_THAT(encoding.ranges, ElementsAre(TextRange{0, 5}, TextRange{5, 7}, TextRange{7, 9}, TextRange{7, 9}));
  EXPECT_EQ(tokenizer->Encode("hello hé").value(), encoding.ids);
  EXPECT_EQ(tokenizer->Decode(encoding.ids).value(), "hello hé");
  EXPECT_THAT(tokenizer->Encode("").value(), ElementsAre());
}

TEST(ByteLevelTokenizer, MergesTheEarliestPairOfAllFirst) {
  Json json = SmallByteLevel();
  json["model"]["merges"] = {"l l", "h e"};
  // Of three l, the first two; short words and long ones are merged by different code.
  EXPECT_THAT(Make(json)->Encode("lll").value(), ElementsAre(257, 'l'));
  const Ids ids = Make(json)->Encode(std::string(101, 'l')).value();
  EXPECT_EQ(ids.size(), 51u);
  EXPECT_EQ(ids.back(), 'l');
}

TEST(ByteLevelTokenizer, ReplacesWhatIsNotUtf8) {
  const auto tokenizer = Make(SmallByteLevel());
  EXPECT_EQ(tokenizer->Encode("a\xFF").value(), tokenizer->Encode("a\uFFFD").value());
  EXPECT_THAT(tokenizer->EncodeWithRanges("\xFFz").value().ranges.back(), (TextRange{3, 4}));
}

TEST(ByteLevelTokenizer, ReadsSpelledSpecialTokensAsAskedFor) {
  const auto tokenizer = Make(SmallByteLevel());
  EXPECT_THAT(tokenizer->Encode("é<|end|>").status(),
              Fails(absl::StatusCode::kInvalidArgument, {"\"<|end|>\"", "position 1"}));
  EXPECT_THAT(tokenizer->Encode("h<|end|>h", kParse).value(), ElementsAre('h', 261, 'h'));
  EXPECT_EQ(tokenizer->Encode("<|end|>", {.spelled = SpelledSpecial::kAsText})->size(), 7u);
  EXPECT_EQ(tokenizer->Decode(Ids{'h', 261}).value(), "h");
  EXPECT_EQ(tokenizer->Decode(Ids{'h', 261}, SpecialTokens::kKeep).value(), "h<|end|>");
}

TEST(ByteLevelTokenizer, SpecialTokensAreTextInTheGivenRanges) {
  for (const bool normalized : {false, true}) {
    Json json = SmallByteLevel();
    json["added_tokens"][0]["normalized"] = normalized;
    json["normalizer"] = {{"type", "NFC"}};
    const auto tokenizer = Make(json);
    const std::string text = "<|end|>e\u0301<|end|><|end|>";  // the normaliser makes one character of two
    const auto encode = [&](std::vector<TextRange> as_text) {
      return tokenizer->Encode(text, {.spelled = SpelledSpecial::kParse, .as_text = as_text}).value();
    };
    EXPECT_THAT(encode({}), ElementsAre(261, 0xC3, 0xA9, 261, 261));
    EXPECT_THAT(encode({{0, 7}, {17, 24}}),
                ElementsAre('<', '|', 'e', 'n', 'd', '|', '>', 0xC3, 0xA9, 261, '<', '|', 'e', 'n', 'd', '|', '>'));
    // One byte of it is enough, and what touches it is not.
    EXPECT_THAT(encode({{7, 11}, {13, 14}}), ElementsAre(261, 0xC3, 0xA9, '<', '|', 'e', 'n', 'd', '|', '>', 261));
  }
  const std::vector<TextRange> as_text = {{0, 1}};
  EXPECT_THAT(Make(SmallByteLevel())->Encode("a\xff", {.as_text = as_text}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"UTF-8"}));
}

TEST(ByteLevelTokenizer, ATokenIsFoundWithinOneThatIsTextInPart) {
  Json json = SmallByteLevel();
  json["added_tokens"].push_back(AddedTokenJson(262, "a<|end|>", true));
  const std::vector<TextRange> as_text = {{0, 1}};
  EXPECT_THAT(Make(json)->Encode("a<|end|>", {.spelled = SpelledSpecial::kParse, .as_text = as_text}).value(),
              ElementsAre('a', 261));
}

TEST(ByteLevelTokenizer, StreamsACharacterWithItsLastByte) {
  const auto tokenizer = Make(SmallByteLevel());
  const auto stream = tokenizer->MakeStreamDecoder();
  EXPECT_EQ(stream->Push('a').value(), "a");
  EXPECT_EQ(stream->Push(0xE2).value(), "");
  EXPECT_EQ(stream->Push(0x82).value(), "");
  EXPECT_EQ(stream->Push(0xAC).value(), "€");
  EXPECT_EQ(stream->Push(0xE2).value(), "");
  EXPECT_EQ(stream->Push('z').value(), "\uFFFDz");
  EXPECT_EQ(stream->Push(0xF0).value(), "");
  EXPECT_EQ(stream->Push(999).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stream->Finish(), "\uFFFD");
  EXPECT_EQ(stream->Push('b').value(), "b");
}

TEST(ByteFallbackTokenizer, SpellsUnknownCharactersInBytes) {
  const auto tokenizer = Make(SmallByteFallback());
  const Encoding encoding = tokenizer->EncodeWithRanges("ab é").value();
  EXPECT_THAT(encoding.ids, ElementsAre(261, 260, 258, 2 + 0xC3, 2 + 0xA9));
  EXPECT_THAT(encoding.ranges,
              ElementsAre(TextRange{0, 1}, TextRange{1, 2}, TextRange{2, 3}, TextRange{3, 5}, TextRange{3, 5}));
  EXPECT_EQ(tokenizer->Decode(encoding.ids).value(), "ab é");
  EXPECT_THAT(tokenizer->Encode("a", {.add_special_tokens = true}).value(), ElementsAre(1, 261));
}

TEST(ByteFallbackTokenizer, SkipsASpecialTokenThatIsNormalised) {
  Json json = SmallByteFallback();
  json["added_tokens"][0]["normalized"] = true;
  const auto tokenizer = Make(json);
  EXPECT_EQ(tokenizer->Decode(Ids{1, 259, 260}).value(), "ab");
  EXPECT_EQ(tokenizer->Decode(Ids{1, 259, 260}, SpecialTokens::kKeep).value(), "<s>ab");
  EXPECT_EQ(tokenizer->IdToToken(1), "<s>");
}

TEST(ByteFallbackTokenizer, StreamsARunOfBytesWhenItEnds) {
  const auto tokenizer = Make(SmallByteFallback());
  const auto stream = tokenizer->MakeStreamDecoder();
  EXPECT_EQ(stream->Push(261).value(), "a");
  EXPECT_EQ(stream->Push(2 + 0xC3).value(), "");
  EXPECT_EQ(stream->Push(2 + 0xA9).value(), "");
  EXPECT_EQ(stream->Push(260).value(), "éb");
  EXPECT_EQ(stream->Push(2 + 0xC3).value(), "");
  EXPECT_EQ(stream->Finish(), "\uFFFD");
}

TEST(JsonTokenizer, ReplacesEmptyMatches) {
  Json json = SmallByteLevel();
  const auto encoding = [&](const char* pattern, absl::string_view text) {
    json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", pattern}}}, {"content", "x"}};
    return Make(json)->EncodeWithRanges(text, kParse).value();
  };
  const Encoding ahead = encoding("(?=a)", "ab");
  EXPECT_THAT(ahead.ids, ElementsAre('x', 'a', 'b'));
  EXPECT_THAT(ahead.ranges, ElementsAre(TextRange{0, 0}, TextRange{0, 1}, TextRange{1, 2}));
  const Encoding behind = encoding("(?<=b)", "ab");
  EXPECT_THAT(behind.ids, ElementsAre('a', 'b', 'x'));
  EXPECT_THAT(behind.ranges, ElementsAre(TextRange{0, 1}, TextRange{1, 2}, TextRange{1, 2}));
  const Encoding anywhere = encoding("c*", "éc");
  EXPECT_THAT(anywhere.ids, ElementsAre('x', 0xC3, 0xA9, 'x'));
  EXPECT_THAT(anywhere.ranges, ElementsAre(TextRange{0, 0}, TextRange{0, 2}, TextRange{0, 2}, TextRange{2, 3}));
  const Encoding after_token = encoding("^", "<|end|>ab");
  EXPECT_THAT(after_token.ids, ElementsAre(261, 'x', 'a', 'b'));
  EXPECT_THAT(after_token.ranges[1], (TextRange{7, 7}));
  EXPECT_THAT(encoding("c*", "").ids, ElementsAre());
}

TEST(JsonTokenizer, NamesACharacterThatItCannotExpress) {
  Json json = SmallByteFallback();
  json["model"].erase("unk_token");
  json["model"]["byte_fallback"] = false;
  EXPECT_THAT(Make(json)->Encode("aé").status(),
              Fails(absl::StatusCode::kInvalidArgument, {"\"é\"", "U+00E9", "position 1"}));
}

TEST(JsonTokenizer, TakesWhiteSpaceAroundAddedTokensAndWholeWordsOnly) {
  Json json = SmallByteLevel();
  Json greedy = AddedTokenJson(262, "<m>", false), word = AddedTokenJson(263, "cat", false);
  greedy["lstrip"] = greedy["rstrip"] = true;
  word["single_word"] = true;
  json["added_tokens"].push_back(greedy);
  json["added_tokens"].push_back(word);
  const auto tokenizer = Make(json);
  const Encoding encoding = tokenizer->EncodeWithRanges("a <m>\n cat cats").value();
  EXPECT_THAT(encoding.ids, ElementsAre('a', 262, 263, ' ', 'c', 'a', 't', 's'));
  EXPECT_THAT(encoding.ranges[1], (TextRange{1, 7}));
}

TEST(JsonTokenizer, LooksTokensUp) {
  const auto tokenizer = Make(SmallByteLevel(), {.bos = {}, .eos = "<|end|>", .pad = {}});
  EXPECT_EQ(tokenizer->vocab_size(), 262);
  EXPECT_EQ(tokenizer->TokenToId("hello"), 259);
  EXPECT_EQ(tokenizer->TokenToId("<|end|>"), 261);
  EXPECT_EQ(tokenizer->TokenToId("none"), std::nullopt);
  EXPECT_EQ(tokenizer->IdToToken(260), "Ġh");
  EXPECT_EQ(tokenizer->IdToToken(262), std::nullopt);
  EXPECT_TRUE(tokenizer->IsSpecial(261));
  EXPECT_FALSE(tokenizer->IsSpecial(260));
  EXPECT_EQ(tokenizer->eos_id(), 261);
  EXPECT_EQ(tokenizer->pad_id(), std::nullopt);
}

TEST(JsonTokenizer, NamesAnIdThatIsNoToken) {
  const auto tokenizer = Make(SmallByteLevel());
  EXPECT_THAT(tokenizer->Decode(Ids{0, 262}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"position 1: ", "id 262", "highest is 261"}));
}

absl::Status After(const std::function<void(Json&)>& change) {
  Json json = SmallByteLevel();
  change(json);
  return JsonTokenizer::Create(json, {}, {}).status();
}

TEST(JsonTokenizer, RefusesWhatItDoesNotImplementByName) {
  const struct {
    const char* place;
    const char* value;
    std::vector<std::string> names;
  } changes[] = {
      {"/normalizer", R"({"type": "Nmt"})", {"\"Nmt\""}},
      {"/normalizer", R"({"type": "NFC", "form": 1})", {"normalizer NFC", "\"form\" = 1"}},
      {"/pre_tokenizer", R"({"type": "UnicodeScripts"})", {"\"UnicodeScripts\""}},
      {"/pre_tokenizer", R"({"type": "By\u007fLevel"})", {"By", "Level"}},
      {"/pre_tokenizer/use_words", "true", {"\"use_words\" = true"}},
      {"/pre_tokenizer",
       R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Odd", "invert": false})",
       {"\"behavior\" \"Odd\""}},
      {"/pre_tokenizer",
       R"({"type": "Split", "pattern": {"Regex": "\\b"}, "behavior": "Isolated", "invert": false})",
       {"\"\\\\b\""}},
      {"/post_processor", R"({"type": "Other"})", {"post-processor Other"}},
      {"/decoder", R"({"type": "CTC"})", {"\"CTC\""}},
      {"/decoder", R"({"type": "Replace", "pattern": {"Regex": "a"}, "content": "b"})", {"\"Regex\" \"a\""}},
      {"/model/type", R"("Unigram")", {"\"Unigram\""}},
      {"/model/dropout", "0.5", {"\"dropout\" 0.5"}},
      {"/model/end_of_word_suffix", R"("</w>")", {"\"end_of_word_suffix\" \"</w>\""}},
      {"/model/extra", "1", {"\"extra\" = 1"}},
      {"/truncation", R"({"max_length": 5})", {"\"truncation\""}},
      {"/padding", R"({"strategy": {"Fixed": 5}})", {"padding: ", "\"strategy\""}},
      {"/padding", R"({"strategy": "BatchLongest", "pad_to_multiple_of": 8})", {"\"pad_to_multiple_of\" 8"}},
      {"/padding", R"({"strategy": "BatchLongest", "odd": 8})", {"padding: ", "\"odd\" = 8"}},
      {"/extra", "1", {"\"extra\" = 1"}},
  };
  for (const auto& [place, value, names] : changes) {
    const absl::Status status = After([&](Json& json) { json[Json::json_pointer(place)] = Json::parse(value); });
    EXPECT_THAT(status, Fails(absl::StatusCode::kUnimplemented, names)) << place;
    EXPECT_TRUE(IsSafeForTerminals(status.message())) << status;
  }
}

TEST(JsonTokenizer, NamesDamage) {
  const struct {
    const char* place;
    const char* value;
    std::vector<std::string> names;
  } changes[] = {
      {"/model/vocab", "3", {"\"vocab\""}},
      {"/model/vocab/x", "1", {"\"x\"", "id 1"}},
      {"/model/vocab/hello", "-1", {"\"hello\"", "-1"}},
      {"/model/vocab/hello", "66058", {"\"hello\"", "66058", "0 to 66057", "261 tokens"}},
      {"/model/merges", R"(["h e", "x"])", {"merge 1", "\"x\""}},
      {"/model/merges", R"(["h x"])", {"merge 0", "\"hx\""}},
      {"/model/unk_token", R"("?!")", {"\"unk_token\"", "\"?!\""}},
      {"/pre_tokenizer",
       R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "add_prefix_space": false})",
       {"\"add_prefix_space\"", "false", "\"prepend_scheme\""}},
      {"/decoder",
       R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "add_prefix_space": false})",
       {"\"add_prefix_space\"", "false", "\"prepend_scheme\""}},
      {"/added_tokens/0/id", "300", {"\"<|end|>\"", "300", "not 261"}},
      {"/added_tokens/0/special", "null", {"\"special\"", "missing"}},
      {"/pre_tokenizer/add_prefix_space", "1", {"\"add_prefix_space\"", " 1,"}},
      {"/post_processor", R"({"type": "BertProcessing", "cls": ["x", 900], "sep": ["y", 1]})", {"900"}},
      {"/pre_tokenizer",
       R"({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": false})",
       {"pattern \"(\""}},
  };
  for (const auto& [place, value, names] : changes) {
    const absl::Status status = After([&](Json& json) { json[Json::json_pointer(place)] = Json::parse(value); });
    EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, names)) << place;
  }
}

TEST(JsonTokenizer, NamesASpecialTokenThatItDoesNotHave) {
  EXPECT_THAT(JsonTokenizer::Create(SmallByteLevel(), {.bos = {}, .eos = "</s>", .pad = {}}, {}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"tokenizer_config.json: \"eos_token\"", "\"</s>\""}));
}

}  // namespace
}  // namespace tdock::text
