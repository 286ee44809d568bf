// Reads what an answer says, as it is generated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/stop_text.h"
#include "inference/served_model.h"
#include "text/replies/reply_parser.h"
#include "text/tokenizer.h"

namespace tdock::inference {

// How an answer is read.
struct ReplyReading {
  text::ReplyForm form = text::ReplyForm::kPlain;
  text::ReplyOptions options = {};
  bool spells_specials = false;  // special tokens are part of the text; else only the marks of the form are read
  bool keeps_stop = false;       // so is the stop text or the token that ends the answer
  // Tokens that end answers, so that a last one of them is not part of the text.
  std::vector<int32_t> end_tokens = {};
};

// True if the model's reasoning has begun where this prompt ends.
bool EndsInReasoning(const ServedModel& model, std::span<const int32_t> prompt);

// Text arrives in whole characters. What may be the beginning of a stop text is held back until that is known, and so
// is a token that may have ended the answer. Not thread-safe.
class ReplyStream {
 public:
  // The tokenizer and the stop texts must outlive it.
  ReplyStream(const text::Tokenizer& tokenizer, const engine::StopTexts& stops, std::vector<std::string> stop_texts,
              ReplyReading reading);

  // The next token. The errors of StreamDecoder::Push().
  absl::Status Push(int32_t token);

  // The answer has ended; where a stop text ended it, that begins at byte `text_bytes` of its text without special
  // tokens. `by_itself`: it was not cut off. The errors of StreamDecoder::Push().
  absl::Status Finish(std::optional<size_t> text_bytes, bool by_itself);

  std::vector<text::ReplyDelta> TakeDeltas() { return parser_.TakeDeltas(); }
  const text::ParsedReply& reply() const { return parser_.reply(); }

 private:
  struct Special {
    size_t at;  // bytes of text before it
    std::string text;
  };
  bool IsEnd(int32_t token) const;
  absl::Status Read(int32_t token);
  absl::Status ReadHeld();
  void Show(size_t bytes);
  size_t StopBytesAt(size_t begin) const;

  const text::Tokenizer& tokenizer_;
  const std::vector<std::string> stop_texts_;
  const ReplyReading reading_;
  const std::unique_ptr<text::StreamDecoder> decoder_;
  engine::StopTextFinder finder_;
  text::ReplyParser parser_;
  std::string pending_;           // text that is held back
  std::deque<Special> specials_;  // in it
  std::optional<int32_t> held_;   // the last token
  size_t shown_ = 0;              // bytes of text
};

}  // namespace tdock::inference
