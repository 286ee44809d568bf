#include "core/http/answer.h"

#include "absl/strings/str_cat.h"
#include "core/base/callback.h"

namespace tdock::http {

void Answer::Tell(const std::shared_ptr<Recipient>& recipient) {
  if (recipient != nullptr) recipient->Wake();
}

void Answer::DropBody() {
  request_.body = {};
  std::shared_ptr<Recipient> recipient;
  {
    const MutexLock lock(mu_);
    recipient = recipient_;
  }
  if (recipient != nullptr) recipient->BodyIsDropped(this);
}

void Answer::Send(Response response) {
  std::shared_ptr<Recipient> news;
  {
    const MutexLock lock(mu_);
    if (status_ != 0 || recipient_ == nullptr) return;
    status_ = response.status;
    ended_ = true;
    Add(HeadOf(response, Framing::kLength, response.body.size(), keep_alive_));
    if (has_body()) Add(std::move(response.body));
    news = NewsFor();
  }
  Tell(news);
}

void Answer::Begin(Response head) {
  std::shared_ptr<Recipient> news;
  {
    const MutexLock lock(mu_);
    if (status_ != 0 || recipient_ == nullptr) return;
    status_ = head.status;
    if (!chunks_) keep_alive_ = false;
    Add(HeadOf(head, chunks_ ? Framing::kChunks : Framing::kClose, 0, keep_alive_));
    news = NewsFor();
  }
  Tell(news);
}

void Answer::Write(absl::string_view piece) {
  std::shared_ptr<Recipient> news;
  {
    const MutexLock lock(mu_);
    if (status_ == 0 || ended_ || recipient_ == nullptr || piece.empty()) return;
    if (unread_ > max_unread_) {
      news = Cut();
    } else if (has_body()) {
      Add(chunks_ ? ChunkOf(piece) : std::string(piece));
      news = NewsFor();
    }
  }
  Tell(news);
}

void Answer::End(absl::string_view last) {
  std::shared_ptr<Recipient> news;
  {
    const MutexLock lock(mu_);
    if (status_ == 0 || ended_ || recipient_ == nullptr) return;
    ended_ = true;
    if (has_body()) Add(chunks_ ? absl::StrCat(ChunkOf(last), kLastChunk) : std::string(last));
    news = NewsFor();
  }
  Tell(news);
}

void Answer::Abandon(Response unanswered) {
  bool begun = false;
  std::shared_ptr<Recipient> news;
  {
    const MutexLock lock(mu_);
    if (ended_ || recipient_ == nullptr) return;
    begun = status_ != 0;
    if (begun) news = Cut();
  }
  if (!begun) return Send(std::move(unanswered));
  Tell(news);
}

void Answer::OnGone(std::function<void()> call) {
  {
    const MutexLock lock(mu_);
    if (complete_) return;
    if (recipient_ != nullptr) {
      on_gone_ = std::move(call);
      return;
    }
  }
  CheckNoLockHeld("a callback");
  call();
}

Answer::Outgoing Answer::Take() {
  const MutexLock lock(mu_);
  told_ = false;
  Outgoing outgoing{.bytes = std::move(out_), .last = ended_, .cut = cut_, .keep_alive = keep_alive_};
  out_.clear();
  return outgoing;
}

Ended Answer::Close(bool complete) {
  std::function<void()> on_gone;
  std::shared_ptr<Recipient> recipient;  // dropped without the lock
  Ended ended;
  {
    const MutexLock lock(mu_);
    complete_ = complete;
    recipient.swap(recipient_);
    on_gone.swap(on_gone_);
    out_.clear();
    *all_unread_ -= std::exchange(unread_, 0);
    ended = {.method = request_.method,
             .path = request_.path,
             .peer = request_.peer,
             .status = status_,
             .gone = !complete,
             .request_bytes = request_bytes_,
             .sent_bytes = sent_,
             .duration = absl::FromChrono(std::chrono::steady_clock::now() - begun_at_)};
  }
  CheckNoLockHeld("a callback");
  if (!complete && on_gone) on_gone();
  const MutexLock lock(mu_);
  ended.note = std::move(note_);
  return ended;
}

}  // namespace tdock::http
