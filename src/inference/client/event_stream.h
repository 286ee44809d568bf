// Server-sent events, as they arrive in pieces (the HTML standard, section 9.2.6).
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace tdock::inference {

// Of events only their data counts: their names and ids, and the time to wait before another try, are skipped. Keeps
// the line and the data of the event that have begun, whose size the caller limits. Not thread-safe.
class EventStream {
 public:
  // `on_event` gets the data of each event that is complete; false: the rest of the stream is of no use.
  explicit EventStream(std::function<bool(absl::string_view data)> on_event) : on_event_(std::move(on_event)) {}

  // False once `on_event` has returned that.
  bool Push(absl::string_view bytes);

 private:
  bool EndLine();

  const std::function<bool(absl::string_view data)> on_event_;
  std::string line_, data_;
  bool has_data_ = false, after_return_ = false, ended_ = false;
};

}  // namespace tdock::inference
