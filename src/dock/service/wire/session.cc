#include "dock/service/wire/session.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "dock/local/served_dock.h"
#include "dock/service/wire/messages.h"

namespace tdock::service {

namespace {

AnswerBytes BytesOf(const Answer& answer) {
  AnswerBytes bytes{.messages = static_cast<int64_t>(ByteSize(answer.reply))};
  for (size_t column = 0; column < answer.rows.columns().size(); ++column) {
    for (size_t row = 0; row < answer.rows.size(); ++row) {
      bytes.cells += static_cast<int64_t>(answer.rows.cell(row, column).bytes.size());
    }
  }
  return bytes;
}

}  // namespace

bool IsLarge(const Rows& rows) {
  return rows.size() * (1 + rows.columns().size()) > static_cast<size_t>(dock::ServedDock::Load::kManyCells);
}

void Session::Discard(Calls calls, std::vector<Rows> pins) {
  if (work_ == nullptr || WorkQueue::OnWorker()) return;
  const bool large =
      std::any_of(calls.begin(), calls.end(), [](const auto& call) { return call.second.answer->large; }) ||
      std::any_of(pins.begin(), pins.end(), IsLarge);
  if (!large) return;
  uint64_t number = 0;
  {
    MutexLock lock(mu_);
    number = ++last_discard_;
    discards_.insert(number);
  }
  auto kept = std::make_shared<std::pair<Calls, std::vector<Rows>>>(std::move(calls), std::move(pins));
  work_->Post(this, [self = shared_from_this(), kept = std::move(kept), number]() mutable {
    kept.reset();
    MutexLock lock(self->mu_);
    self->discards_.erase(number);
    self->discarded_.NotifyAll();
  });
}

uint64_t Session::LastDiscard() {
  MutexLock lock(mu_);
  return discards_.empty() ? 0 : *discards_.rbegin();
}

void Session::AwaitDiscards(uint64_t last) {
  MutexLock lock(mu_);
  while (!discards_.empty() && *discards_.begin() <= last) discarded_.Wait(mu_);
}

absl::StatusOr<Session::Begun> Session::Begin(uint64_t call, const Acknowledged& acknowledged, ReplyTo reply) {
  if (acknowledged.below > 0 || !acknowledged.calls.empty()) Acknowledge(acknowledged);
  std::shared_ptr<const Answer> known;
  std::optional<std::stop_source> begun;
  bool cancelled = false;
  {
    MutexLock lock(mu_);
    if (over_) return absl::FailedPreconditionError("the session is over");
    const auto found = calls_.find(call);
    if (found == calls_.end()) {
      if (WasAcknowledged(call)) {
        return absl::FailedPreconditionError(absl::StrCat("call ", call, " was answered, and the answer acknowledged"));
      }
      if (absl::Status status = CheckRoom(); !status.ok()) return status;
      ++under_way_;
      Call& fresh = calls_[call];
      fresh.replies.push_back(std::move(reply));
      begun = fresh.cancel;
      cancelled = cancelled_ahead_.erase(call) > 0;
    } else if (known = found->second.answer; known == nullptr) {
      std::vector<ReplyTo>& replies = found->second.replies;
      replies.push_back(std::move(reply));
      if (replies.size() <= kMaxReplies) return Begun{};
      reply = std::move(replies.front());
      replies.erase(replies.begin());
    }
  }
  if (begun.has_value()) {
    if (cancelled) RequestStop(*begun);
    return Begun{true, begun->get_token()};
  }
  if (known == nullptr) {
    auto superseded = std::make_shared<Answer>();
    Encode(absl::AbortedError(absl::StrCat("call ", call, " was asked for again ", kMaxReplies, " times")),
           &superseded->reply);
    known = std::move(superseded);
  }
  reply(known);
  return Begun{};
}

absl::Status Session::CheckRoom() const {
  if (calls_.size() >= kMaxCalls) {
    return absl::ResourceExhaustedError(absl::StrCat("the session has ", kMaxCalls,
                                                     " calls under way or not acknowledged, the limit: "
                                                     "acknowledge the answers that have arrived"));
  }
  if (bytes_.cells <= max_bytes_.cells && bytes_.messages <= max_bytes_.messages) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the answers that the session has not acknowledged hold ",
                                                   bytes_.cells, " bytes of cells (at most ", max_bytes_.cells,
                                                   ") and ", bytes_.messages, " bytes of messages (at most ",
                                                   max_bytes_.messages, "): acknowledge those that have arrived"));
}

