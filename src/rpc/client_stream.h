// A call that stays open, on the client. For this module only.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "rpc/grpc_bytes.h"
#include "rpc/outgoing.h"
#include "rpc/stream_client.h"

namespace tdock::rpc {

class OpenStream final : public ClientStream, private grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  OpenStream(std::unique_ptr<grpc::ClientContext> context, std::function<void(Pieces)> on_message,
             std::function<void(const grpc::Status&)> on_end)
      : context_(std::move(context)), on_message_(std::move(on_message)), on_end_(std::move(on_end)) {}
  ~OpenStream() override;

  // Once, before anything else.
  void Start(grpc::GenericStub& stub, const std::string& method);

  bool Send(Message message) override;
  void HalfClose() override;
  int64_t queued_bytes() const override { return out_.queued_bytes(); }

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnWritesDoneDone(bool ok) override { OnWriteDone(ok); }
  void OnDone(const grpc::Status& status) override;

  // Starts what may be started.
  void Pump();

  const std::unique_ptr<grpc::ClientContext> context_;
  const std::function<void(Pieces)> on_message_;
  const std::function<void(const grpc::Status&)> on_end_;
  Outgoing out_{/*end_closes=*/false};
  grpc::ByteBuffer in_flight_;  // of whoever has a step of out_
  grpc::ByteBuffer incoming_;   // of the read that is under way, then of OnReadDone

  std::atomic<std::thread::id> calling_back_;  // the thread that runs a callback
  Mutex mu_;
  CondVar over_;
  bool is_over_ TDOCK_GUARDED_BY(mu_) = false;
};

}  // namespace tdock::rpc
