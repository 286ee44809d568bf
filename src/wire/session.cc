#include "wire/session.h"

#include <algorithm>
#include <map>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace tdock {

absl::StatusOr<Session::Begun> Session::Begin(uint64_t call, uint64_t answered_below, ReplyTo reply) {
  Calls gone;
  std::shared_ptr<const Answer> known;
  {
    MutexLock lock(mu_);
    if (over_) return absl::FailedPreconditionError("the session is over");
    gone = TakeAcknowledged(answered_below);
    const auto found = calls_.find(call);
    if (found == calls_.end()) {
      if (call < acknowledged_below_) {
        return absl::FailedPreconditionError(absl::StrCat("call ", call, " was answered, and its answer acknowledged"));
      }
      if (calls_.size() >= kMaxCalls) {
        return absl::ResourceExhaustedError(
            absl::StrCat("the session has ", kMaxCalls, " calls under way, which is the limit"));
      }
      Call& begun = calls_[call];
      begun.reply = std::move(reply);
      if (cancelled_ahead_.erase(call) > 0) begun.cancel.request_stop();
      return Begun{true, begun.cancel.get_token()};
    }
    known = found->second.answer;
    if (known == nullptr) found->second.reply = std::move(reply);
  }
  if (known != nullptr) reply(known);
  return Begun{};
}

void Session::Finish(uint64_t call, std::shared_ptr<const Answer> answer) {
  ReplyTo reply;
  {
    MutexLock lock(mu_);
    const auto found = calls_.find(call);
    reply = std::exchange(found->second.reply, nullptr);
    if (over_) {
      calls_.erase(found);
    } else {
      found->second.answer = answer;
    }
  }
  if (reply != nullptr) reply(answer);
}

void Session::Cancel(uint64_t call) {
  std::stop_source source(std::nostopstate);
  {
    MutexLock lock(mu_);
    const auto found = calls_.find(call);
    if (found == calls_.end()) {
      if (call >= acknowledged_below_ && cancelled_ahead_.size() < kMaxCalls) cancelled_ahead_.insert(call);
      return;
    }
    source = found->second.cancel;
  }
  source.request_stop();
}

void Session::CancelAll() {
  std::vector<std::stop_source> sources;
  {
    MutexLock lock(mu_);
    for (auto& [number, call] : calls_) sources.push_back(call.cancel);
  }
  for (std::stop_source& source : sources) source.request_stop();
}

Session::Calls Session::TakeAcknowledged(uint64_t answered_below) {
  acknowledged_below_ = std::max(acknowledged_below_, answered_below);
  cancelled_ahead_.erase(cancelled_ahead_.begin(), cancelled_ahead_.lower_bound(acknowledged_below_));
  Calls gone;
  for (auto it = calls_.begin(); it != calls_.end() && it->first < answered_below;) {
    if (it->second.answer == nullptr) {
      ++it;
      continue;
    }
    gone.insert(std::move(*it));
    it = calls_.erase(it);
  }
  return gone;
}

void Session::Acknowledge(uint64_t answered_below) {
  Calls gone;
  MutexLock lock(mu_);
  gone = TakeAcknowledged(answered_below);
}

void Session::Pin(uint64_t call, const Rows& rows) {
  MutexLock lock(mu_);
  if (!over_) pins_.try_emplace(call, rows);
}

void Session::Unpin(std::span<const uint64_t> calls) {
  std::vector<Rows> gone;
  MutexLock lock(mu_);
  for (uint64_t call : calls) {
    const auto found = pins_.find(call);
    if (found == pins_.end()) continue;
    gone.push_back(std::move(found->second));
    pins_.erase(found);
  }
}

absl::StatusOr<UploadArea> Session::Upload(uint32_t slots, uint32_t slot_bytes) {
  MutexLock lock(mu_);
  if (!area_.has_value()) {
    absl::StatusOr<UploadArea> made = UploadArea::Make(slots, slot_bytes);
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

std::vector<HeldLease> Session::LeasesToCheck() {
  MutexLock lock(mu_);
  if (leases_.size() < check_leases_at_) return {};
  // The next time when there are twice as many as are left now, at least.
  check_leases_at_ = 2 * leases_.size();
  return leases_;
}

void Session::Forget(const std::vector<HeldLease>& leases) {
  absl::flat_hash_set<std::pair<absl::string_view, LeaseId>> gone;
  for (const HeldLease& held : leases) gone.insert({held.partition, held.lease});
  MutexLock lock(mu_);
  std::erase_if(leases_, [&](const HeldLease& held) { return gone.contains({held.partition, held.lease}); });
  check_leases_at_ = std::max<size_t>(64, 2 * leases_.size());
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

std::pair<std::vector<HeldLease>, bool> Session::EndIfAlone(uint64_t ever) {
  Calls answered;
  std::vector<std::stop_source> under_way;
  absl::btree_map<uint64_t, Rows> pins;
  std::vector<HeldLease> leases;
  {
    MutexLock lock(mu_);
    if (connections_.now > 0 || connections_.ever > ever) return {{}, false};
    over_ = true;
    for (auto it = calls_.begin(); it != calls_.end();) {
      if (it->second.answer == nullptr) {
        under_way.push_back(it->second.cancel);
        ++it;
      } else {
        answered.insert(std::move(*it));
        it = calls_.erase(it);
      }
    }
    pins.swap(pins_);
    leases.swap(leases_);
  }
  for (std::stop_source& source : under_way) source.request_stop();
  return {std::move(leases), true};
}

Session::Counts Session::counts() {
  MutexLock lock(mu_);
  Counts counts;
  for (const auto& [number, call] : calls_) counts.calls += call.answer == nullptr ? 1 : 0;
  counts.pins = static_cast<int64_t>(pins_.size());
  counts.leases = static_cast<int64_t>(leases_.size());
  return counts;
}

}  // namespace tdock
