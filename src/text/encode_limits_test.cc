// What every kind of tokenizer refuses before it takes time and memory, and that its time grows with the text alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/growth.h"
#include "text/char_tokenizer.h"
#include "text/json_tokenizer.h"
#include "text/sentencepiece_tokenizer.h"
#include "text/testing/small_tokenizers.h"
#include "text/tokenizer.h"

namespace tdock::text {
namespace {

using small::BytesField;
using small::Json;
using small::SmallByteFallback;
using small::SmallByteLevel;
using small::SmallPiece;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument, kOutOfRange = absl::StatusCode::kOutOfRange;

std::unique_ptr<Tokenizer> Made(const Json& json) { return JsonTokenizer::Create(json, {}, {}).value(); }

Json With(Json json, const char* place, const char* value) {
  json[Json::json_pointer(place)] = Json::parse(value);
  return json;
}

// Pieces that spell all bytes, of which unknown characters are made; spaces are kept.
std::string SentencePieceOfBytes() {
  std::string model = SmallPiece("<unk>", 2) + SmallPiece("<s>", 3) + SmallPiece("</s>", 3);
  for (const char* text : {"▁", "a", "▁ab"}) model += SmallPiece(text, 1);
  for (int byte = 0; byte < 256; ++byte) {
    const char* digits = "0123456789ABCDEF";
    model += SmallPiece(absl::StrCat("<0x", std::string{digits[byte / 16], digits[byte % 16]}, ">"), 6);
  }
  // byte_fallback is field 35 of the trainer's part, remove_extra_whitespaces field 4 of the normalizer's.
  return model + BytesField(2, std::string("\x18\x01\x98\x02\x01", 5)) + BytesField(3, std::string("\x20\x00", 2));
}

struct NamedTokenizer {
  std::string name;
  std::unique_ptr<Tokenizer> tokenizer;
};

std::vector<NamedTokenizer> EveryKind() {
  std::vector<NamedTokenizer> kinds;
  kinds.push_back({"bytes", Made(SmallByteLevel())});
  kinds.push_back({"bytes, composed", Made(With(SmallByteLevel(), "/normalizer", R"({"type": "NFKC"})"))});
  kinds.push_back({"bytes, stripped", Made(With(SmallByteLevel(), "/normalizer",
                                                R"({"type": "Strip", "strip_left": true, "strip_right": true})"))});
  kinds.push_back({"fallback", Made(SmallByteFallback())});
  kinds.push_back({"characters", CharTokenizer::Create("abhelo <|nd>").value()});
  kinds.push_back({"sentencepiece", SentencePieceTokenizer::Create(small::SmallSentencePiece(), {}, {}).value()});
  kinds.push_back({"sentencepiece of bytes", SentencePieceTokenizer::Create(SentencePieceOfBytes(), {}, {}).value()});
  return kinds;
}

TEST(Encode, EndsAtTheMostTokensAndNotBefore) {
  const std::string texts[] = {"", "a", "hello ab a",
                               "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                               "a b a b ab ab hello hello h h a b"};
  for (const auto& [name, tokenizer] : EveryKind()) {
    for (const std::string& text : texts) {
      const std::vector<int32_t> ids = tokenizer->Encode(text).value();
      for (const size_t most : {size_t{0}, size_t{1}, ids.size() / 2, ids.size(), ids.size() + 1}) {
        const auto limited = tokenizer->Encode(text, {.max_tokens = most});
        const auto with_ranges = tokenizer->EncodeWithRanges(text, {.max_tokens = most});
        if (ids.size() <= most) {
          EXPECT_EQ(limited.value(), ids) << name << ": " << text;
          EXPECT_EQ(with_ranges.value().ids, ids) << name << ": " << text;
        } else {
          const auto fails = Fails(kOutOfRange, {absl::StrCat("more than ", most, " tokens")});
          EXPECT_THAT(limited.status(), fails) << name << ": " << text;
          EXPECT_THAT(with_ranges.status(), fails) << name << ": " << text;
        }
      }
    }
  }
}

TEST(Encode, CountsTheTokensThatAreAdded) {
  const auto tokenizer = Made(SmallByteFallback());
  EXPECT_EQ(tokenizer->Encode("ab", {.add_special_tokens = true, .max_tokens = 3})->size(), 3U);
  EXPECT_THAT(tokenizer->Encode("ab", {.add_special_tokens = true, .max_tokens = 2}).status(),
              Fails(kOutOfRange, {"more than 2 tokens"}));
}

TEST(Encode, EndsWithTheErrorOfItsStopCheck) {
  const std::string text(150'000, 'a');
  for (const auto& [name, tokenizer] : EveryKind()) {
    int64_t polls = 0;
    EXPECT_TRUE(tokenizer->Encode(text, {.stop = [&polls] { return ++polls, absl::OkStatus(); }}).ok()) << name;
    const int64_t all = polls;
    EXPECT_GE(all, 2) << name;
    for (int64_t most = 0; most < all; most += 1 + all / 8) {
      polls = 0;
      const StopCheck stop = [&polls, most] {
        return ++polls > most ? absl::CancelledError("enough") : absl::OkStatus();
      };
      EXPECT_EQ(tokenizer->Encode(text, {.stop = stop}).status(), absl::CancelledError("enough")) << name;
      EXPECT_EQ(polls, most + 1) << name;
    }
  }
}

// Nothing but the length of a text is looked at that certainly has too many tokens.
TEST(Encode, RefusesTextThatIsFarTooLongUnread) {
  const std::string text = std::string(1 << 20, 'a') + "\xFF<|end|>";
  for (const auto& [name, tokenizer] : EveryKind()) {
    if (!tokenizer->max_token_bytes()) continue;
    int64_t polls = 0;
    const StopCheck stop = [&polls] { return ++polls, absl::OkStatus(); };
    EXPECT_THAT(tokenizer->Encode(text, {.max_tokens = 100, .stop = stop}).status(),
                Fails(kOutOfRange, {"100 tokens", absl::StrCat(text.size(), " bytes"),
                                    absl::StrCat("more than ", *tokenizer->max_token_bytes())}))
        << name;
    EXPECT_EQ(polls, 0) << name;
  }
}

TEST(MaxTokenBytes, IsOfTheLongestTokenAndWhatNormalizersTake) {
  const auto of = [](const Json& json) { return Made(json)->max_token_bytes(); };
  EXPECT_EQ(of(SmallByteLevel()), 7U) << "<|end|>";
  Json json = SmallByteLevel();
  json["added_tokens"] = Json::array();
  EXPECT_EQ(of(json), 5U) << "hello";
  json["model"]["vocab"]["\xC4\xA0\xC4\xA0\xC4\xA0\xC4\xA0\xC4\xA0\xC4\xA0"] = 261;
  EXPECT_EQ(of(json), 6U) << "six spaces, which the vocabulary spells with two bytes each";
  EXPECT_EQ(of(SmallByteFallback()), 6U) << "<0x00>";
  const char* shortens = R"({"type": "Replace", "pattern": {"String": "aaaa"}, "content": "bc"})";
  EXPECT_EQ(of(With(SmallByteLevel(), "/normalizer", shortens)), 10U) << "hello, of which each letter may be two";
  EXPECT_GE(of(With(SmallByteLevel(), "/normalizer", R"({"type": "NFC"})")), 15U) << "hello, each letter of U+1FEF";
}

TEST(MaxTokenBytes, IsNoneWhereTextMayVanish) {
  const struct {
    const char* place;
    const char* value;
  } changes[] = {
      {"/normalizer", R"({"type": "Strip", "strip_left": true, "strip_right": false})"},
      {"/normalizer", R"({"type": "Replace", "pattern": {"String": "a"}, "content": ""})"},
      {"/normalizer", R"({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "a"})"},
      {"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"},
                          {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}]})"},
      {"/pre_tokenizer",
       R"({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]})"},
      {"/added_tokens/0/rstrip", "true"},
      {"/added_tokens/0/lstrip", "true"},
  };
  for (const auto& [place, value] : changes) {
    EXPECT_EQ(Made(With(SmallByteLevel(), place, value))->max_token_bytes(), std::nullopt) << value;
  }
  Json fused = SmallByteFallback();
  fused["model"]["byte_fallback"] = false;
  EXPECT_EQ(Made(fused)->max_token_bytes(), std::nullopt);
  fused["model"]["fuse_unk"] = false;
  EXPECT_EQ(Made(fused)->max_token_bytes(), 6U);
  EXPECT_EQ(SentencePieceTokenizer::Create(small::SmallSentencePiece(), {}, {}).value()->max_token_bytes(),
            std::nullopt);
  EXPECT_EQ(SentencePieceTokenizer::Create(SentencePieceOfBytes(), {}, {}).value()->max_token_bytes(), 6U);
  EXPECT_EQ(CharTokenizer::Create("aé€").value()->max_token_bytes(), 5U) << "<pad>";
}

TEST(Encode, TakesATimeThatGrowsWithTheText) {
  for (const auto& [name, tokenizer] : EveryKind()) {
    if (name == "bytes, stripped" || name == "sentencepiece") continue;  // as others
    SCOPED_TRACE(name);
    ExpectLinear(
        [&](int64_t n) {
          std::string text;
          for (int64_t i = 0; i < n; ++i) text += "hello ab ";
          EXPECT_TRUE(tokenizer->EncodeWithRanges(text).ok());
        },
        2000);
  }
}

// What looks at all of a word for each token of it takes hours.
TEST(Encode, OfAHugeWordTakesATimeThatHardlyGrowsFaster) {
  std::string word;
  for (int i = 0; i < 100'000; ++i) word += "hel";
  EXPECT_EQ(Made(SmallByteLevel())->Encode(word)->size(), 200'000U);
  word.clear();
  for (int i = 0; i < 100'000; ++i) word += "ab";
  EXPECT_EQ(Made(SmallByteFallback())->Encode(word)->size(), 100'001U);
}

TEST(Encode, TakesATimeThatGrowsWithTheTextWhereTokensTakeBlanks) {
  Json json = SmallByteLevel();
  json["added_tokens"].push_back(small::AddedTokenJson(262, " ", false));
  json["added_tokens"][1]["rstrip"] = json["added_tokens"][1]["lstrip"] = true;
  const auto tokenizer = Made(json);
  ExpectLinear([&](int64_t n) { EXPECT_TRUE(tokenizer->Encode(std::string(static_cast<size_t>(n), ' ')).ok()); }, 4000);
}

// ---- Tokenizers that make much of little.

Json Doubles(const char* kind, const char* letter, int times) {
  Json steps = Json::array();
  for (int i = 0; i < times; ++i) {
    steps.push_back({{"type", "Replace"}, {"pattern", {{kind, letter}}}, {"content", std::string(letter) + letter}});
  }
  return steps;
}

absl::Status Created(const Json& json) { return JsonTokenizer::Create(json, {}, {}).status(); }

TEST(JsonTokenizer, RefusesNormalizersThatMakeMuchOfALetter) {
  Json json = SmallByteLevel();
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", Doubles("String", "a", 40)}};
  EXPECT_THAT(Created(json), Fails(kInvalid, {"normalizer Replace", "text of 1;", "4112 bytes"}));
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", Doubles("String", "xyz", 40)}};
  EXPECT_THAT(Created(json), Fails(kInvalid, {"normalizer Replace", "text of 3;"}));
  json["normalizer"] = {{"type", "Prepend"}, {"prepend", std::string(10'000, 'x')}};
  EXPECT_THAT(Created(json), Fails(kInvalid, {"normalizer Prepend", "text of 1;"}));
}

TEST(JsonTokenizer, RefusesTextOfWhichItsNormalizersMakeMuchMore) {
  Json json = SmallByteLevel();
  // No example is known of a pattern.
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", Doubles("Regex", "b", 8)}};
  const auto tokenizer = Made(json);
  EXPECT_EQ(tokenizer->Encode("b")->size(), 256U);
  EXPECT_THAT(tokenizer->Encode(std::string(1000, 'b')).status(),
              Fails(kInvalid, {"normalizer Replace", "text of 1000;", "20096 bytes"}));
  // Parts between special tokens count together.
  std::string parts;
  for (int i = 0; i < 100; ++i) parts += "b<|end|>";
  EXPECT_THAT(tokenizer->Encode(parts, {.spelled = SpelledSpecial::kParse}).status(),
              Fails(kInvalid, {"normalizer Replace", "text of 800;"}));
}

TEST(JsonTokenizer, TakesTheLargestExpansionOfUnicode) {
  const auto tokenizer = Made(With(SmallByteLevel(), "/normalizer", R"({"type": "NFKD"})"));
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += "\uFDFA";
  EXPECT_EQ(tokenizer->Encode(text)->size(), 330'000U);
}

TEST(JsonTokenizer, RefusesPreTokenizersThatMakeMuchOfALetter) {
  Json steps = Json::array();
  for (int i = 0; i < 40; ++i) {
    steps.push_back({{"type", "Split"}, {"pattern", {{"Regex", "."}}}, {"behavior", "Isolated"}, {"invert", false}});
    steps.push_back({{"type", "Metaspace"},
                     {"replacement", i % 2 == 0 ? "x" : "y"},
                     {"prepend_scheme", "always"},
                     {"split", false}});
  }
  Json json = SmallByteFallback();
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  EXPECT_THAT(Created(json), Fails(kInvalid, {"pre-tokenizer Metaspace", "text of 1;"}));
}

TEST(JsonTokenizer, RefusesDecodersThatMayMakeMuchOfAToken) {
  Json json = SmallByteLevel();
  json["decoder"] = {{"type", "Sequence"}, {"decoders", Doubles("String", "a", 5)}};
  EXPECT_THAT(Created(json), Fails(kInvalid, {"decoder Replace", "32 bytes", "limit is 16"}));
  json["decoder"] = {{"type", "Sequence"}, {"decoders", Doubles("String", "a", 4)}};
  EXPECT_EQ(Made(json)->Decode(std::vector<int32_t>{'a'}).value(), std::string(16, 'a'));
}

TEST(JsonTokenizer, RefusesTooManyComponentsAndTokensAround) {
  const auto many = [](const Json& one) {
    Json list = Json::array();
    for (int i = 0; i < 300; ++i) list.push_back(one);
    return list;
  };
  Json json = SmallByteLevel();
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", many({{"type", "NFC"}})}};
  EXPECT_THAT(Created(json), Fails(kInvalid, {"normalizer", "256 components"}));
  json = SmallByteLevel();
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", many({{"type", "Digits"}, {"individual_digits", true}})}};
  EXPECT_THAT(Created(json), Fails(kInvalid, {"pre-tokenizer", "256 components"}));
  json = SmallByteLevel();
  json["decoder"] = {{"type", "Sequence"}, {"decoders", many({{"type", "Fuse"}})}};
  EXPECT_THAT(Created(json), Fails(kInvalid, {"decoder", "256 components"}));
  json = SmallByteFallback();
  json["post_processor"]["special_tokens"]["<s>"]["ids"] = Json::array();
  for (int i = 0; i < 1025; ++i) json["post_processor"]["special_tokens"]["<s>"]["ids"].push_back(1);
  EXPECT_THAT(Created(json), Fails(kInvalid, {"post-processor", "\"<s>\"", "1024 tokens"}));
}

TEST(JsonTokenizer, RefusesTokensThatAreTooLong) {
  Json json = SmallByteLevel();
  json["model"]["vocab"][std::string(20'000, 'a')] = 261;
  EXPECT_THAT(Created(json), Fails(kInvalid, {"model BPE", "20000 bytes", "16384"}));
  json = SmallByteLevel();
  json["added_tokens"][0]["content"] = std::string(2000, 'a');
  EXPECT_THAT(Created(json), Fails(kInvalid, {"added token", "2000 bytes", "1024"}));
  EXPECT_THAT(SentencePieceTokenizer::Create(SmallPiece(std::string(20'000, 'a'), 1), {}, {}).status(),
              Fails(kInvalid, {"piece", "20000 bytes", "16384"}));
}

}  // namespace
}  // namespace tdock::text
