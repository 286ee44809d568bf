// Texts whose tokens must part at a border. Internal to this module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "text/tokenizer.h"

namespace tdock::text {

// A text, and where special tokens that it spells are text.
struct MarkedText {
  absl::string_view text;
  std::span<const TextRange> as_text;  // as in EncodeOptions
};

// As in EncodeOptions.
struct EncodeLimits {
  size_t max_tokens = std::numeric_limits<size_t>::max();
  StopCheck stop = {};
};

// The tokens of `marked` from `begin` to `end`, as they follow the special token `special` there, which some tokenizers
// begin otherwise than a text of its own; "": nothing stands before it. Ranges are places in the whole text.
absl::StatusOr<Encoding> EncodePart(const Tokenizer& tokenizer, absl::string_view special, const MarkedText& marked,
                                    size_t begin, size_t end, const EncodeLimits& limits);

// The tokens of `marked` from `border` to `end`, where `before` are those from `begin` to the border: what follows them
// in the tokens of both together; where a token would reach across the border, those of the part by itself, without a
// space that the tokenizer begins a text with.
absl::StatusOr<Encoding> EncodeBehind(const Tokenizer& tokenizer, absl::string_view special, const MarkedText& marked,
                                      size_t begin, std::span<const int32_t> before, size_t border, size_t end,
                                      const EncodeLimits& limits);

}  // namespace tdock::text
