#include "core/rpc/message.h"

#include <algorithm>

namespace tdock::rpc {

std::vector<Message> CutMessages(std::span<const Buffer> pieces) {
  constexpr size_t kMessageBytes = 1 << 20;
  std::vector<Message> messages(1);
  size_t room = kMessageBytes;
  for (const Buffer& piece : pieces) {
    for (size_t at = 0; at < piece.size();) {
      if (room == 0) {
        messages.emplace_back();
        room = kMessageBytes;
      }
      const size_t step = std::min(piece.size() - at, room);
      messages.back().push_back(piece.Slice(at, step));
      at += step;
      room -= step;
    }
  }
  return messages;
}

}  // namespace tdock::rpc
