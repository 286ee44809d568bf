#include "trainer/distributed/training_calls.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/base/process_memory.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/distributed/worker_training.h"
#include "trainer/stages/guard.h"

namespace tdock::trainer {
namespace {

using runtime::Value;

// A lease is kept as long as a call takes.
constexpr absl::Duration kKeepEvery = absl::Minutes(1);
// For copies in memory, and for reading and writing files, which may be as large as all memory. A rank that is gone
// ends them before.
constexpr absl::Duration kSnapshotTime = absl::Minutes(10);
constexpr absl::Duration kReadingTime = absl::Hours(2), kWritingTime = absl::Hours(1);

std::string Position(int64_t step, int64_t version) { return absl::StrCat("step ", step, ", weights ", version); }

}  // namespace

void TrainingCalls::Add(Stage& stage, const Policy& policy, const std::vector<int>& ranks) {
  Trained trained{.stage = &stage, .policy = &policy};
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(trained.others), [](int rank) { return rank != 0; });
  trained_.emplace(stage.consumer().name, std::move(trained));
}

bool TrainingCalls::Trains(absl::string_view role, int rank) const {
  return std::any_of(trained_.begin(), trained_.end(), [&](const auto& entry) {
    const std::vector<int>& others = entry.second.others;
    return RoleOf(entry.first) == role && (rank == 0 || std::find(others.begin(), others.end(), rank) != others.end());
  });
}

std::vector<int> TrainingCalls::Ranks() const {
  std::set<int> ranks = {0};
  for (const auto& [name, trained] : trained_) ranks.insert(trained.others.begin(), trained.others.end());
  return {ranks.begin(), ranks.end()};
}

absl::StatusOr<StageRunner::Round> TrainingCalls::Run(Stage& stage, const std::string& partition, const Taken& taken,
                                                      StageContext& context) {
  if (!trained_.find(stage.consumer().name)->second.policy->decoder.device().is_cuda()) {
    return RunNow(stage, partition, taken, context);
  }
  // Two groups of NCCL may wait for each other where ranks begin operations of both in another order.
  const MutexLock lock(on_gpu_);
  return RunNow(stage, partition, taken, context);
}

absl::StatusOr<StageRunner::Round> TrainingCalls::RunNow(Stage& stage, const std::string& partition, const Taken& taken,
                                                         StageContext& context) {
  const std::string& name = stage.consumer().name;
  Trained& trained = trained_.find(name)->second;
  const StageMethod& method = *MethodOf(name);
  const TrainingRanks together = options_.groups(RoleOf(name));
  // What the others wait for in a collective operation would not come.
  const auto leave_after = [group = together.group](const absl::Status& status) {
    if (!status.ok() && !absl::IsCancelled(status) && group != nullptr) group->Leave();
  };
  StageShare share{.stage = name, .partition = partition, .lease = taken.lease, .step = context.step};
  share.whole_step = context.whole_step;
  share.rows.assign(taken.rows.ids().begin(), taken.rows.ids().end());
  trained.whole = false;
  trained.step = context.step;
  const auto call =
      RankCall::Start(options_.controller, method, trained.others, ToValue(share), absl::InfiniteFuture(), leave_after);
  RankSpan span{.rank = 0, .method = std::string(method.spec().name), .began_ns = absl::GetCurrentTimeNanos()};
  span.memory_before = ResidentMemory(options_.env).value_or(0);
  StageRunner runner(options_.dock, partition);
  absl::StatusOr<StageRunner::Computed> computed = runner.Compute(stage, taken, context, /*puts=*/true);
  leave_after(computed.status());
  span.memory_after = ResidentMemory(options_.env).value_or(0);
  span.ended_ns = absl::GetCurrentTimeNanos();
  span.rows = std::ssize(share.rows);
  auto answers = AwaitOthers(*call, partition, taken.lease, absl::Now() + together.timeout);
  if (!answers.ok())
    return computed.ok() || absl::IsCancelled(computed.status()) ? answers.status() : computed.status();
  TDOCK_RETURN_IF_ERROR(options_.controller.status());  // a rank that is gone is the cause of what the others say
  if (!computed.ok()) answers->insert(answers->begin(), {.rank = 0, .who = "", .value = computed.status()});
  TDOCK_RETURN_IF_ERROR(RankCall::FirstError(*answers, method));
  options_.on_ended(span);
  for (const RankCall::Answer& answer : *answers) {
    TDOCK_ASSIGN_OR_RETURN(const ShareResult result, ResultIn(*answer.value));
    options_.on_ended({.rank = answer.rank,
                       .method = span.method,
                       .began_ns = result.began_ns,
                       .ended_ns = result.ended_ns,
                       .memory_before = result.memory_before,
                       .memory_after = result.memory_after,
                       .rows = span.rows});
  }
  return runner.Settle(stage, taken, *std::move(computed), context);
}

