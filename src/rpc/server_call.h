// One call on the server: gRPC's reactor on one side, CallHandler and CallSink on the other. For this module only.
#pragma once

#include <grpcpp/generic/async_generic_service.h>

#include <memory>

#include "base/mutex.h"
#include "rpc/grpc_bytes.h"
#include "rpc/outgoing.h"
#include "rpc/stream_server.h"

namespace tdock::rpc {

class ServerCall;

// Outlives the call as long as somebody holds it.
class ServerCallSink final : public CallSink {
 public:
  explicit ServerCallSink(ServerCall* call) : call_(call) {}

  void Send(Message message) override;
  void Finish(const absl::Status& status) override;
  bool gone() const override { return out_.over(); }
  int64_t queued_bytes() const override { return out_.queued_bytes(); }
  void PauseReads() override TDOCK_EXCLUDES(mu_);
  void ResumeReads() override TDOCK_EXCLUDES(mu_);

 private:
  friend class ServerCall;

  // Starts what may be started.
  void Pump() TDOCK_EXCLUDES(mu_);
  // Reads the next message, or remembers to.
  void ReadNext() TDOCK_EXCLUDES(mu_);
  void StartRead();

  ServerCall* const call_;  // there between a step of out_ or a pin, and its end
  Outgoing out_{/*end_closes=*/true};
  grpc::ByteBuffer in_flight_;  // of whoever has a step of out_

  Mutex mu_;
  grpc::Status status_ TDOCK_GUARDED_BY(mu_);
  bool finished_ TDOCK_GUARDED_BY(mu_) = false;
  bool paused_ TDOCK_GUARDED_BY(mu_) = false;
  bool read_wanted_ TDOCK_GUARDED_BY(mu_) = false;
};

// Deletes itself when gRPC is done with it.
class ServerCall final : public grpc::ServerGenericBidiReactor {
 public:
  explicit ServerCall(grpc::GenericCallbackServerContext* context)
      : context_(context), sink_(std::make_shared<ServerCallSink>(this)) {}

  const std::shared_ptr<ServerCallSink>& sink() const { return sink_; }
  // Exactly one of the two, once. After a rejection, the sink is of no use.
  void Accept(std::shared_ptr<CallHandler> handler);
  void Reject(const absl::Status& status) { sink_->Finish(status); }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  friend class ServerCallSink;
  enum Event : unsigned { kMessage = 1, kHalfClose = 2, kSent = 4 };

  // Calls the handler, unless another thread does, which then goes on with this event.
  void Dispatch(Event event) TDOCK_EXCLUDES(mu_);
  void Handle(unsigned events);

  grpc::GenericCallbackServerContext* const context_;
  const std::shared_ptr<ServerCallSink> sink_;
  std::shared_ptr<CallHandler> handler_;  // null: rejected
  grpc::ByteBuffer incoming_;             // of the read that is under way, then of the thread that dispatches

  Mutex mu_;
  unsigned pending_ TDOCK_GUARDED_BY(mu_) = 0;
  bool dispatching_ TDOCK_GUARDED_BY(mu_) = false;
};

}  // namespace tdock::rpc