void Session::Remember(Call& call, std::shared_ptr<const Answer> answer, const AnswerBytes& bytes) {
  bytes_.cells += bytes.cells - call.bytes.cells;
  bytes_.messages += bytes.messages - call.bytes.messages;
  call.bytes = bytes;
  call.answer.swap(answer);
}

void Session::Finish(uint64_t call, std::shared_ptr<const Answer> answer) {
  const AnswerBytes bytes = BytesOf(*answer);
  std::vector<ReplyTo> replies;
  {
    MutexLock lock(mu_);
    const auto found = calls_.find(call);
    --under_way_;
    replies.swap(found->second.replies);
    if (over_ || WasAcknowledged(call)) {
      calls_.erase(found);
    } else {
      Remember(found->second, answer, bytes);
    }
  }
  for (const ReplyTo& reply : replies) reply(answer);
}

void Session::Replace(uint64_t call, std::shared_ptr<const Answer> answer) {
  const AnswerBytes bytes = BytesOf(*answer);
  std::shared_ptr<const Answer> replaced;  // freed without the lock
  MutexLock lock(mu_);
  const auto found = calls_.find(call);
  if (found == calls_.end() || found->second.answer == nullptr) return;
  replaced = found->second.answer;
  Remember(found->second, std::move(answer), bytes);
}

void Session::Cancel(uint64_t call) {
  std::stop_source source(std::nostopstate);
  {
    MutexLock lock(mu_);
    const auto found = calls_.find(call);
    if (found == calls_.end()) {
      if (!WasAcknowledged(call) && cancelled_ahead_.size() < kMaxCalls) cancelled_ahead_.insert(call);
      return;
    }
    source = found->second.cancel;
  }
  RequestStop(source);
}

void Session::CancelAll() {
  std::vector<std::stop_source> sources;
  {
    MutexLock lock(mu_);
    for (auto& [number, call] : calls_) sources.push_back(call.cancel);
  }
  for (const std::stop_source& source : sources) RequestStop(source);
}

bool Session::WasAcknowledged(uint64_t call) const {
  if (call < acknowledged_below_) return true;
  const auto next = acknowledged_.upper_bound(call);
  return next != acknowledged_.begin() && call < std::prev(next)->second;
}

bool Session::NoteAcknowledged(uint64_t call) {
  if (WasAcknowledged(call)) return true;
  const uint64_t behind = call + 1;
  const auto next = acknowledged_.upper_bound(call);
  const bool joins_next = next != acknowledged_.end() && next->first == behind;
  if (next != acknowledged_.begin() && std::prev(next)->second == call) {
    std::prev(next)->second = joins_next ? next->second : behind;
    if (joins_next) acknowledged_.erase(next);
    return true;
  }
  if (!joins_next && acknowledged_.size() >= kMaxCalls) return false;
  const uint64_t end = joins_next ? next->second : behind;
  if (joins_next) acknowledged_.erase(next);
  acknowledged_.emplace(call, end);
  return true;
}

