// Text that would do harm on a terminal or in a log, and whether messages are free of it. Fuzzers include this, too.
#pragma once

#include <cstdlib>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/utf8.h"

namespace tdock {

// Sets the title of the window, clears the screen, begins a line that looks like one of ours, and turns it around.
inline constexpr char kHostileText[] = "\x1b]0;PWNED\x07\x1b[2J\nFAKE LOG LINE\u202e";

// True if the message is UTF-8 without anything unprintable, but for the ASCII characters in `allowed`.
inline bool IsSafeForTerminals(absl::string_view message, absl::string_view allowed = "") {
  while (!message.empty()) {
    const std::optional<Utf8Char> next = FirstUtf8Char(message);
    if (!next) return false;
    if (IsUnprintable(next->code) && allowed.find(message.substr(0, next->bytes)) == absl::string_view::npos) {
      return false;
    }
    message.remove_prefix(next->bytes);
  }
  return true;
}

// For fuzzers: ends the program if the message of an error is not safe.
inline void CheckMessage(const absl::Status& status, absl::string_view allowed = "") {
  if (!IsSafeForTerminals(status.message(), allowed)) std::abort();
}

}  // namespace tdock
