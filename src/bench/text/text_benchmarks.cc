#include "bench/text/text_benchmarks.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/rng.h"
#include "text/bpe.h"
#include "text/json_tokenizer.h"
#include "text/unicode.h"

namespace tdock::bench {
namespace {

using nlohmann::json;

constexpr char kLlama3[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Words of 1 to 4 syllables, each word as often as in language: the nth of them 1/n as often as the first.
class Language {
 public:
  Language() : rng_(5) {
    for (int i = 0; i < 5000; ++i) {
      std::string word;
      for (uint64_t syllables = 1 + rng_.Below(4); syllables > 0; --syllables) {
        word += "bcdfghklmnprstvw"[rng_.Below(16)];
        word += "aeiou"[rng_.Below(5)];
        if (rng_.Below(3) == 0) word += "lnrst"[rng_.Below(5)];
      }
      words_.push_back(std::move(word));
    }
  }

  const std::vector<std::string>& words() const { return words_; }

  std::string Text(size_t bytes) {
    std::string text;
    while (text.size() < bytes) {
      // Uniform in the logarithm of the rank.
      uint64_t below = 1;
      while (below < words_.size() && rng_.Below(8) != 0) below *= 2;
      text += words_[rng_.Below(std::min<uint64_t>(below, words_.size()))];
      const uint64_t kind = rng_.Below(40);
      text += kind == 0   ? ".\n\n    "
              : kind == 1 ? absl::StrCat(" = ", rng_.Below(5000), ";\n")
              : kind < 5  ? ", "
                          : " ";
    }
    return text;
  }

 private:
  Rng rng_;
  std::vector<std::string> words_;
};

// A vocabulary in which each word, and what it begins with, is a token.
class Vocabulary {
 public:
  int64_t Add(const std::string& token) { return vocab_.try_emplace(token, vocab_.size()).first->second; }

  // Builds a word from its first character on; `space` begins it.
  void AddWord(const std::string& space, const std::string& word) {
    std::string built = space;
    for (const char c : word) {
      const std::string longer = built + c;
      if (!vocab_.contains(longer)) merges_.push_back(json::array({built, std::string(1, c)}));
      Add(longer);
      built = longer;
    }
  }
  json Model() const { return {{"type", "BPE"}, {"vocab", vocab_}, {"merges", merges_}}; }

 private:
  std::map<std::string, int64_t> vocab_;
  std::vector<json> merges_;
};

json ByteLevelTokenizer(const std::vector<std::string>& words, const json& normalizer, const json& pre_tokenizer) {
  Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelled;
    text::AppendUtf8(text::ByteLevelChar(static_cast<uint8_t>(byte)), spelled);
    vocabulary.Add(spelled);
  }
  for (const std::string& word : words) vocabulary.AddWord("\xC4\xA0", word);  // what byte level spells a space with
  return {{"model", vocabulary.Model()}, {"normalizer", normalizer}, {"pre_tokenizer", pre_tokenizer}};
}

json FallbackTokenizer(const std::vector<std::string>& words) {
  Vocabulary vocabulary;
  for (char c = ' '; c <= '~'; ++c) vocabulary.Add(std::string(1, c));
  for (const char* token : {"\n", "<unk>", "\xE2\x96\x81"}) vocabulary.Add(token);
  for (const std::string& word : words) vocabulary.AddWord("\xE2\x96\x81", word);
  json model = vocabulary.Model();
  model["unk_token"] = "<unk>";
  const json prepend = {{"type", "Prepend"}, {"prepend", "\xE2\x96\x81"}};
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xE2\x96\x81"}};
  return {{"model", std::move(model)}, {"normalizer", {{"type", "Sequence"}, {"normalizers", {prepend, replace}}}}};
}

json ByteLevel(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

json SplitBy(const char* pattern) {
  const json split = {
      {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {split, ByteLevel(false)}}};
}

Benchmark Encoding(const std::string& kind, size_t bytes, std::function<json(const std::vector<std::string>&)> make) {
  const auto prepare = [bytes, make = std::move(make)](const Settings& settings) -> absl::StatusOr<Prepared> {
    Language language;
    const auto text = std::make_shared<std::string>(language.Text(bytes));
    TDOCK_ASSIGN_OR_RETURN(std::shared_ptr<text::Tokenizer> tokenizer,
                           text::JsonTokenizer::Create(make(language.words()), {}, {}));
    return Prepared{[text, tokenizer, &clock = settings.clock]() -> absl::StatusOr<Figure> {
      size_t tokens = 0;
      TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&]() -> absl::Status {
                               constexpr size_t kPiece = 4096;  // as long as a document
                               for (size_t at = 0; at < text->size(); at += kPiece) {
                                 TDOCK_ASSIGN_OR_RETURN(const auto ids,
                                                        tokenizer->Encode(absl::string_view(*text).substr(at, kPiece)));
                                 tokens += ids.size();
                               }
                               return absl::OkStatus();
                             }));
      return Figure(static_cast<double>(text->size()) / 1e6 / seconds,
                    {{"bytes_per_token", static_cast<double>(text->size()) / static_cast<double>(tokens)}});
    }};
  };
  return {.name = absl::StrCat("text/tokenize/", kind), .unit = "MB/s", .better = Better::kHigher, .prepare = prepare};
}

}  // namespace

std::vector<Benchmark> TextBenchmarks(bool quick) {
  const size_t bytes = quick ? 100'000 : 4'000'000;
  using Words = const std::vector<std::string>&;
  return {
      Encoding("gpt2", bytes, [](Words words) { return ByteLevelTokenizer(words, nullptr, ByteLevel(true)); }),
      Encoding("llama3", bytes, [](Words words) { return ByteLevelTokenizer(words, nullptr, SplitBy(kLlama3)); }),
      Encoding("qwen2", bytes,
               [](Words words) {
                 return ByteLevelTokenizer(words, {{"type", "NFC"}}, SplitBy(kQwen2));
               }),
      Encoding("sentencepiece", bytes, FallbackTokenizer),
  };
}

}  // namespace tdock::bench
