#include "rpc/client_stream.h"

#include <utility>

#include "base/status.h"

namespace tdock::rpc {

OpenStream::~OpenStream() {
  TDOCK_CHECK(calling_back_.load() != std::this_thread::get_id(), "a stream must not be destroyed in its own callback");
  context_->TryCancel();
  MutexLock lock(mu_);
  while (!is_over_) over_.Wait(mu_);
}

void OpenStream::Start(grpc::GenericStub& stub, const std::string& method) {
  stub.PrepareBidiStreamingCall(context_.get(), method, /*options=*/{}, this);
  AddHold();  // until out_ closes: Send comes from any thread
  StartRead(&incoming_);
  StartCall();
}

bool OpenStream::Send(Message message) {
  if (out_.over()) return false;
  const int64_t size_bytes = SizeOf(message);
  if (!out_.Push(ToByteBuffer(message), size_bytes)) return false;
  Pump();
  return true;
}

void OpenStream::HalfClose() {
  if (out_.End()) Pump();
}

void OpenStream::Pump() {
  switch (out_.Next(&in_flight_)) {
    case Outgoing::Step::kNone:
      return;
    case Outgoing::Step::kWrite:
      return StartWrite(&in_flight_);
    case Outgoing::Step::kWriteLast:
      return StartWriteLast(&in_flight_, grpc::WriteOptions());
    case Outgoing::Step::kEnd:
      return StartWritesDone();
    case Outgoing::Step::kAbandon:
      return RemoveHold();
  }
}

void OpenStream::OnReadDone(bool ok) {
  if (!ok) {
    out_.Abandon();
    return Pump();
  }
  calling_back_ = std::this_thread::get_id();
  {
    const ReceivedPieces received(incoming_);
    on_message_(received.pieces());
  }
  calling_back_ = std::thread::id();
  incoming_.Clear();
  StartRead(&incoming_);
}

void OpenStream::OnWriteDone(bool ok) {
  in_flight_.Clear();
  out_.Done(ok);
  Pump();
}

void OpenStream::OnDone(const grpc::Status& status) {
  calling_back_ = std::this_thread::get_id();
  on_end_(status);
  calling_back_ = std::thread::id();
  MutexLock lock(mu_);
  is_over_ = true;
  over_.NotifyAll();
}

}  // namespace tdock::rpc