absl::StatusOr<std::vector<RankCall::Answer>> TrainingCalls::AwaitOthers(RankCall& call, const std::string& partition,
                                                                         LeaseId lease, absl::Time deadline) {
  for (;;) {
    auto answers = call.Await(std::min(deadline, absl::Now() + kKeepEvery));
    if (answers.ok() || absl::Now() >= deadline) return answers;
    TDOCK_RETURN_IF_ERROR(options_.dock.Renew(partition, lease).status());
  }
}

absl::Status TrainingCalls::Begin(const std::string& folder) {
  if (trained_.empty()) return absl::OkStatus();
  const absl::Time deadline = absl::Now() + kReadingTime;
  std::vector<int> others = Ranks();
  others.erase(others.begin());
  const std::string path = folder.empty() ? folder : std::filesystem::absolute(folder).string();
  const auto call = RankCall::Start(options_.controller, kLoadState, others, path, deadline);
  std::string checkpoint;
  if (!path.empty()) {
    TDOCK_ASSIGN_OR_RETURN(checkpoint, ManifestChecksum(options_.env, path));
  }
  std::map<std::string, std::string> own;
  for (const auto& [name, trained] : trained_) own[name] = DigestOf(*trained.stage, trained.policy->decoder);
  TDOCK_ASSIGN_OR_RETURN(const std::vector<RankCall::Answer> answers, call->Await(deadline));
  TDOCK_RETURN_IF_ERROR(RankCall::FirstError(answers, kLoadState));
  TDOCK_RETURN_IF_ERROR(CompareCheckpoints(path, checkpoint, answers));
  return CompareStages(own, answers);
}

absl::Status TrainingCalls::CompareCheckpoints(const std::string& folder, const std::string& own,
                                               const std::vector<RankCall::Answer>& answers) {
  std::vector<std::string> others;
  for (const RankCall::Answer& answer : answers) {
    TDOCK_ASSIGN_OR_RETURN(const Value::Object object, answer.value->Get<Value::Object>());
    TDOCK_ASSIGN_OR_RETURN(const std::string checkpoint, EntryOf<std::string>(object, "checkpoint"));
    if (checkpoint != own) others.push_back(answer.who);
  }
  if (others.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("rank 0 goes on from the checkpoint ", folder,
                                                    ", but another one is there for ", absl::StrJoin(others, ", "),
                                                    ": all machines must see one folder under that path"));
}

absl::Status TrainingCalls::CompareStages(const std::map<std::string, std::string>& own,
                                          const std::vector<RankCall::Answer>& answers) {
  std::map<std::string, std::vector<std::string>> others;  // by stage, those that differ
  for (const RankCall::Answer& answer : answers) {
    TDOCK_ASSIGN_OR_RETURN(const Value::Object object, answer.value->Get<Value::Object>());
    TDOCK_ASSIGN_OR_RETURN(const Value::Object digests, EntryOf<Value::Object>(object, "stages"));
    for (const auto& [name, digest] : digests) {
      TDOCK_ASSIGN_OR_RETURN(const std::string text, digest.Get<std::string>());
      if (const auto found = own.find(name); found == own.end() || found->second != text) {
        others[name].push_back(answer.who);
      }
    }
  }
  if (others.empty()) return absl::OkStatus();
  std::vector<std::string> problems;
  for (const auto& [name, ranks] : others) {
    problems.push_back(absl::StrCat("stage '", name, "' of ", absl::StrJoin(ranks, ", ")));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "ranks that train together must begin with the same weights and state, but other ones than those of ",
      "rank 0 has ", absl::StrJoin(problems, "; "), ": do all machines have the same files?"));
}

absl::Status TrainingCalls::PrepareWeights(absl::string_view role) {
  const MutexLock lock(gathering_);
  for (auto& [name, trained] : trained_) {
    if (RoleOf(name) != role || trained.whole) continue;
    if (trained.stage->splits_weights()) {
      TDOCK_RETURN_IF_ERROR(
          AtAll(name, trained, kGatherWeights, [&trained = trained] { return trained.stage->GatherWeights(); }));
    }
    trained.whole = true;
  }
  return absl::OkStatus();
}

