// Samples as people read them.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "data/encode.h"
#include "text/tokenizer.h"

namespace tdock::trainer {

struct RenderingOptions {
  bool terminal = false;    // what is trained on is shown in inverse video, otherwise as ⟦…⟧
  size_t most_bytes = 600;  // of a part that is trained on, or is not; its middle is left out beyond that
  size_t most_parts = 12;   // those in the middle are left out beyond that
};

// The tokens as the text that the model sees, special tokens spelt out, with what the loss counts marked. Control
// characters are escaped, and so are the marks where the text has them; a line ends after each escaped line feed.
absl::StatusOr<std::string> RenderSample(const text::Tokenizer& tokenizer, const data::EncodedSample& sample,
                                         const RenderingOptions& options);

// One line or several: `text` with control characters escaped as in RenderSample(), and its middle left out beyond
// `most_bytes`.
std::string RenderText(absl::string_view text, size_t most_bytes);

}  // namespace tdock::trainer
