// One call on the server: gRPC's operations on one side, CallHandler and CallSink on the other. For this module only.
#pragma once

#include <grpcpp/generic/async_generic_service.h>

#include <memory>

#include "core/base/mutex.h"
#include "core/rpc/completion.h"
#include "core/rpc/grpc_bytes.h"
#include "core/rpc/outgoing.h"
#include "core/rpc/stream_server.h"

namespace tdock::rpc {

// Lives as long as gRPC or another owner holds it. Thread-safe.
class ServerCall final : public CallSink, public std::enable_shared_from_this<ServerCall> {
 public:
  // The owner of these calls; outlives them.
  class Host {
   public:
    // A call has arrived: `context` describes it.
    virtual absl::StatusOr<std::shared_ptr<CallHandler>> OnCall(const grpc::GenericServerContext& context,
                                                                const std::shared_ptr<CallSink>& sink) = 0;
    // The call is over, or none arrived before the server was shut down.
    virtual void OnOver() = 0;

   protected:
    ~Host() = default;
  };

  explicit ServerCall(Host& host) : host_(host) {}

  // Call it once, before anything else: waits for a call.
  void Await(grpc::AsyncGenericService& service, grpc::ServerCompletionQueue& queue);

  void Send(Message message) override;
  void Finish(const absl::Status& status) override;
  bool gone() const override { return out_.over(); }
  int64_t queued_bytes() const override { return out_.queued_bytes(); }
  void PauseReads() override TDOCK_EXCLUDES(mu_);
  void ResumeReads() override TDOCK_EXCLUDES(mu_);

 private:
  enum Event : unsigned { kMessage = 1, kHalfClose = 2, kSent = 4, kGone = 8, kArrived = 16 };

  // Completions of operations.
  void OnArrived(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnEnded(bool ok);

  void Accept();
  // Starts the operations that can be started.
  void Pump();
  // Reads the next message, or remembers to do so.
  void ReadNext() TDOCK_EXCLUDES(mu_);
  void StartRead();
  // Releases a hold.
  void Leave();

  // Calls the handler, unless another thread is doing so, which then continues with this event.
  void Dispatch(Event event) TDOCK_EXCLUDES(mu_);
  void Handle(unsigned events);

  Host& host_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  Operation<ServerCall> arrived_{this, &ServerCall::OnArrived};
  Operation<ServerCall> read_{this, &ServerCall::OnRead};
  Operation<ServerCall> write_{this, &ServerCall::OnWritten};
  Operation<ServerCall> ended_{this, &ServerCall::OnEnded};
  // The first hold lasts until the call has ended.
  Holds holds_;

  std::shared_ptr<CallHandler> handler_;  // null: rejected, or gone
  Outgoing out_;
  grpc::ByteBuffer in_flight_;  // of the thread that has a step of out_
  grpc::ByteBuffer incoming_;   // of the read in progress, then of the thread that dispatches

  Mutex mu_;
  grpc::Status status_ TDOCK_GUARDED_BY(mu_);
  bool finished_ TDOCK_GUARDED_BY(mu_) = false;
  bool paused_ TDOCK_GUARDED_BY(mu_) = false;
  bool read_wanted_ TDOCK_GUARDED_BY(mu_) = false;
  unsigned pending_ TDOCK_GUARDED_BY(mu_) = 0;
  bool dispatching_ TDOCK_GUARDED_BY(mu_) = false;
};

}  // namespace tdock::rpc
