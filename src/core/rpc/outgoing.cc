#include "core/rpc/outgoing.h"

#include <utility>

namespace tdock::rpc {

bool Outgoing::Push(grpc::ByteBuffer message, int64_t size_bytes) {
  MutexLock lock(mu_);
  if (ended_ || abandoned_) return false;
  waiting_.push_back({std::move(message), size_bytes});
  queued_bytes_ += size_bytes;
  return true;
}

bool Outgoing::End() {
  MutexLock lock(mu_);
  if (ended_ || abandoned_) return false;
  ended_ = true;
  return true;
}

void Outgoing::Abandon() {
  std::deque<Waiting> dropped;  // freed without the lock
  MutexLock lock(mu_);
  abandoned_ = true;
  dropped.swap(waiting_);
  queued_bytes_ = in_flight_bytes_;
}

void Outgoing::Cork() {
  MutexLock lock(mu_);
  ++corks_;
}

void Outgoing::Uncork() {
  MutexLock lock(mu_);
  --corks_;
}

Outgoing::Step Outgoing::Next(grpc::ByteBuffer* message) {
  MutexLock lock(mu_);
  if (in_flight_ || abandoned_ || end_given_ || corks_ > 0) return Step::kNone;
  if (waiting_.empty() && !ended_) return Step::kNone;
  in_flight_ = true;
  end_given_ = ended_ && waiting_.size() <= 1;
  if (waiting_.empty()) return Step::kEnd;
  message->Swap(&waiting_.front().message);
  in_flight_bytes_ = waiting_.front().size_bytes;
  waiting_.pop_front();
  return end_given_ ? Step::kWriteLast : Step::kWrite;
}

void Outgoing::Done(bool ok) {
  {
    MutexLock lock(mu_);
    in_flight_ = false;
    queued_bytes_ -= in_flight_bytes_;
    in_flight_bytes_ = 0;
  }
  if (!ok) Abandon();
}

bool Outgoing::over() const {
  MutexLock lock(mu_);
  return abandoned_ || end_given_;
}

int64_t Outgoing::queued_bytes() const {
  MutexLock lock(mu_);
  return queued_bytes_;
}

}  // namespace tdock::rpc
