// The slots of a session's upload area that a client may write to.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/net/channel.h"

namespace tdock::service {

// A client writes a slot between Take() and sending its message to the server, and not again before the server has
// copied it: otherwise later bytes would become part of that put. Thread-safe.
class UploadSlots {
 public:
  explicit UploadSlots(uint32_t count);

  // A free slot. Nothing if none becomes free until then, by absl::Now().
  std::optional<uint32_t> Take(absl::Time until) TDOCK_EXCLUDES(mu_);
  // The server has copied them, or no longer needs them.
  void Return(std::span<const uint32_t> slots) TDOCK_EXCLUDES(mu_);
  // Slots of a call that was abandoned without a response: the server may still copy them. They are returned when it
  // reports that it has, answers the call, or closes the connection.
  void Abandon(std::unique_ptr<net::Channel> channel, uint64_t call, std::vector<uint32_t> slots) TDOCK_EXCLUDES(mu_);

 private:
  struct Abandoned {
    std::unique_ptr<net::Channel> channel;
    uint64_t call = 0;
    std::vector<uint32_t> slots;
  };

  // Returns those abandoned slots that can be returned. Does not wait.
  void ReturnAbandoned() TDOCK_EXCLUDES(mu_);

  Mutex mu_;
  CondVar returned_;
  std::vector<uint32_t> free_ TDOCK_GUARDED_BY(mu_);
  std::vector<Abandoned> abandoned_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::service
