// The "normalizer" of a tokenizer.json: how text is changed before it is cut up. Internal to this module.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/json_text.h"
#include "text/aligned_text.h"
#include "text/encode_budget.h"

namespace tdock::text {

// Immutable, and so thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // The errors of the budget, and of Regex::FindAll().
  virtual absl::Status Apply(AlignedText& text, EncodeBudget& budget) const = 0;
  // How many bytes become one, at most; nullopt: any number of them, or none is left.
  virtual std::optional<size_t> max_shrink() const = 0;
  // Appends short texts that this changes, as far as they are known.
  virtual void AddExamples(std::vector<std::string>& /*examples*/) const {}
};

// Takes NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip and Sequence; null where there is none. Another
// component, or a field with another value, is Unimplemented, named. InvalidArgument for more than kMaxComponents.
absl::StatusOr<std::unique_ptr<Normalizer>> ReadNormalizer(const nlohmann::json& json);

// The field "pattern" of several components: {"String": …} or {"Regex": …}.
absl::StatusOr<class Regex> ReadPattern(class JsonFields& fields);

}  // namespace tdock::text
