#include "core/base/workers.h"

#include <utility>

namespace tdock {

Workers::Workers(int threads, std::function<void()> at_start) : at_start_(std::move(at_start)) {
  for (int thread = 1; thread < threads; ++thread) others_.emplace_back([this, thread] { Serve(thread); });
}

Workers::~Workers() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& other : others_) other.join();
}

void Workers::Run(int pieces, const std::function<void(int)>& body) {
  if (others_.empty() || pieces <= 1) {
    for (int piece = 0; piece < pieces; ++piece) body(piece);
    return;
  }
  {
    MutexLock lock(mu_);
    const uint64_t turn = calls_++;
    while (served_ != turn) changed_.Wait(mu_);
    body_ = &body;
    pieces_ = pieces;
    ++generation_;
    running_ = static_cast<int>(others_.size());
    changed_.NotifyAll();
  }
  RunShare(0, pieces, body);
  std::exception_ptr failure;
  {
    MutexLock lock(mu_);
    while (running_ > 0) changed_.Wait(mu_);
    failure = std::exchange(failure_, nullptr);
    ++served_;
    changed_.NotifyAll();
  }
  if (failure) std::rethrow_exception(failure);
}

void Workers::RunShare(int thread, int pieces, const std::function<void(int)>& body) {
  for (int piece = thread; piece < pieces; piece += threads()) {
    try {
      body(piece);
    } catch (...) {
      MutexLock lock(mu_);
      if (!failure_ || piece < failed_piece_) {
        failure_ = std::current_exception();
        failed_piece_ = piece;
      }
      return;
    }
  }
}

void Workers::Serve(int thread) {
  if (at_start_) at_start_();
  int served = 0;
  for (;;) {
    const std::function<void(int)>* body = nullptr;
    int pieces = 0;
    {
      MutexLock lock(mu_);
      while (!stopping_ && generation_ == served) changed_.Wait(mu_);
      if (stopping_) return;
      served = generation_;
      body = body_;
      pieces = pieces_;
    }
    RunShare(thread, pieces, *body);
    MutexLock lock(mu_);
    if (--running_ == 0) changed_.NotifyAll();
  }
}

}  // namespace tdock
