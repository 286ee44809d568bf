#include "cli/inference/chat_console.h"

#include <iostream>

#include "cli/printable.h"
#include "core/base/status.h"

namespace tdock::cli {
namespace {

constexpr char kPrompt[] = "Enter input (type 'quit' to exit, 'clear' to clean memory): ";

}  // namespace

void ChatConsole::Show(absl::string_view text) const {
  std::cout << (terminal_ ? Printable(text) : std::string(text)) << std::flush;
}

absl::Status ChatConsole::Talk(const std::function<absl::Status(const std::string& message)>& round,
                               const std::function<void()>& clear) const {
  for (;;) {
    const std::optional<std::string> message = ReadMessage();
    if (!message || *message == "quit") return absl::OkStatus();
    if (*message == "clear") {
      clear();
      std::cerr << "The conversation is forgotten.\n";
    } else if (!message->empty()) {
      TDOCK_RETURN_IF_ERROR(round(*message));
    }
  }
}

std::optional<std::string> ChatConsole::ReadMessage() const {
  if (asks_) std::cout << kPrompt << std::flush;
  std::string line;
  if (std::getline(std::cin, line)) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    return line;
  }
  if (asks_) std::cout << "\n";
  return std::nullopt;
}

}  // namespace tdock::cli
