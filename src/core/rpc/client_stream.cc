#include "core/rpc/client_stream.h"

#include <utility>

#include "core/base/status.h"

namespace tdock::rpc {

void StreamCall::Start(grpc::GenericStub& stub, const std::string& method, grpc::CompletionQueue& queue) {
  stream_ = stub.PrepareCall(context_.get(), method, &queue);
  // gRPC accepts no write before the call has begun.
  out_.Cork();
  if (!holds_.Enter()) return;
  stream_->StartCall(start_.Begin());
  ReadNext();
}

bool StreamCall::Send(Message message) {
  if (out_.over()) return false;
  const int64_t size_bytes = SizeOf(message);
  if (!out_.Push(ToByteBuffer(message), size_bytes)) return false;
  Pump();
  return true;
}

void StreamCall::HalfClose() {
  if (out_.End()) Pump();
}

void StreamCall::AwaitEnd() {
  TDOCK_CHECK(calling_back_.load() != std::this_thread::get_id(), "a stream must not be destroyed in its own callback");
  MutexLock lock(mu_);
  while (!is_over_) over_.Wait(mu_);
}

void StreamCall::Pump() {
  if (!holds_.Enter()) return;
  switch (out_.Next(&in_flight_)) {
    case Outgoing::Step::kNone:
      return Leave();
    case Outgoing::Step::kWrite:
      return stream_->Write(in_flight_, write_.Begin());
    case Outgoing::Step::kWriteLast:
      return stream_->WriteLast(in_flight_, grpc::WriteOptions(), write_.Begin());
    case Outgoing::Step::kEnd:
      return stream_->WritesDone(write_.Begin());
  }
}

void StreamCall::ReadNext() {
  if (holds_.Enter()) stream_->Read(&incoming_, read_.Begin());
}

void StreamCall::OnStarted(bool) {
  out_.Uncork();
  Pump();
  Leave();
}

void StreamCall::OnRead(bool ok) {
  if (ok) {
    calling_back_ = std::this_thread::get_id();
    {
      const ReceivedPieces received(incoming_);
      on_message_(received.pieces());
    }
    calling_back_ = std::thread::id();
    incoming_.Clear();
    ReadNext();
  } else {
    out_.Abandon();
    stream_->Finish(&status_, finish_.Begin());
  }
  Leave();
}

void StreamCall::OnWritten(bool ok) {
  in_flight_.Clear();
  out_.Done(ok);
  Pump();
  Leave();
}

// The first hold ends here.
void StreamCall::OnFinished(bool) { Leave(); }

void StreamCall::Leave() {
  if (!holds_.Leave()) return;
  calling_back_ = std::this_thread::get_id();
  on_end_(status_);
  calling_back_ = std::thread::id();
  // What the callbacks hold is released before waiters for the end are notified.
  on_message_ = nullptr;
  on_end_ = nullptr;
  MutexLock lock(mu_);
  is_over_ = true;
  over_.NotifyAll();
}

}  // namespace tdock::rpc
