#include "dock/service/wire/upload_slots.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/time/clock.h"
#include "dock/service/wire/dock_message.h"

namespace tdock::service {
namespace {

// How often to check for the server's reports while slots are abandoned.
constexpr absl::Duration kLookEvery = absl::Milliseconds(10);

// Drops the response to an abandoned call.
class Leftovers final : public net::Recipient {
 public:
  uint32_t MaxBytes(uint8_t type) const override { return MaxBytesFromServer(type, true); }
  absl::Status OnData(uint64_t, uint64_t, std::span<const std::byte>) override { return absl::OkStatus(); }
};

// Removes the slots that the server has reported as no longer needed.
std::vector<uint32_t> TakeReturned(net::Channel& channel, uint64_t call, std::vector<uint32_t>& slots) {
  std::vector<uint32_t> returned;
  Leftovers leftovers;
  while (!slots.empty()) {
    const absl::StatusOr<std::optional<net::Inbox::Message>> message = channel.TryReceive(leftovers);
    if (message.ok() && !message->has_value()) break;
    const bool over = !message.ok() || ((*message)->header.type == kReply && (*message)->header.tag == call);
    if (over) {
      returned.insert(returned.end(), slots.begin(), slots.end());
      slots.clear();
    } else if ((*message)->header.type == kConsumed && (*message)->header.tag == call &&
               (*message)->body.size() == sizeof(uint32_t)) {
      const auto slot = net::NumberAt<uint32_t>((*message)->body, 0);
      if (std::erase(slots, slot) > 0) returned.push_back(slot);
    }
  }
  return returned;
}

}  // namespace

UploadSlots::UploadSlots(uint32_t count) : free_(count) { std::iota(free_.begin(), free_.end(), 0u); }

std::optional<uint32_t> UploadSlots::Take(absl::Time until) {
  for (;;) {
    ReturnAbandoned();
    MutexLock lock(mu_);
    if (!free_.empty()) {
      const uint32_t slot = free_.back();
      free_.pop_back();
      return slot;
    }
    const absl::Duration left = until - absl::Now();
    if (left <= absl::ZeroDuration()) return std::nullopt;
    const absl::Duration pause = std::min(left, abandoned_.empty() ? absl::Hours(1) : kLookEvery);
    returned_.WaitUntil(mu_, std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(pause));
  }
}

void UploadSlots::Return(std::span<const uint32_t> slots) {
  if (slots.empty()) return;
  MutexLock lock(mu_);
  free_.insert(free_.end(), slots.begin(), slots.end());
  returned_.NotifyAll();
}

void UploadSlots::Abandon(std::unique_ptr<net::Channel> channel, uint64_t call, std::vector<uint32_t> slots) {
  if (slots.empty()) return;
  MutexLock lock(mu_);
  abandoned_.push_back({std::move(channel), call, std::move(slots)});
  returned_.NotifyAll();
}

void UploadSlots::ReturnAbandoned() {
  std::vector<Abandoned> abandoned;
  {
    MutexLock lock(mu_);
    if (!free_.empty() || abandoned_.empty()) return;
    abandoned.swap(abandoned_);
  }
  std::vector<uint32_t> returned;
  for (Abandoned& each : abandoned) {
    const std::vector<uint32_t> slots = TakeReturned(*each.channel, each.call, each.slots);
    returned.insert(returned.end(), slots.begin(), slots.end());
  }
  std::erase_if(abandoned, [](const Abandoned& each) { return each.slots.empty(); });
  MutexLock lock(mu_);
  abandoned_.insert(abandoned_.end(), std::make_move_iterator(abandoned.begin()),
                    std::make_move_iterator(abandoned.end()));
  free_.insert(free_.end(), returned.begin(), returned.end());
  returned_.NotifyAll();
}

}  // namespace tdock::service
