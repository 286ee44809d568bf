// The "pre_tokenizer" of a tokenizer.json: how text is cut into the words that merges stay within. Internal to this
// module.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/json_text.h"
#include "text/aligned_text.h"
#include "text/encode_budget.h"

namespace tdock::text {

// A text and the pieces that it is cut into, none of them empty.
struct Pieces {
  AlignedText text;
  std::vector<TextRange> ranges;
};

// Immutable, and so thread-safe.
class PreTokenizer {
 public:
  class Step {
   public:
    virtual ~Step() = default;
    // May end with the budget's TooManyTokens() where there are certainly more than `max_pieces` pieces.
    virtual absl::Status Apply(Pieces& pieces, EncodeBudget& budget, size_t max_pieces) const = 0;
    // True if it leaves out a part of the text, and so maybe pieces.
    virtual bool drops() const { return false; }
  };

  // Takes ByteLevel (which must come last), Digits, Metaspace, Split and Sequence, and null for none. Another
  // component, or a field with another value, is Unimplemented, named. InvalidArgument for more than kMaxComponents.
  static absl::StatusOr<PreTokenizer> Read(const nlohmann::json& json);

  // The errors of the budget, and of Regex::FindAll(). OutOfRange as soon as there are certainly more than `max_tokens`
  // pieces, each of which is at least one token.
  absl::StatusOr<Pieces> Apply(AlignedText text, EncodeBudget& budget, size_t max_tokens) const;

  // Whether the vocabulary spells bytes as characters, as ByteLevel has it. The pieces are the bytes themselves.
  bool byte_level() const { return byte_level_; }
  // Whether Apply() needs a text that keeps its origins.
  bool needs_origins() const { return needs_origins_; }
  // True if a part of the text may be left out.
  bool drops() const;

 private:
  absl::Status Add(const nlohmann::json& json);
  absl::Status AddByteLevel(class JsonFields& fields);
  absl::Status AddMetaspace(class JsonFields& fields);
  absl::Status AddSplit(class JsonFields& fields);

  std::vector<std::shared_ptr<const Step>> steps_;
  bool byte_level_ = false;
  bool needs_origins_ = false;
  size_t components_ = 0;
};

}  // namespace tdock::text
