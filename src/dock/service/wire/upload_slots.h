// Which slots of a session's upload area a client may write to.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "dock/service/wire/socket_channel.h"

namespace tdock {

// A slot is written between Take() and its message to the server, and not again before the server has copied it: what
// is in it then goes into whatever put the message was for. Thread-safe.
class UploadSlots {
 public:
  explicit UploadSlots(uint32_t count);

  // A slot that nobody uses. Nothing if there is none until then, by absl::Now().
  std::optional<uint32_t> Take(absl::Time until) TDOCK_EXCLUDES(mu_);
  // The server has copied them, or has no use for them any more.
  void Return(std::span<const uint32_t> slots) TDOCK_EXCLUDES(mu_);
  // Slots of a call that was given up without an answer: the server may copy them yet. They are returned when it says
  // that it has, answers the call, or closes the connection.
  void Abandon(std::unique_ptr<SocketChannel> channel, uint64_t call, std::vector<uint32_t> slots) TDOCK_EXCLUDES(mu_);

 private:
  struct Abandoned {
    std::unique_ptr<SocketChannel> channel;
    uint64_t call = 0;
    std::vector<uint32_t> slots;
  };

  // Returns what can be returned of those that were abandoned. Does not wait.
  void ReturnAbandoned() TDOCK_EXCLUDES(mu_);

  Mutex mu_;
  CondVar returned_;
  std::vector<uint32_t> free_ TDOCK_GUARDED_BY(mu_);
  std::vector<Abandoned> abandoned_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock
