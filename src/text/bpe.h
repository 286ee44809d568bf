// Byte-pair encoding: the "model" of a tokenizer.json. Internal to this module.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/json_text.h"
#include "text/encode_budget.h"

namespace tdock::text {

// How GPT-2's vocabulary spells the byte: a printable character for each of the 256.
char32_t ByteLevelChar(uint8_t byte);
// The bytes that a token of such a vocabulary stands for; nothing if it holds another character.
std::optional<std::string> ByteLevelBytes(absl::string_view token);

// Immutable, and so thread-safe.
class Bpe {
 public:
  // One token of a word, and how many of its bytes it covers, counted from where the one before ends.
  struct Symbol {
    int32_t id;
    uint32_t bytes;
  };

  // `byte_level`: the vocabulary spells bytes, see PreTokenizer. Another kind of model, or a field with another value,
  // is Unimplemented, named; InvalidArgument for damaged ones.
  static absl::StatusOr<Bpe> Read(const nlohmann::json& json, bool byte_level);

  // The tokens of `word`, which is not empty, in `symbols`, whose contents are replaced. The offset in `word` of a
  // character that the vocabulary cannot express, or nothing. Takes a time that grows with n log n. The error of the
  // budget's stop check.
  absl::StatusOr<std::optional<size_t>> Encode(absl::string_view word, EncodeBudget& budget,
                                               std::vector<Symbol>& symbols) const;

  // The most bytes of a word that one token stands for; nullopt: any number, where unknown characters become one token.
  std::optional<size_t> max_token_bytes() const;

  std::optional<int32_t> Find(absl::string_view token) const;
  // By id; nothing where no token has the id.
  const std::vector<std::optional<std::string>>& tokens() const { return tokens_; }
  size_t size() const { return ids_.size(); }  // how many tokens there are

 private:
  struct Merge {
    uint32_t rank;
    int32_t id;
  };
  struct Link;

  absl::Status ReadVocabulary(const nlohmann::json& vocab);
  absl::Status ReadMerges(const nlohmann::json& merges);
  absl::Status ReadOptions(class JsonFields& fields);
  void PrepareCharacters();

  const Merge* FindMerge(int32_t left, int32_t right) const;
  absl::StatusOr<std::optional<size_t>> Begin(absl::string_view word, EncodeBudget& budget,
                                              std::vector<Symbol>& symbols) const;
  void MergeShort(std::vector<Symbol>& symbols) const;
  absl::Status MergeLong(EncodeBudget& budget, std::vector<Symbol>& symbols) const;

  bool byte_level_ = false;
  bool ignore_merges_ = false;
  bool fuse_unknown_ = false;
  std::optional<int32_t> unknown_;
  size_t longest_ = 1;  // bytes of a word that a token spells
  std::vector<std::optional<std::string>> tokens_;
  absl::flat_hash_map<std::string, int32_t> ids_;
  absl::flat_hash_map<std::string, int32_t> words_;    // where merges are ignored: by what stands in a text
  std::array<int32_t, 256> bytes_;                     // of byte_level_, or to fall back to; -1: none
  absl::flat_hash_map<char32_t, int32_t> characters_;  // otherwise
  absl::flat_hash_map<uint64_t, Merge> merges_;        // by the ids of both parts
};

}  // namespace tdock::text
