#include "rpc/server_call.h"

#include <utility>

namespace tdock::rpc {

void ServerCallSink::Send(Message message) {
  if (out_.over()) return;
  const int64_t size_bytes = SizeOf(message);
  if (out_.Push(ToByteBuffer(message), size_bytes)) Pump();
}

void ServerCallSink::Finish(const absl::Status& status) {
  {
    MutexLock lock(mu_);
    if (std::exchange(finished_, true)) return;
    status_ = ToGrpc(status);
  }
  if (out_.End()) Pump();
}

void ServerCallSink::PauseReads() {
  MutexLock lock(mu_);
  paused_ = true;
}

void ServerCallSink::ResumeReads() {
  {
    MutexLock lock(mu_);
    paused_ = false;
    if (!std::exchange(read_wanted_, false)) return;
  }
  StartRead();
}

void ServerCallSink::ReadNext() {
  {
    MutexLock lock(mu_);
    if (paused_) {
      read_wanted_ = true;
      return;
    }
  }
  StartRead();
}

void ServerCallSink::StartRead() {
  if (!out_.Pin()) return;
  call_->StartRead(&call_->incoming_);
  out_.Unpin();
  Pump();
}

void ServerCallSink::Pump() {
  const Outgoing::Step step = out_.Next(&in_flight_);
  if (step == Outgoing::Step::kNone) return;
  if (step == Outgoing::Step::kWrite) return call_->StartWrite(&in_flight_);
  if (step == Outgoing::Step::kAbandon) {
    return call_->Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the call was cancelled or its connection lost"));
  }
  grpc::Status status;
  {
    MutexLock lock(mu_);
    status = status_;
  }
  if (step == Outgoing::Step::kEnd) return call_->Finish(std::move(status));
  call_->StartWriteAndFinish(&in_flight_, grpc::WriteOptions(), std::move(status));
}

void ServerCall::Accept(std::shared_ptr<CallHandler> handler) {
  handler_ = std::move(handler);
  sink_->ReadNext();
}

void ServerCall::OnReadDone(bool ok) {
  if (ok) {
    Dispatch(kMessage);
  } else if (!context_->IsCancelled()) {
    // gRPC marks a call as cancelled before it reports that a read has failed for another reason than the end.
    Dispatch(kHalfClose);
  }
}

void ServerCall::OnWriteDone(bool ok) {
  sink_->in_flight_.Clear();
  sink_->out_.Done(ok);
  sink_->Pump();
  Dispatch(kSent);
}

void ServerCall::OnCancel() {
  sink_->out_.Abandon();
  sink_->Pump();
}

void ServerCall::OnDone() {
  sink_->in_flight_.Clear();
  sink_->out_.Done(/*ok=*/false);
  if (handler_ != nullptr) handler_->OnGone();
  delete this;
}

void ServerCall::Dispatch(Event event) {
  if (handler_ == nullptr) return;
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
  // An answer that is complete when the handler returns goes out as one batch.
  sink_->out_.Cork();
  if ((events & kMessage) != 0) {
    {
      const ReceivedPieces received(incoming_);
      handler_->OnMessage(received.pieces());
    }
    incoming_.Clear();
  }
  if ((events & kSent) != 0) handler_->OnSent();
  if ((events & kHalfClose) != 0) handler_->OnHalfClose();
  sink_->out_.Uncork();
  sink_->Pump();
  if ((events & kMessage) != 0) sink_->ReadNext();
}

}  // namespace tdock::rpc
