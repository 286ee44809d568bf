// The "added_tokens" of a tokenizer.json: tokens that are found in a text before it is cut up and merged. Internal to
// this module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/json_text.h"
#include "text/encode_budget.h"
#include "text/tokenizer.h"

namespace tdock::text {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;
  bool normalized = false;   // looked for in the normalised text, in its own normalised form
  bool single_word = false;  // not beside characters of words
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and behind it
};

// Where special tokens that a text spells are text.
class SpecialsAsText {
 public:
  // What `options` say. `options.as_text` must outlive it.
  explicit SpecialsAsText(const EncodeOptions& options)
      : everywhere_(options.spelled == SpelledSpecial::kAsText), ranges_(options.as_text) {}

  enum class Covered { kNot, kPartly, kWholly };
  // How much of `range` they are text in.
  Covered Covers(TextRange range) const;
  bool everywhere() const { return everywhere_; }
  // Whether that depends on the place.
  bool depends_on_place() const { return !everywhere_ && !ranges_.empty(); }

 private:
  const bool everywhere_;
  const std::span<const TextRange> ranges_;
};

// A set of texts that are looked for all at once. Immutable, and so thread-safe.
class AddedTokenFinder {
 public:
  struct Part {
    TextRange range;
    const AddedToken* token = nullptr;  // null: what lies between tokens
  };

  // Finds `token`, which must outlive this, by `pattern`, which is not empty. The first of equal patterns counts.
  // InvalidArgument where all patterns together become too long.
  absl::Status Add(absl::string_view pattern, const AddedToken& token);
  bool empty() const { return tokens_.size() == 1; }

  // All of `text` in its order, no part empty. Of overlapping tokens the leftmost one is found, and of those the
  // longest. Special ones are passed over where `covered` does not answer kNot for their place in `text`. Two parts
  // overlap only in white space that the first one took. The error of the budget's stop check.
  absl::StatusOr<std::vector<Part>> Divide(absl::string_view text,
                                           absl::FunctionRef<SpecialsAsText::Covered(TextRange)> covered,
                                           EncodeBudget& budget) const;

 private:
  // The node behind `node` by `byte`; 0: there is none.
  uint32_t Next(uint32_t node, char byte) const;
  struct Found {
    const AddedToken* token = nullptr;
    size_t size = 0;    // of its pattern
    size_t looked = 0;  // how many bytes were looked at
  };
  Found LongestAt(absl::string_view rest) const;

  // A tree of the patterns' bytes, whose root is node 0.
  std::vector<uint32_t> first_ = std::vector<uint32_t>(256);  // of the root, by byte
  absl::flat_hash_map<uint64_t, uint32_t> next_;              // of the others, by node and byte
  std::vector<const AddedToken*> tokens_ = {nullptr};         // by node: whose pattern ends there
};

// Maximum length of an added token. Real ones have at most a few dozen bytes.
inline constexpr size_t kMaxAddedTokenBytes = 1024;

// Reads the list. `model_id` finds a token of the model, which has `model_size` of them. The ids in
// the file must be those that `tokenizers` would give: the model's, or the next ones behind all others.
absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(
    const nlohmann::json& json, const std::function<std::optional<int32_t>(absl::string_view)>& model_id,
    size_t model_size);

}  // namespace tdock::text
