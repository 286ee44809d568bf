// What is shown of an answer as it is generated, and what a conversation keeps of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/engine.h"
#include "engine/stop_text.h"
#include "text/tokenizer.h"

namespace tdock::engine {

// Text arrives in whole characters, without special tokens and end tokens. What may be the beginning of a stop text is
// held back until that is known. Not thread-safe.
class AnswerStream {
 public:
  // `show` gets the text piece by piece. All must outlive it.
  AnswerStream(const text::Tokenizer& tokenizer, const std::vector<int32_t>& end_tokens, const StopTexts& stops,
               std::function<void(absl::string_view)> show);

  // The next token. The errors of StreamDecoder::Push().
  absl::Status Push(int32_t token);

  // The answer has ended; where a stop text ended it, that begins at byte `text_bytes` of its text.
  void Finish(std::optional<size_t> text_bytes);

 private:
  void Show(size_t bytes);

  const std::unique_ptr<text::StreamDecoder> decoder_;
  const std::vector<int32_t>& end_tokens_;
  const std::function<void(absl::string_view)> show_;
  StopTextFinder finder_;
  std::string pending_;
  size_t shown_ = 0;  // bytes
};

// The tokens that say the text of the answer: without the one that ended it, an end token or a special stop token;
// where a stop text ended it, those before that text, and new ones for what one of them says beside a part of it. The
// errors of Tokenizer::Decode().
absl::StatusOr<std::vector<int32_t>> SaidTokens(const Completion& completion, const text::Tokenizer& tokenizer);

}  // namespace tdock::engine