Session::Calls Session::TakeAcknowledged(const Acknowledged& acknowledged) {
  Calls gone;
  const auto take = [&](Calls::iterator it) TDOCK_REQUIRES(mu_) {
    if (it->second.answer == nullptr) return std::next(it);
    bytes_.cells -= it->second.bytes.cells;
    bytes_.messages -= it->second.bytes.messages;
    gone.insert(std::move(*it));
    return calls_.erase(it);
  };
  for (uint64_t call : acknowledged.calls) {
    if (!NoteAcknowledged(call)) break;
    if (const auto found = calls_.find(call); found != calls_.end()) take(found);
  }
  acknowledged_below_ = std::max(acknowledged_below_, acknowledged.below);
  while (!acknowledged_.empty() && acknowledged_.begin()->first <= acknowledged_below_) {
    acknowledged_below_ = std::max(acknowledged_below_, acknowledged_.begin()->second);
    acknowledged_.erase(acknowledged_.begin());
  }
  cancelled_ahead_.erase(cancelled_ahead_.begin(), cancelled_ahead_.lower_bound(acknowledged_below_));
  for (auto it = calls_.begin(); it != calls_.end() && it->first < acknowledged_below_;) it = take(it);
  return gone;
}

void Session::Acknowledge(const Acknowledged& acknowledged) {
  Calls gone;
  {
    MutexLock lock(mu_);
    gone = TakeAcknowledged(acknowledged);
  }
  if (!gone.empty()) Discard(std::move(gone), {});
}

Rows Session::Pin(uint64_t call, const Rows& rows) {
  MutexLock lock(mu_);
  return over_ ? rows : pins_.try_emplace(call, rows).first->second;
}

void Session::Unpin(std::span<const uint64_t> calls) {
  std::vector<Rows> gone;
  {
    MutexLock lock(mu_);
    for (uint64_t call : calls) {
      const auto found = pins_.find(call);
      if (found == pins_.end()) continue;
      gone.push_back(std::move(found->second));
      pins_.erase(found);
    }
  }
  if (!gone.empty()) Discard({}, std::move(gone));
}

absl::StatusOr<dock::UploadArea> Session::Upload(uint32_t slots, uint32_t slot_bytes) {
  MutexLock lock(mu_);
  if (!area_.has_value()) {
    absl::StatusOr<dock::UploadArea> made = dock::UploadArea::Make(slots, slot_bytes);
    if (!made.ok()) return made.status();
    area_ = *std::move(made);
  }
  return *area_;
}

bool Session::Hold(HeldLease lease) {
  MutexLock lock(mu_);
  if (over_) return false;
  leases_.push_back(std::move(lease));
  return true;
}

std::vector<HeldLease> Session::TakeLeasesToCheck() {
  constexpr size_t kMany = 64;
  constexpr int kAtOnce = 2;
  std::vector<HeldLease> taken;
  MutexLock lock(mu_);
  if (leases_.size() < kMany) return taken;
  for (int i = 0; i < kAtOnce; ++i) {
    taken.push_back(std::move(leases_.front()));
    leases_.pop_front();
  }
  return taken;
}

void Session::Attach() {
  MutexLock lock(mu_);
  ++connections_.now;
  ++connections_.ever;
}

Session::Attachments Session::Detach() {
  MutexLock lock(mu_);
  --connections_.now;
  return connections_;
}

std::optional<Session::Leftovers> Session::EndIfAlone(uint64_t ever) {
  MutexLock lock(mu_);
  if (connections_.now > 0 || connections_.ever > ever) return std::nullopt;
  over_ = true;
  Leftovers leftovers;
  for (auto it = calls_.begin(); it != calls_.end();) {
    if (it->second.answer == nullptr) {
      leftovers.under_way.push_back(it->second.cancel);
      ++it;
    } else {
      leftovers.answered.insert(std::move(*it));
      it = calls_.erase(it);
    }
  }
  leftovers.pins.swap(pins_);
  leftovers.leases.swap(leases_);
  return leftovers;
}

Session::Counts Session::counts() {
  MutexLock lock(mu_);
  return {
      .calls = under_way_, .pins = static_cast<int64_t>(pins_.size()), .leases = static_cast<int64_t>(leases_.size())};
}

}  // namespace tdock::service
