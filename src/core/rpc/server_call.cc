#include "core/rpc/server_call.h"

#include <grpc/grpc.h>

#include <utility>

namespace tdock::rpc {

void ServerCall::Await(grpc::AsyncGenericService& service, grpc::ServerCompletionQueue& queue) {
  context_.AsyncNotifyWhenDone(ended_.Begin());
  service.RequestCall(&context_, &stream_, &queue, &queue, arrived_.Begin());
}

void ServerCall::OnArrived(bool ok) {
  if (ok) return Dispatch(kArrived);
  // gRPC does not report the end of a call that never arrived.
  ended_.Forget();
  Leave();
}

void ServerCall::Accept() {
  auto handler = host_.OnCall(context_, shared_from_this());
  if (!handler.ok()) return Finish(handler.status());
  handler_ = *std::move(handler);
}

void ServerCall::Send(Message message) {
  if (out_.over()) return;
  const int64_t size_bytes = SizeOf(message);
  if (out_.Push(ToByteBuffer(message), size_bytes)) Pump();
}

void ServerCall::Finish(const absl::Status& status) {
  {
    MutexLock lock(mu_);
    if (std::exchange(finished_, true)) return;
    status_ = ToGrpc(status);
  }
  if (out_.End()) Pump();
}

void ServerCall::PauseReads() {
  MutexLock lock(mu_);
  paused_ = true;
}

void ServerCall::ResumeReads() {
  {
    MutexLock lock(mu_);
    paused_ = false;
    if (!std::exchange(read_wanted_, false)) return;
  }
  StartRead();
}

void ServerCall::ReadNext() {
  {
    MutexLock lock(mu_);
    if (paused_) {
      read_wanted_ = true;
      return;
    }
  }
  StartRead();
}

void ServerCall::StartRead() {
  if (out_.over() || !holds_.Enter()) return;
  stream_.Read(&incoming_, read_.Begin());
}

void ServerCall::OnRead(bool ok) {
  if (ok) {
    Dispatch(kMessage);
  } else if (grpc_call_failed_before_recv_message(context_.c_call()) == 0) {
    // The client has sent everything: it has neither cancelled the call nor gone.
    Dispatch(kHalfClose);
  }
  Leave();
}

void ServerCall::Pump() {
  if (!holds_.Enter()) return;
  const Outgoing::Step step = out_.Next(&in_flight_);
  if (step == Outgoing::Step::kNone) return Leave();
  if (step == Outgoing::Step::kWrite) return stream_.Write(in_flight_, write_.Begin());
  grpc::Status status;
  {
    MutexLock lock(mu_);
    status = status_;
  }
  if (step == Outgoing::Step::kEnd) return stream_.Finish(status, write_.Begin());
  stream_.WriteAndFinish(in_flight_, grpc::WriteOptions(), status, write_.Begin());
}

void ServerCall::OnWritten(bool ok) {
  in_flight_.Clear();
  out_.Done(ok);
  Pump();
  Dispatch(kSent);
  Leave();
}

void ServerCall::OnEnded(bool) {
  out_.Abandon();
  Leave();
}

void ServerCall::Leave() {
  if (holds_.Leave()) Dispatch(kGone);
}

void ServerCall::Dispatch(Event event) {
  {
    MutexLock lock(mu_);
    pending_ |= event;
    if (std::exchange(dispatching_, true)) return;
  }
  for (;;) {
    unsigned events = 0;
    {
      MutexLock lock(mu_);
      events = std::exchange(pending_, 0);
      if (events == 0) {
        dispatching_ = false;
        return;
      }
    }
    Handle(events);
  }
}

void ServerCall::Handle(unsigned events) {
  // A response that is complete when the handler returns is sent as one batch.
  out_.Cork();
  if ((events & kArrived) != 0) Accept();
  if ((events & kMessage) != 0 && handler_ != nullptr) {
    constexpr size_t kLongBytes = 64 << 10;
    if (incoming_.Length() >= kLongBytes) HandWaitingOver();
    const ReceivedPieces received(incoming_);
    handler_->OnMessage(received.pieces());
  }
  if ((events & kMessage) != 0) incoming_.Clear();
  if ((events & kSent) != 0 && handler_ != nullptr) handler_->OnSent();
  if ((events & kHalfClose) != 0 && handler_ != nullptr) handler_->OnHalfClose();
  out_.Uncork();
  Pump();
  if ((events & (kArrived | kMessage)) != 0) ReadNext();
  if ((events & kGone) != 0) {
    const std::shared_ptr<CallHandler> handler = std::exchange(handler_, nullptr);
    if (handler != nullptr) handler->OnGone();
    host_.OnOver();
  }
}

}  // namespace tdock::rpc
