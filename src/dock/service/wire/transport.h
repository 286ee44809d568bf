// The calls of a client, over connections to a server: their bytes go through shared memory if that is on this machine.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "core/net/channel.h"
#include "dock/service/wire/client_transport.h"
#include "dock/service/wire/upload_slots.h"
#include "dock/store/segment_view.h"

namespace tdock::service {

// Each call uses a connection of its own while it runs; they are cached and reused. Thread-safe.
class Transport final : public ClientTransport {
 public:
  explicit Transport(net::ServerAddress server);

  absl::StatusOr<message::Welcome> Connect(const message::Hello& hello, absl::Time deadline) override
      TDOCK_EXCLUDES(mu_);
  ClientAnswer Call(const std::string& session, const message::Request& request, const Batch& batch,
                    absl::Time deadline) override TDOCK_EXCLUDES(mu_);
  bool Tell(const message::Request& request, absl::Duration connect_within) override TDOCK_EXCLUDES(mu_);

 private:
  // The contents of a session's welcome.
  struct Shared {
    uint64_t instance = 0;
    std::string session;
    // Over a Unix socket.
    std::optional<dock::UploadArea> area;
    std::optional<UploadSlots> slots;
    dock::SegmentMap segments;
  };
  using Channel = std::unique_ptr<net::Channel>;
  class Exchange;

  absl::StatusOr<Channel> Open(const message::Hello& hello, absl::Time deadline, message::Welcome& welcome)
      TDOCK_EXCLUDES(mu_);
  // A cached, working connection, or null.
  Channel TakeIdle() TDOCK_EXCLUDES(mu_);
  // The same, or a new connection of the current session.
  absl::StatusOr<Channel> Acquire(absl::Time deadline) TDOCK_EXCLUDES(mu_);
  void Keep(Channel channel, const std::shared_ptr<Shared>& shared) TDOCK_EXCLUDES(mu_);
  // After a call without a response.
  void Abandon(Channel channel, const std::shared_ptr<Shared>& shared, uint64_t call, std::vector<uint32_t> lent)
      TDOCK_EXCLUDES(mu_);

  const net::ServerAddress server_;
  // For the bytes of responses.
  const std::shared_ptr<Memory> memory_;

  Mutex mu_;
  message::Hello hello_ TDOCK_GUARDED_BY(mu_);
  std::shared_ptr<Shared> shared_ TDOCK_GUARDED_BY(mu_);
  std::vector<Channel> idle_ TDOCK_GUARDED_BY(mu_);
  // Open, though it cannot be used again, until another is kept: a session without a connection ends, and with it what
  // keeps rows in memory that callers still look at.
  Channel last_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::service
