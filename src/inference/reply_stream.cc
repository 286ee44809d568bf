#include "inference/reply_stream.h"

#include <algorithm>
#include <utility>

#include "core/base/status.h"

namespace tdock::inference {

bool EndsInReasoning(const ServedModel& model, std::span<const int32_t> prompt) {
  constexpr size_t kMaxTokens = 32;  // of the mark that begins reasoning
  if (!model.has_reasoning) return false;
  const auto end = prompt.last(std::min(prompt.size(), kMaxTokens));
  const auto text = model.tokenizer->Decode(end, text::SpecialTokens::kKeep);
  return text.ok() && text::OpensReasoning(model.reply_form, *text);
}

ReplyStream::ReplyStream(const text::Tokenizer& tokenizer, const engine::StopTexts& stops,
                         std::vector<std::string> stop_texts, ReplyReading reading)
    : tokenizer_(tokenizer),
      stop_texts_(std::move(stop_texts)),
      reading_(std::move(reading)),
      decoder_(tokenizer.MakeStreamDecoder()),
      finder_(stops),
      parser_(reading_.form, reading_.options) {}

bool ReplyStream::IsEnd(int32_t token) const {
  return std::find(reading_.end_tokens.begin(), reading_.end_tokens.end(), token) != reading_.end_tokens.end();
}

absl::Status ReplyStream::Push(int32_t token) {
  TDOCK_RETURN_IF_ERROR(ReadHeld());
  if (!IsEnd(token)) return Read(token);
  held_ = token;
  return absl::OkStatus();
}

absl::Status ReplyStream::ReadHeld() {
  if (!held_) return absl::OkStatus();
  return Read(*std::exchange(held_, std::nullopt));
}

absl::Status ReplyStream::Read(int32_t token) {
  TDOCK_ASSIGN_OR_RETURN(const std::string more, decoder_->Push(token));
  pending_ += more;
  if (tokenizer_.IsSpecial(token)) {
    std::string spelled = tokenizer_.IdToToken(token).value_or("");
    const bool shows = reading_.spells_specials || text::IsReplyMark(reading_.form, spelled);
    if (shows) specials_.push_back({shown_ + pending_.size(), std::move(spelled)});
  }
  Show(finder_.FirstBegun(more) - shown_);  // a stop text before `more` did not count
  return absl::OkStatus();
}

absl::Status ReplyStream::Finish(std::optional<size_t> text_bytes, bool by_itself) {
  const bool at_token = by_itself && !text_bytes;
  if (!at_token || reading_.keeps_stop) TDOCK_RETURN_IF_ERROR(ReadHeld());
  pending_ += decoder_->Finish();
  size_t left = pending_.size();
  if (text_bytes) {
    left = std::min(*text_bytes - std::min(shown_, *text_bytes), left);
    if (reading_.keeps_stop) left += StopBytesAt(left);
  }
  Show(left);
  pending_.clear();
  parser_.Finish();
  return absl::OkStatus();
}

// The size of the longest stop text that stands there in the pending text.
size_t ReplyStream::StopBytesAt(size_t begin) const {
  size_t longest = 0;
  for (const std::string& stop : stop_texts_) {
    if (pending_.compare(begin, stop.size(), stop) == 0) longest = std::max(longest, stop.size());
  }
  return longest;
}

// Reads this much of the pending text, with the special tokens in it.
void ReplyStream::Show(size_t bytes) {
  const size_t end = shown_ + bytes;
  size_t read = 0;
  for (; !specials_.empty() && specials_.front().at <= end; specials_.pop_front()) {
    const size_t before = specials_.front().at - shown_ - read;
    parser_.Push(absl::string_view(pending_).substr(read, before));
    parser_.Push(specials_.front().text);
    read += before;
  }
  parser_.Push(absl::string_view(pending_).substr(read, bytes - read));
  pending_.erase(0, bytes);
  shown_ = end;
}

}  // namespace tdock::inference
