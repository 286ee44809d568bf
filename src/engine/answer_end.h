// Where answers end. Internal to this module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/completion.h"
#include "engine/sampling/sampling_params.h"
#include "engine/stop_text.h"

namespace tdock::engine {

// Reads an answer for stop texts, token by token. Not thread-safe. Offsets are bytes of the answer's text.
class StopTextReader {
 public:
  // Both must outlive it.
  StopTextReader(const text::Tokenizer& tokenizer, const StopTexts& stops)
      : decoder_(tokenizer.MakeStreamDecoder()), finder_(stops) {}

  // The offset of a stop text that is complete with this token, if any. A token that ends within a character shows only
  // with the token that completes it. Without `heeded`, stop texts that are complete here do not count.
  absl::StatusOr<std::optional<size_t>> Push(int32_t token, bool heeded);

  // The same for what the text ends with if no more tokens come.
  std::optional<size_t> Finish() { return finder_.Push(decoder_->Finish()); }

 private:
  const std::unique_ptr<text::StreamDecoder> decoder_;
  StopTextFinder finder_;
};

// Immutable, and so thread-safe.
class AnswerEnds {
 public:
  // Everything must outlive it. A tokenizer is needed where there are stop texts.
  AnswerEnds(const SamplingParams& params, std::span<const int32_t> end_tokens, const text::Tokenizer* tokenizer);

  // Null where there are no stop texts.
  std::unique_ptr<StopTextReader> MakeReader() const;

  // Called with each token that the completion gets: sets whether and why it ends there. `full`: there is no room for
  // another one. Without `may_end`, no token and no text ends it. `reader` is the completion's own.
  absl::Status Update(Completion& completion, bool full, bool may_end, StopTextReader* reader) const;

 private:
  const SamplingParams& params_;
  const std::span<const int32_t> end_tokens_;
  const text::Tokenizer* const tokenizer_;
  const StopTexts stops_;
};

}  // namespace tdock::engine
