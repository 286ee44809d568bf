// The transport of a client's requests to a server.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "dock/service/wire/messages.h"
#include "dock/service/wire/rows_codec.h"
#include "tdock/batch.h"

namespace tdock::service {

// The result of a call.
struct ClientAnswer {
  // The transport's status: Unavailable if the connection was lost or there is none, DeadlineExceeded. The server's own
  // status is in the reply.
  absl::Status status = {};
  // False only if the server cannot have seen the call.
  bool sent = false;
  message::Reply reply = {};
  // The bytes of the rows in the reply, if it has any.
  CellBytes cells = {};
};

// Times are those of absl::Now(). Thread-safe.
class ClientTransport {
 public:
  virtual ~ClientTransport() = default;

  // Says hello over a working connection. The welcome tells whether the session of the hello still exists; from now on,
  // calls belong to the session of the welcome.
  virtual absl::StatusOr<message::Welcome> Connect(const message::Hello& hello, absl::Time deadline) = 0;

  // Sends a request of the session, with its frame, and waits for the response. Unavailable if calls belong to another
  // session by now.
  virtual ClientAnswer Call(const std::string& session, const message::Request& request, const Batch& batch,
                            absl::Time deadline) = 0;

  // Sends a message without a response. If no connection is free, one is made within `connect_within`; false if that is
  // not possible.
  virtual bool Tell(const message::Request& request, absl::Duration connect_within) = 0;
};

}  // namespace tdock::service
