// The "normalizer" of a tokenizer.json: how text is changed before it is cut up. Internal to this module.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/base/json_text.h"
#include "text/aligned_text.h"

namespace tdock::text {

// Immutable, and so thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual absl::Status Apply(AlignedText& text) const = 0;
};

// Takes NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip and Sequence; null where there is none. Another
// component, or a field with another value, is Unimplemented, named.
absl::StatusOr<std::unique_ptr<Normalizer>> ReadNormalizer(const nlohmann::json& json);

// The field "pattern" of several components: {"String": …} or {"Regex": …}.
absl::StatusOr<class Regex> ReadPattern(class JsonFields& fields);

}  // namespace tdock::text
