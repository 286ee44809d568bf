#include "trainer/loop/stop_notice.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tdock::trainer {
namespace {

constexpr absl::Duration kLookEvery = absl::Milliseconds(100);  // a signal handler can wake nobody
constexpr absl::Duration kTakesLong = absl::Seconds(30);

}  // namespace

StopNotice::StopNotice(const RunContext& context, std::function<std::string()> would_be_lost)
    : context_(context), would_be_lost_(std::move(would_be_lost)), thread_([this] { Watch(); }) {}

StopNotice::~StopNotice() {
  {
    MutexLock lock(mu_);
    ended_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

bool StopNotice::WaitUntil(absl::Time time) {
  MutexLock lock(mu_);
  while (!ended_ && context_.clock.Now() < time) context_.clock.Wait(changed_, mu_, time);
  return !ended_;
}

void StopNotice::Watch() {
  while (context_.CheckStop().ok()) {
    if (!WaitUntil(context_.clock.Now() + kLookEvery)) return;
  }
  const bool by_signal = context_.stop != nullptr && *context_.stop;
  context_.log(absl::StrCat(context_.CheckStop().message(), ": the run is saved after this optimizer step, and ends",
                            by_signal ? "; a second signal kills it" : ""));
  if (!WaitUntil(context_.clock.Now() + kTakesLong)) return;
  context_.log(absl::StrCat("still in this optimizer step. ", would_be_lost_()));
}

}  // namespace tdock::trainer
