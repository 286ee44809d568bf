// A long-lived call, on the client. For this module only.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "core/base/mutex.h"
#include "core/rpc/completion.h"
#include "core/rpc/grpc_bytes.h"
#include "core/rpc/outgoing.h"
#include "core/rpc/stream_client.h"
#include "core/rpc/stream_events.h"

namespace tdock::rpc {

// Thread-safe.
class StreamCall final : public std::enable_shared_from_this<StreamCall> {
 public:
  StreamCall(std::shared_ptr<grpc::ClientContext> context, std::function<void(Pieces)> on_message,
             std::function<void(const grpc::Status&)> on_end)
      : context_(std::move(context)), on_message_(std::move(on_message)), on_end_(std::move(on_end)) {}

  // Call it once, before anything else.
  void Start(grpc::GenericStub& stub, const std::string& method, grpc::CompletionQueue& queue);
  bool Send(Message message);
  void HalfClose();
  int64_t queued_bytes() const { return out_.queued_bytes(); }
  void Cancel() { context_->TryCancel(); }
  // Returns after `on_end` has; not to be called by a callback.
  void AwaitEnd() TDOCK_EXCLUDES(mu_);

 private:
  // Completions of operations.
  void OnStarted(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);

  // Starts the operations that can be started.
  void Pump();
  void ReadNext();
  // Releases a hold.
  void Leave() TDOCK_EXCLUDES(mu_);

  const std::shared_ptr<grpc::ClientContext> context_;
  std::function<void(Pieces)> on_message_;
  std::function<void(const grpc::Status&)> on_end_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  Operation<StreamCall> start_{this, &StreamCall::OnStarted};
  Operation<StreamCall> read_{this, &StreamCall::OnRead};
  Operation<StreamCall> write_{this, &StreamCall::OnWritten};
  Operation<StreamCall> finish_{this, &StreamCall::OnFinished};
  // The first hold lasts until gRPC has reported how the call ended.
  Holds holds_;
  Outgoing out_;
  grpc::ByteBuffer in_flight_;  // of the thread that has a step of out_
  grpc::ByteBuffer incoming_;   // of the read in progress
  grpc::Status status_;         // of the finish in progress

  std::atomic<std::thread::id> calling_back_;  // the thread that runs a callback
  Mutex mu_;
  CondVar over_;
  bool is_over_ TDOCK_GUARDED_BY(mu_) = false;
};

// Keeps its call alive.
class OpenStream final : public ClientStream {
 public:
  OpenStream(std::shared_ptr<StreamCall> call, StreamEvents& events) : call_(std::move(call)), events_(events) {}
  ~OpenStream() override {
    call_->Cancel();
    events_.Expect();
    call_->AwaitEnd();
  }

  bool Send(Message message) override { return call_->Send(std::move(message)); }
  void HalfClose() override { call_->HalfClose(); }
  int64_t queued_bytes() const override { return call_->queued_bytes(); }

 private:
  const std::shared_ptr<StreamCall> call_;
  StreamEvents& events_;
};

}  // namespace tdock::rpc
