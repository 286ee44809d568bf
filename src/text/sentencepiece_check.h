// Whether a sentencepiece model is safe to hand to its library, which trusts what it reads. Internal to this module.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock::text {

// What of the model decides how ids become text.
struct SentencePieceSpec {
  bool drops_first_space = true;                // add_dummy_prefix or remove_extra_whitespaces
  bool drops_leading_spaces = true;             // remove_extra_whitespaces
  std::string unknown_text = " \xE2\x81\x87 ";  // unk_surface
  // The most bytes of text that a piece stands for; nullopt: any number, as where text is normalised, spaces are
  // removed or unknown characters become one piece.
  std::optional<size_t> max_piece_bytes = {};
};

// `bytes` is a ModelProto (sentencepiece_model.proto). InvalidArgument for damage: pieces that are empty, not UTF-8,
// hold a zero byte, are longer than kMaxTokenBytes or come twice, scores that are no numbers, a normalisation table
// that points out of itself. Unimplemented for white space as a suffix and for a denormalizer.
absl::StatusOr<SentencePieceSpec> CheckSentencePieceModel(absl::string_view bytes);

}  // namespace tdock::text
