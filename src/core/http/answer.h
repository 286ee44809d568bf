// An exchange as the connection sees it. Internal to this module.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/base/mutex.h"
#include "core/http/server.h"

namespace tdock::http {

class Answer;

// Who sends an answer. Thread-safe.
class Recipient {
 public:
  virtual ~Recipient() = default;
  // There is something to take. Returns at once.
  virtual void Wake() = 0;
  // The body of the request is no longer there. Returns at once.
  virtual void BodyIsDropped(const Answer* answer) = 0;
};

// Thread-safe.
class Answer final : public Exchange {
 public:
  // `all_unread` sums up unread_bytes() of all answers.
  Answer(std::shared_ptr<Recipient> recipient, size_t max_unread, std::shared_ptr<std::atomic<size_t>> all_unread,
         Request request, bool keep_alive, bool chunks)
      : max_unread_(max_unread),
        all_unread_(std::move(all_unread)),
        request_(std::move(request)),
        request_bytes_(request_.body.size()),
        begun_at_(std::chrono::steady_clock::now()),
        keep_alive_(keep_alive),
        chunks_(chunks),
        recipient_(std::move(recipient)) {}

  const Request& request() const override { return request_; }
  void DropBody() override TDOCK_EXCLUDES(mu_);
  void Send(Response response) override TDOCK_EXCLUDES(mu_);
  void Begin(Response head) override TDOCK_EXCLUDES(mu_);
  void Write(absl::string_view piece) override TDOCK_EXCLUDES(mu_);
  void End(absl::string_view last) override TDOCK_EXCLUDES(mu_);
  size_t unread_bytes() const override TDOCK_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    return unread_;
  }
  void OnGone(std::function<void()> call) override TDOCK_EXCLUDES(mu_);
  bool gone() const override TDOCK_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    return recipient_ == nullptr && !complete_;
  }
  void Note(std::string note) override TDOCK_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    note_ = std::move(note);
  }
  // The handler has dropped it.
  void Abandon(Response unanswered) TDOCK_EXCLUDES(mu_);

  // ---- For the connection.
  struct Outgoing {
    std::string bytes = {};
    bool last = false, cut = false, keep_alive = false;
  };
  Outgoing Take() TDOCK_EXCLUDES(mu_);
  bool is_cut() const TDOCK_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    return cut_;
  }
  void Sent(size_t bytes) TDOCK_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    unread_ -= bytes;
    *all_unread_ -= bytes;
    sent_ += bytes;
  }
  void StopKeepingAlive() TDOCK_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    keep_alive_ = false;
  }
  // No more bytes will be taken: the answer is complete, or the client is gone.
  Ended Close(bool complete) TDOCK_EXCLUDES(mu_);

 private:
  void Add(std::string bytes) TDOCK_REQUIRES(mu_) {
    unread_ += bytes.size();
    *all_unread_ += bytes.size();
    if (out_.empty()) {
      out_ = std::move(bytes);
    } else {
      out_ += bytes;
    }
  }
  // Whom to tell of news, if nobody has been told: then call Tell() without the lock.
  std::shared_ptr<Recipient> NewsFor() TDOCK_REQUIRES(mu_) { return std::exchange(told_, true) ? nullptr : recipient_; }
  // The same of a cut, which cannot wait until the client has read what is being sent.
  std::shared_ptr<Recipient> Cut() TDOCK_REQUIRES(mu_) { return std::exchange(cut_, true) ? nullptr : recipient_; }
  static void Tell(const std::shared_ptr<Recipient>& recipient);

  // A response to HEAD has the head that GET would get, and nothing behind it.
  bool has_body() const { return request_.method != "HEAD"; }

  const size_t max_unread_;
  const std::shared_ptr<std::atomic<size_t>> all_unread_;
  Request request_;
  const uint64_t request_bytes_;
  const std::chrono::steady_clock::time_point begun_at_;

  mutable Mutex mu_;
  bool keep_alive_ TDOCK_GUARDED_BY(mu_);
  const bool chunks_;                                           // whether the client understands them
  std::shared_ptr<Recipient> recipient_ TDOCK_GUARDED_BY(mu_);  // null: no more bytes will be taken
  std::string out_ TDOCK_GUARDED_BY(mu_);                       // that the connection has not taken
  size_t unread_ TDOCK_GUARDED_BY(mu_) = 0;
  uint64_t sent_ TDOCK_GUARDED_BY(mu_) = 0;
  int status_ TDOCK_GUARDED_BY(mu_) = 0;
  bool ended_ TDOCK_GUARDED_BY(mu_) = false;
  bool cut_ TDOCK_GUARDED_BY(mu_) = false;
  bool told_ TDOCK_GUARDED_BY(mu_) = false;
  bool complete_ TDOCK_GUARDED_BY(mu_) = false;
  std::string note_ TDOCK_GUARDED_BY(mu_);
  std::function<void()> on_gone_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::http
