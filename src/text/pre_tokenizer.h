// The "pre_tokenizer" of a tokenizer.json: how text is cut into the words that merges stay within. Internal to this
// module.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/json_text.h"
#include "text/aligned_text.h"

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
    virtual absl::Status Apply(Pieces& pieces) const = 0;
  };

  // Takes ByteLevel (which must come last), Digits, Metaspace, Split and Sequence, and null for none. Another
  // component, or a field with another value, is Unimplemented, named.
  static absl::StatusOr<PreTokenizer> Read(const nlohmann::json& json);

  absl::StatusOr<Pieces> Apply(AlignedText text) const;

  // Whether the vocabulary spells bytes as characters, as ByteLevel has it. The pieces are the bytes themselves.
  bool byte_level() const { return byte_level_; }
  // Whether Apply() needs a text that keeps its origins.
  bool needs_origins() const { return needs_origins_; }

 private:
  absl::Status Add(const nlohmann::json& json);
  absl::Status AddByteLevel(class JsonFields& fields);
  absl::Status AddMetaspace(class JsonFields& fields);
  absl::Status AddSplit(class JsonFields& fields);

  std::vector<std::shared_ptr<const Step>> steps_;
  bool byte_level_ = false;
  bool needs_origins_ = false;
};

}  // namespace tdock::text
