#include "engine/answer_stream.h"

#include <algorithm>
#include <utility>

#include "core/base/status.h"
#include "text/conversation.h"

namespace tdock::engine {
AnswerStream::AnswerStream(const text::Tokenizer& tokenizer, const std::vector<int32_t>& end_tokens,
                           const StopTexts& stops, std::function<void(absl::string_view)> show)
    : decoder_(tokenizer.MakeStreamDecoder()), end_tokens_(end_tokens), show_(std::move(show)), finder_(stops) {}

absl::Status AnswerStream::Push(int32_t token) {
  if (std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end()) return absl::OkStatus();
  TDOCK_ASSIGN_OR_RETURN(const std::string more, decoder_->Push(token));
  pending_ += more;
  Show(finder_.FirstBegun(more) - shown_);  // a stop text before `more` did not count
  return absl::OkStatus();
}

void AnswerStream::Finish(std::optional<size_t> text_bytes) {
  pending_ += decoder_->Finish();
  const size_t left = text_bytes ? *text_bytes - std::min(shown_, *text_bytes) : pending_.size();
  Show(std::min(left, pending_.size()));
  pending_.clear();
}

void AnswerStream::Show(size_t bytes) {
  if (bytes == 0) return;
  show_(absl::string_view(pending_).substr(0, bytes));
  pending_.erase(0, bytes);
  shown_ += bytes;
}

absl::StatusOr<std::vector<int32_t>> SaidTokens(const Completion& completion, const text::Tokenizer& tokenizer) {
  std::vector<int32_t> said = completion.tokens;
  if (completion.text_bytes) {
    TDOCK_ASSIGN_OR_RETURN(const std::string text, TextOf(completion, tokenizer));
    // The tokens that end before the stop text, and new ones for what one of them has of both.
    std::string kept;
    for (;;) {
      TDOCK_ASSIGN_OR_RETURN(kept, tokenizer.Decode(said));
      if (kept.size() <= text.size() && text.compare(0, kept.size(), kept) == 0) break;
      said.pop_back();
    }
    TDOCK_ASSIGN_OR_RETURN(const std::vector<int32_t> rest,
                           text::EncodeReply(tokenizer, kept, said, absl::string_view(text).substr(kept.size())));
    said.insert(said.end(), rest.begin(), rest.end());
    return said;
  }
  const bool at_end = completion.finish_reason == FinishReason::kEndToken;
  const bool at_stop = completion.finish_reason == FinishReason::kStop && tokenizer.IsSpecial(said.back());
  if (at_end || at_stop) said.pop_back();
  return said;
}

}  // namespace tdock::engine
