#include "trainer/distributed/rank_call.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"

namespace tdock::trainer {
namespace {

// How little an error says of what has happened.
int Vagueness(const absl::Status& status) {
  if (absl::IsCancelled(status)) return 3;
  if (absl::IsUnavailable(status)) return 2;
  return absl::IsDeadlineExceeded(status) ? 1 : 0;
}

}  // namespace

std::shared_ptr<RankCall> RankCall::Start(runtime::Controller& controller, const StageMethod& method,
                                          const std::vector<int>& ranks, const runtime::Value& argument,
                                          absl::Time deadline, std::function<void(const absl::Status&)> on_failure) {
  // Shared with the links, whose answers may come after the caller has given up.
  std::shared_ptr<RankCall> call(new RankCall(method));
  std::vector<std::shared_ptr<runtime::WorkerLink>> links;
  {
    const MutexLock lock(call->mu_);
    for (const int rank : ranks) {
      links.push_back(controller.worker(rank));
      call->answers_.push_back({.rank = rank, .who = links.back()->Describe(), .value = runtime::Value()});
    }
    call->open_ = ranks.size();
    call->answered_.assign(ranks.size(), false);
  }
  for (size_t i = 0; i < links.size(); ++i) {
    links[i]->Invoke(std::string(method.spec().name), {argument}, deadline,
                     [call, i, on_failure](absl::StatusOr<runtime::Value> value) {
                       if (!value.ok()) on_failure(value.status());
                       call->Take(i, std::move(value));
                     });
  }
  return call;
}

void RankCall::Take(size_t index, absl::StatusOr<runtime::Value> value) {
  const MutexLock lock(mu_);
  answers_[index].value = std::move(value);
  answered_[index] = true;
  --open_;
  changed_.NotifyAll();
}

absl::StatusOr<std::vector<RankCall::Answer>> RankCall::Await(absl::Time deadline) {
  constexpr std::chrono::milliseconds kSlice{20};
  MutexLock lock(mu_);
  while (open_ > 0 && absl::Now() < deadline) changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + kSlice);
  if (open_ == 0) return answers_;
  std::string missing;
  for (size_t i = 0; i < answers_.size(); ++i) {
    if (!answered_[i]) absl::StrAppend(&missing, missing.empty() ? "" : ", ", answers_[i].who);
  }
  return absl::DeadlineExceededError(absl::StrCat(missing, " did not end ", method_.spec().name, " in time"));
}

absl::Status RankCall::FirstError(const std::vector<Answer>& answers, const StageMethod& method) {
  const Answer* worst = nullptr;
  for (const Answer& answer : answers) {
    if (answer.value.ok()) continue;
    if (worst == nullptr || Vagueness(answer.value.status()) < Vagueness(worst->value.status())) worst = &answer;
  }
  if (worst == nullptr) return absl::OkStatus();
  // Of this rank, or of one that is gone, which is named.
  if (worst->who.empty() || absl::IsUnavailable(worst->value.status())) return worst->value.status();
  return Annotate(worst->value.status(), absl::StrCat(worst->who, ", ", method.spec().name));
}

}  // namespace tdock::trainer
