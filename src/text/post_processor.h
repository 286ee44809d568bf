// The "post_processor" of a tokenizer.json: what becomes of a text's tokens at the end. Internal to this module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/json_text.h"
#include "text/tokenizer.h"

namespace tdock::text {

// How many characters of white space, or of what ByteLevel spells a space with, a token begins and ends with.
struct OuterSpaces {
  uint32_t leading = 0;
  uint32_t trailing = 0;
};
OuterSpaces CountOuterSpaces(absl::string_view token);

// Immutable, and so thread-safe.
class PostProcessor {
 public:
  // Takes BertProcessing, ByteLevel, RobertaProcessing, TemplateProcessing and Sequence, and null for none. Another
  // component, or a field with another value, is Unimplemented, named. Of a template, only the form for one text is
  // used. An id is one for which `is_token`. InvalidArgument for more than kMaxComponents, and for more than
  // kMaxAddedIds ids that a text gets.
  static absl::StatusOr<PostProcessor> Read(const nlohmann::json& json, const std::function<bool(int32_t)>& is_token);

  // Maximum number of tokens before and behind a text. Real ones put two.
  static constexpr size_t kMaxAddedIds = 1024;

  // Whether it takes outer spaces out of ranges, for which Apply() needs to know them.
  bool trims() const;

  // Ranges, and `spaces` of each id, are only looked at where there are some: `has_ranges`; the latter only if trims().
  void Apply(absl::string_view text, bool add_special_tokens, bool has_ranges, std::vector<OuterSpaces> spaces,
             Encoding& encoding) const;

 private:
  struct Trim {
    bool add_prefix_space = false;
  };
  // Either takes spaces off, or puts ids before and behind.
  struct Step {
    std::optional<Trim> trim;
    std::vector<int32_t> before, behind;
  };

  absl::Status Add(const nlohmann::json& json, const std::function<bool(int32_t)>& is_token);
  absl::Status AddTemplate(class JsonFields& fields, const std::function<bool(int32_t)>& is_token);
  absl::Status AddPair(class JsonFields& fields, const std::function<bool(int32_t)>& is_token);
  absl::Status AppendIds(const nlohmann::json& ids, const std::function<bool(int32_t)>& is_token,
                         const std::string& where, std::vector<int32_t>& out);

  std::vector<Step> steps_;
  size_t components_ = 0;
  size_t added_ids_ = 0;
};

}  // namespace tdock::text
