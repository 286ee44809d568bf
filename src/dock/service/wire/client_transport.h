// How a client's requests reach a server.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "dock/service/wire/rows_codec.h"
#include "tdock.pb.h"
#include "tdock/batch.h"

namespace tdock {

// What a call brought back.
struct ClientAnswer {
  // The transport's: Unavailable if the connection was lost or there is none, DeadlineExceeded. What the server has to
  // say is in the reply.
  absl::Status status = {};
  // False only if the server cannot have seen the call.
  bool sent = false;
  v1::Reply reply = {};
  // Of the rows in the reply, if it has any.
  CellBytes cells = {};
};

// Times are those of absl::Now(). Thread-safe.
class ClientTransport {
 public:
  virtual ~ClientTransport() = default;

  // Says hello over a connection that works. The welcome says whether the session of the hello is still there; calls
  // from now on belong to the session of the welcome.
  virtual absl::StatusOr<v1::Welcome> Connect(const v1::Hello& hello, absl::Time deadline) = 0;

  // Sends a request, with the batch of a put, and waits for the answer.
  virtual ClientAnswer Call(const v1::Request& request, const Batch& batch, absl::Time deadline) = 0;

  // Sends what has no answer. False if there is no connection over which that can be done at once; one is made for it
  // if it may take so long.
  virtual bool Tell(const v1::Request& request, absl::Duration connect_within) = 0;
};

}  // namespace tdock
