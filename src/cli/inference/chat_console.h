// Who talks in a chat: the lines of standard input, and answers on standard output.
#pragma once

#include <unistd.h>

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tdock::cli {

// Not thread-safe.
class ChatConsole {
 public:
  // A person, who is asked for each message.
  bool asks() const { return asks_; }

  // Shows a piece of an answer at once, without what would control a terminal.
  void Show(absl::string_view text) const;

  // Gives each line that is not empty to `round`, until "quit", the end of the input or an error. "clear" calls
  // `clear`.
  absl::Status Talk(const std::function<absl::Status(const std::string& message)>& round,
                    const std::function<void()>& clear) const;

 private:
  // A line; nullopt at the end of the input.
  std::optional<std::string> ReadMessage() const;

  const bool asks_ = ::isatty(STDIN_FILENO) == 1;
  const bool terminal_ = ::isatty(STDOUT_FILENO) == 1;
};

}  // namespace tdock::cli