absl::Status TrainingCalls::SwapAverage(Stage& stage) {
  const MutexLock lock(gathering_);
  if (!stage.has_shards()) return stage.SwapAverage();  // this rank has all of it
  const std::string& name = stage.consumer().name;
  return AtAll(name, trained_.find(name)->second, kSwapAverage, [&stage] { return stage.SwapAverage(); });
}

absl::Status TrainingCalls::AtAll(const std::string& name, const Trained& trained, const StageMethod& method,
                                  const std::function<absl::Status()>& own) {
  const TrainingRanks together = options_.groups(RoleOf(name));
  const auto leave = [group = together.group] {
    if (group != nullptr) group->Leave();
  };
  const auto call = RankCall::Start(options_.controller, method, trained.others, name, absl::InfiniteFuture(),
                                    [leave](const absl::Status&) { leave(); });
  const absl::Status status = Guarded(own);
  if (!status.ok()) leave();
  TDOCK_ASSIGN_OR_RETURN(std::vector<RankCall::Answer> answers, call->Await(absl::Now() + together.timeout));
  TDOCK_RETURN_IF_ERROR(options_.controller.status());
  if (!status.ok()) answers.insert(answers.begin(), {.rank = 0, .who = "", .value = status});
  return RankCall::FirstError(answers, method);
}

absl::StatusOr<RemoteStages::WriteParts> TrainingCalls::SnapshotParts(int64_t step, int64_t part) {
  const bool shards =
      std::any_of(trained_.begin(), trained_.end(), [](const auto& entry) { return entry.second.stage->has_shards(); });
  if (!shards) return nullptr;
  std::vector<int> others = Ranks();
  others.erase(others.begin());
  const absl::Time deadline = absl::Now() + kSnapshotTime;
  const auto call = RankCall::Start(options_.controller, kSnapshotState, others,
                                    Value::Object{{"step", step}, {"part", part}}, deadline);
  TDOCK_ASSIGN_OR_RETURN(const std::vector<RankCall::Answer> answers, call->Await(deadline));
  TDOCK_RETURN_IF_ERROR(RankCall::FirstError(answers, kSnapshotState));
  for (const RankCall::Answer& answer : answers) TDOCK_RETURN_IF_ERROR(CheckAlike(answer));
  return RemoteStages::WriteParts(
      [this, step, part](const std::string& folder) { return WriteParts(folder, step, part); });
}

absl::Status TrainingCalls::CheckAlike(const RankCall::Answer& answer) const {
  TDOCK_ASSIGN_OR_RETURN(const Value::Object positions, answer.value->Get<Value::Object>());
  for (const auto& [name, position] : positions) {
    TDOCK_ASSIGN_OR_RETURN(const Value::List numbers, position.Get<Value::List>());
    const auto found = trained_.find(name);
    if (numbers.size() != 2 || found == trained_.end()) {
      return absl::InternalError(
          absl::StrCat(answer.who, " has a snapshot of '", EscapeForMessage(name), "', which is no stage of it"));
    }
    TDOCK_ASSIGN_OR_RETURN(const int64_t step, numbers[0].Get<int64_t>());
    TDOCK_ASSIGN_OR_RETURN(const int64_t version, numbers[1].Get<int64_t>());
    const Trained& own = found->second;
    if (step == own.step && version == own.policy->version) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the ranks that train '", name, "' are not at the same place: ", answer.who, " is at ",
                     Position(step, version), ", and rank 0 at ", Position(own.step, own.policy->version)));
  }
  return absl::OkStatus();
}

// By the thread that writes a checkpoint.
absl::Status TrainingCalls::WriteParts(const std::string& folder, int64_t step, int64_t part) {
  const std::vector<int> ranks = Ranks();
  const std::string path = std::filesystem::absolute(folder).string();
  const absl::Time deadline = absl::Now() + kWritingTime;
  std::vector<std::shared_ptr<RankCall>> calls;
  for (size_t i = 1; i < ranks.size(); ++i) {
    const Value of_rank = Value::Object{{"folder", path},
                                        {"step", step},
                                        {"part", part},
                                        {"rank", static_cast<int64_t>(i)},
                                        {"ranks", std::ssize(ranks)}};
    calls.push_back(RankCall::Start(options_.controller, kWriteState, {ranks[i]}, of_rank, deadline));
  }
  absl::Status status;
  for (const auto& call : calls) {  // all of them: a folder that is given up must not be written to
    const auto answers = call->Await(deadline);
    status.Update(answers.ok() ? RankCall::FirstError(*answers, kWriteState) : answers.status());
  }
  return status;
}

}  // namespace tdock::trainer
