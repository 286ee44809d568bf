#include "bench/inference/event_stream.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"

namespace tdock::bench {

absl::Status EventStream::ReadHead() {
  const size_t end = in_.find("\r\n\r\n");
  if (end == std::string::npos) return absl::OkStatus();
  const std::string head = absl::AsciiStrToLower(in_.substr(0, end));
  in_.erase(0, end + 4);
  ok_ = absl::StartsWith(head, "http/1.1 200");
  streams_ = absl::StrContains(head, "text/event-stream");
  if (absl::StrContains(head, "transfer-encoding: chunked")) {
    state_ = State::kLength;
    return absl::OkStatus();
  }
  for (absl::string_view line : absl::StrSplit(head, "\r\n")) {
    if (!absl::ConsumePrefix(&line, "content-length:") || !absl::SimpleAtoi(line, &left_)) continue;
    state_ = State::kBody;
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("an answer without a length: ", head));
}

absl::StatusOr<bool> EventStream::ReadLength() {
  const size_t end = in_.find("\r\n");
  if (end == std::string::npos) return false;
  const std::string digits = in_.substr(0, end);
  in_.erase(0, end + 2);
  if (!absl::SimpleHexAtoi(digits, &left_)) {
    return absl::InternalError(absl::StrCat("'", digits, "' is no length of a chunk"));
  }
  is_last_ = left_ == 0;
  left_ += 2;
  state_ = State::kChunk;
  return true;
}

absl::StatusOr<bool> EventStream::Advance() {
  if (state_ == State::kLength) return ReadLength();
  const size_t size = std::min(left_, in_.size());
  // Of the line end behind a chunk nothing belongs to the body.
  const size_t kept = state_ == State::kBody ? size : std::min(size, left_ - std::min<size_t>(left_, 2));
  body_.append(in_, 0, kept);
  in_.erase(0, size);
  left_ -= size;
  if (left_ > 0) return false;
  state_ = state_ == State::kBody || is_last_ ? State::kEnded : State::kLength;
  return state_ == State::kLength;
}

void EventStream::TakeEvents(const std::function<void(absl::string_view data)>& on_event) {
  if (!streams_) {
    if (ended()) on_event(body_);
    return;
  }
  size_t begin = 0;
  for (size_t end = 0; (end = body_.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
    absl::string_view event = absl::string_view(body_).substr(begin, end - begin);
    if (absl::ConsumePrefix(&event, "data: ")) on_event(event);
  }
  body_.erase(0, begin);
}

absl::Status EventStream::Read(absl::string_view bytes, const std::function<void(absl::string_view data)>& on_event) {
  in_.append(bytes.data(), bytes.size());
  if (state_ == State::kHead) TDOCK_RETURN_IF_ERROR(ReadHead());
  if (state_ == State::kHead || state_ == State::kEnded) return absl::OkStatus();
  for (bool more = true; more;) {
    TDOCK_ASSIGN_OR_RETURN(more, Advance());
  }
  if (!ok_) return absl::InternalError(absl::StrCat("the server refuses: ", body_));
  TakeEvents(on_event);
  return absl::OkStatus();
}

}  // namespace tdock::bench
