// A client's connection, whose calls wait on the thread that makes them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/net/credentials.h"
#include "core/net/inbox.h"
#include "core/net/outbox.h"
#include "core/net/stream.h"

namespace tdock::net {

struct ServerAddress {
  // "unix:/path", or "host:port" with an IPv6 address in brackets.
  std::string address = {};
  // For TCP; null: without a token and TLS.
  std::shared_ptr<Credentials> credentials = {};
  Role role = Role::kDock;
};

// Times are those of absl::Now(). Errors: Unavailable if the connection is lost or could not be made; if the server
// ended it, with the server's reason. DeadlineExceeded. Not thread-safe.
class Channel {
 public:
  // Says hello, with `rest` for the server, and returns when it has answered. InvalidArgument for a wrong address,
  // PermissionDenied if another user listens on a Unix socket, Unauthenticated for a wrong token.
  static absl::StatusOr<std::unique_ptr<Channel>> Connect(const ServerAddress& server, std::string rest,
                                                          absl::Time deadline);

  // The body of the server's welcome, and the file that came with it; null if there was none.
  const std::string& welcome() const { return welcome_; }
  const std::shared_ptr<const FileDescriptor>& welcome_file() const { return welcome_file_; }

  // Sends what is in here, and large data over several sockets, if there are some.
  Outbox& out() { return out_; }
  void AddData(uint64_t tag, std::vector<std::span<const std::byte>> pieces, const std::shared_ptr<const void>& owner);
  absl::Status Flush(absl::Time deadline);
  // Makes more sockets for this connection, over TCP: from now on, both sides send a part of large data over each.
  absl::Status Widen(const ServerAddress& server, absl::Time deadline);
  bool tried_to_widen() const { return tried_to_widen_; }
  // The next message; its body is valid until the next call. `recipient` gets the data between them, and what comes
  // over other sockets once it is ready for that.
  absl::StatusOr<Inbox::Message> Receive(Recipient& recipient, absl::Time deadline);
  // A message that has arrived already, or nothing, when everything that has arrived was handed over.
  absl::StatusOr<std::optional<Inbox::Message>> TryReceive(Recipient& recipient);

  // Returns when more may have arrived; looks for it until `look_until` before it sleeps.
  absl::Status AwaitInput(absl::Time look_until, absl::Time deadline);
  // How long to look: most responses arrive sooner than an idle processor wakes up.
  static constexpr absl::Duration kLookForAnswer = absl::Microseconds(50);

  // True if the server has closed the connection, as far as this side knows.
  bool IsBroken() const;
  Stream& stream() { return *stream_; }

  // The parts for one who goes on without this object.
  struct Parts {
    std::unique_ptr<Stream> stream;
    std::unique_ptr<Inbox> inbox;
  };
  static Parts TakeApart(std::unique_ptr<Channel> channel) {
    return {std::move(channel->stream_), std::move(channel->in_)};
  }
  ~Channel();

 private:
  explicit Channel(std::unique_ptr<Stream> stream);

  absl::Status SayHello(const ServerAddress& server, const std::string& token, std::string joins, std::string rest,
                        absl::Time deadline);
  // Waits for what the first stream waits for, and until others can be read; or written, if `sends`.
  absl::Status Await(absl::Time deadline, bool sends = false);
  // Hands over what has arrived over the other sockets.
  absl::Status TakeJoined(Recipient& recipient);

  struct Joined;

  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Inbox> in_;
  Outbox out_;
  std::vector<std::unique_ptr<Joined>> joined_;
  bool tried_to_widen_ = false;
  std::string id_, welcome_;
  bool was_told_ = false;  // by a goodbye why the connection is over
  std::shared_ptr<const FileDescriptor> welcome_file_;
};

}  // namespace tdock::net
