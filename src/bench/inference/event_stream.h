// The events of an answer to a request of HTTP, as its bytes arrive.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock::bench {

// Not thread-safe.
class EventStream {
 public:
  // Calls `on_event` with each event's data. An answer that is no stream is one event, its body. Internal for another
  // status than 200, with the body as far as it is there.
  absl::Status Read(absl::string_view bytes, const std::function<void(absl::string_view data)>& on_event);
  // Whether the whole answer is there.
  bool ended() const { return state_ == State::kEnded; }

 private:
  enum class State { kHead, kLength, kChunk, kBody, kEnded };

  absl::Status ReadHead();
  // False when more bytes are needed, or none.
  absl::StatusOr<bool> Advance();
  absl::StatusOr<bool> ReadLength();
  void TakeEvents(const std::function<void(absl::string_view data)>& on_event);

  State state_ = State::kHead;
  bool ok_ = false, streams_ = false, is_last_ = false;
  size_t left_ = 0;  // of the chunk with the line end behind it, or of the body
  std::string in_ = {}, body_ = {};
};

}  // namespace tdock::bench
