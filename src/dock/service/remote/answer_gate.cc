#include "dock/service/remote/answer_gate.h"

#include <algorithm>

namespace tdock::service {

void AnswerGate::Call::Answer(const std::shared_ptr<Call>& call, int64_t bytes, Callback<void()> send) {
  AnswerGate& gate = *call->gate_;
  Sends sends;
  {
    MutexLock lock(gate.mu_);
    if (call->state_ != State::kAsked) return;
    call->state_ = State::kWaiting;
    call->bytes_ = bytes;
    call->send_ = std::move(send);
    gate.waiting_.push_back(call);
    sends = gate.TakeAdmitted();
  }
  for (const auto& each : sends) each();
}

void AnswerGate::Call::End() {
  Callback<void()> dropped;  // freed without the lock
  Sends sends;
  {
    MutexLock lock(gate_->mu_);
    if (state_ == State::kSending) gate_->sending_bytes_ -= bytes_;
    state_ = State::kOver;
    dropped = std::exchange(send_, nullptr);
    sends = gate_->TakeAdmitted();
  }
  for (const auto& each : sends) each();
}

AnswerGate::Sends AnswerGate::TakeAdmitted() {
  Sends sends;
  while (!waiting_.empty()) {
    Call& next = *waiting_.front();
    if (next.state_ == Call::State::kWaiting) {
      if (sending_bytes_ > 0 && sending_bytes_ + next.bytes_ > limit_bytes_) break;
      next.state_ = Call::State::kSending;
      sending_bytes_ += next.bytes_;
      sends.push_back(std::exchange(next.send_, nullptr));
    }
    waiting_.pop_front();
  }
  return sends;
}

std::shared_ptr<AnswerGate> AnswerGates::For(const Session* session) {
  MutexLock lock(mu_);
  std::weak_ptr<AnswerGate>& there = gates_[session];
  std::shared_ptr<AnswerGate> gate = there.lock();
  if (gate != nullptr) return gate;
  gate = std::make_shared<AnswerGate>(limit_bytes_);
  there = gate;
  if (gates_.size() >= sweep_at_) {
    absl::erase_if(gates_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = std::max<size_t>(64, 2 * gates_.size());
  }
  return gate;
}

}  // namespace tdock::service
