#include "inference/client/event_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tdock::inference {

bool EventStream::Push(absl::string_view bytes) {
  for (const char c : bytes) {
    if (ended_) break;
    const bool second_half = c == '\n' && after_return_;  // of a line's end
    after_return_ = c == '\r';
    if (second_half) continue;
    if (c == '\n' || c == '\r') {
      ended_ = !EndLine();
    } else {
      line_ += c;
    }
  }
  return !ended_;
}

bool EventStream::EndLine() {
  const std::string line = std::exchange(line_, {});
  if (line.empty()) {
    const std::string data = std::exchange(data_, {});
    return !std::exchange(has_data_, false) || on_event_(data);
  }
  absl::string_view value = line;
  if (!absl::ConsumePrefix(&value, "data:")) {
    if (value != "data") return true;  // a comment, or another field
    value = "";
  }
  absl::ConsumePrefix(&value, " ");
  if (std::exchange(has_data_, true)) data_ += '\n';
  absl::StrAppend(&data_, value);
  return true;
}

}  // namespace tdock::inference
