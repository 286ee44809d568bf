#include "trainer/distributed/worker_training.h"

#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/mutex.h"
#include "core/base/process_memory.h"
#include "core/base/status.h"
#include "text/content_hash.h"
#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/checkpoint/state_files.h"
#include "trainer/loop/fingerprint.h"
#include "trainer/loop/saved_run.h"
#include "trainer/stages/guard.h"
#include "trainer/stages/weight_average.h"

namespace tdock::trainer {
namespace {

using runtime::Value;

// The collective operations of the others end, which wait for this rank, unless all of them were told to stop.
void LeaveAfter(const absl::Status& status, const TrainingRanks& ranks) {
  if (!status.ok() && !absl::IsCancelled(status) && ranks.group != nullptr) ranks.group->Leave();
}

// Leaves the group once the process must stop: operations with a rank that hangs would last as long as they may.
class StopWatch {
 public:
  StopWatch(const std::function<absl::Status()>& check_stop, runtime::TensorCollective* group)
      : check_stop_(check_stop), group_(group), thread_([this] { Watch(); }) {}
  ~StopWatch() {
    {
      const MutexLock lock(mu_);
      over_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }
  StopWatch(const StopWatch&) = delete;
  StopWatch& operator=(const StopWatch&) = delete;

 private:
  void Watch() {
    MutexLock lock(mu_);
    while (!over_ && check_stop_().ok()) changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + kBetweenLooks);
    if (!over_ && group_ != nullptr) group_->Leave();
  }

  static constexpr std::chrono::milliseconds kBetweenLooks{100};
  const std::function<absl::Status()>& check_stop_;
  runtime::TensorCollective* const group_;
  Mutex mu_;
  CondVar changed_;
  bool over_ TDOCK_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace

std::string DigestOf(const Stage& stage, const model::Decoder& decoder) {
  State state;
  stage.Save(state);
  text::ContentHasher hasher;
  for (const auto& [name, text] : state.texts()) {
    hasher.AddField(name);
    hasher.AddField(text);
  }
  return absl::StrCat(WeightsChecksum(decoder), "-", text::Hex(hasher.Value()));
}

WorkerTraining::WorkerTraining(const Options& options, std::span<const std::unique_ptr<Stage>> stages)
    : options_(options) {
  for (const std::unique_ptr<Stage>& stage : stages) {
    if (!stage->trains()) continue;
    const std::string& name = stage->consumer().name;
    const std::string role = RoleOf(name);
    Policy& policy = role == "actor" ? options_.policy : options_.models.at(role).policy;
    trained_.emplace(name, Trained{.stage = stage.get(), .policy = &policy, .ranks = options_.groups.Of(role)});
  }
}

absl::StatusOr<WorkerTraining::Trained*> WorkerTraining::Find(const std::string& stage) {
  const auto found = trained_.find(stage);
  if (found != trained_.end()) return &found->second;
  return absl::NotFoundError(absl::StrCat("this process does not train in a stage '", stage, "'"));
}

absl::StatusOr<Value> WorkerTraining::Train(const Value& call) {
  TDOCK_ASSIGN_OR_RETURN(const StageShare share, ShareIn(call));
  TDOCK_ASSIGN_OR_RETURN(Trained* const trained, Find(share.stage));
  const StopWatch watch(options_.check_stop, trained->ranks.group);
  absl::StatusOr<ShareResult> result = Guarded([&] { return Compute(*trained, share); });
  LeaveAfter(result.status(), trained->ranks);
  TDOCK_RETURN_IF_ERROR(result.status());
  if (trained->policy == &options_.policy && !trained->stage->splits_weights()) options_.on_weights();
  return ToValue(*result);
}

absl::StatusOr<ShareResult> WorkerTraining::Compute(Trained& trained, const StageShare& share) {
  const auto resident = [this] { return ResidentMemory(options_.env).value_or(0); };
  ShareResult result{.began_ns = absl::GetCurrentTimeNanos(), .memory_before = resident()};
  trained.step = share.step;
  TDOCK_ASSIGN_OR_RETURN(
      Rows rows, options_.dock.Fetch(
                     {.partition = share.partition, .rows = share.rows, .columns = trained.stage->consumer().reads}));
  StepMetrics metrics;  // those of rank 0 count
  StageContext context{share.step, metrics};
  context.whole_step = share.whole_step;
  context.check_stop = options_.check_stop;
  context.progress = [&] { options_.progress(share.stage); };
  StageRunner runner(options_.dock, share.partition);
  TDOCK_RETURN_IF_ERROR(runner
                            .Compute(*trained.stage, {.lease = kNoLease, .rows = std::move(rows)}, context,
                                     /*puts=*/false)
                            .status());
  result.memory_after = resident();
  result.ended_ns = absl::GetCurrentTimeNanos();
  return result;
}

// Of a checkpoint.
absl::StatusOr<WorkerTraining::Place> WorkerTraining::PlaceIn(const Value& call) {
  TDOCK_ASSIGN_OR_RETURN(const Value::Object object, call.Get<Value::Object>());
  Place place;
  TDOCK_ASSIGN_OR_RETURN(place.first, EntryOf<int64_t>(object, "step"));
  TDOCK_ASSIGN_OR_RETURN(place.second, EntryOf<int64_t>(object, "part"));
  return place;
}

absl::StatusOr<WorkerTraining::Trained*> WorkerTraining::DoTogether(const Value& call, absl::Status (Stage::*part)()) {
  TDOCK_ASSIGN_OR_RETURN(const std::string name, call.Get<std::string>());
  TDOCK_ASSIGN_OR_RETURN(Trained* const trained, Find(name));
  const StopWatch watch(options_.check_stop, trained->ranks.group);
  const absl::Status status = Guarded([&] { return (trained->stage->*part)(); });
  LeaveAfter(status, trained->ranks);
  TDOCK_RETURN_IF_ERROR(status);
  return trained;
}

absl::StatusOr<Value> WorkerTraining::GatherWeights(const Value& call) {
  TDOCK_ASSIGN_OR_RETURN(const Trained* const trained, DoTogether(call, &Stage::GatherWeights));
  if (trained->policy == &options_.policy) options_.on_weights();
  return Value();
}

absl::StatusOr<Value> WorkerTraining::SwapAverage(const Value& call) {
  TDOCK_RETURN_IF_ERROR(DoTogether(call, &Stage::SwapAverage).status());
  return Value();
}

absl::StatusOr<Value> WorkerTraining::LoadState(const Value& call) {
  TDOCK_ASSIGN_OR_RETURN(const std::string folder, call.Get<std::string>());
  std::string checkpoint;
  if (!folder.empty()) {
    const absl::Status whole = VerifyCheckpoint(options_.env, folder).status();
    if (!whole.ok()) {
      return Annotate(whole, "reading the checkpoint that rank 0 goes on from, which all ranks must see");
    }
    TDOCK_ASSIGN_OR_RETURN(checkpoint, ManifestChecksum(options_.env, folder));
    TDOCK_ASSIGN_OR_RETURN(const State state, ReadState(options_.env, folder));
    TDOCK_RETURN_IF_ERROR(LoadPolicy(options_.env, folder, state, options_.policy.decoder));
    for (auto& [name, trained] : trained_) {
      TDOCK_RETURN_IF_ERROR(Annotate(state.Get(absl::StrCat("stages/", name), *trained.stage), folder));
      Stateful* const average = trained.stage->average();
      if (average != nullptr) TDOCK_RETURN_IF_ERROR(Annotate(state.Get(kAverage, *average), folder));
    }
  }
  Value::Object digests;
  for (const auto& [name, trained] : trained_) digests[name] = DigestOf(*trained.stage, trained.policy->decoder);
  options_.on_weights();
  return Value::Object{{"checkpoint", checkpoint}, {"stages", std::move(digests)}};
}

absl::StatusOr<Value> WorkerTraining::SnapshotState(const Value& call) {
  TDOCK_ASSIGN_OR_RETURN(const Place place, PlaceIn(call));
  State state;
  Value::Object positions;
  for (const auto& [name, trained] : trained_) {
    positions[name] = Value::List{trained.step, trained.policy->version};
    if (!trained.stage->has_shards()) continue;
    state.Set(absl::StrCat("stages/", name), *trained.stage);
    if (const Stateful* const average = trained.stage->average()) state.Set(kAverage, *average);
  }
  auto snapshot = std::make_shared<const State>(state.Snapshot());
  const MutexLock lock(mu_);
  snapshot_ = std::move(snapshot);
  snapshot_place_ = place;
  return positions;
}

absl::StatusOr<Value> WorkerTraining::WriteState(const Value& call) {
  TDOCK_ASSIGN_OR_RETURN(const Value::Object object, call.Get<Value::Object>());
  TDOCK_ASSIGN_OR_RETURN(const std::string folder, EntryOf<std::string>(object, "folder"));
  TDOCK_ASSIGN_OR_RETURN(const int64_t rank, EntryOf<int64_t>(object, "rank"));
  TDOCK_ASSIGN_OR_RETURN(const int64_t ranks, EntryOf<int64_t>(object, "ranks"));
  TDOCK_ASSIGN_OR_RETURN(const Place place, PlaceIn(call));
  std::shared_ptr<const State> snapshot;
  {
    const MutexLock lock(mu_);
    if (snapshot_place_ == place) snapshot = std::move(snapshot_);
  }
  if (snapshot == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no snapshot of step ", place.first, ", part ", place.second, ", to be written"));
  }
  TDOCK_RETURN_IF_ERROR(
      WriteRankState(options_.env, folder, static_cast<int>(rank), static_cast<int>(ranks), *snapshot));
  return Value();
}

absl::Status WorkerTraining::AddTo(runtime::MethodTable& methods) {
  if (trained_.empty()) return absl::OkStatus();
  const auto guarded = [this](auto method) {
    return [this, method](const Value& call) { return Guarded([&] { return (this->*method)(call); }); };
  };
  for (const auto& [name, trained] : trained_) {
    TDOCK_RETURN_IF_ERROR(methods.Serve(*MethodOf(name), guarded(&WorkerTraining::Train)));
  }
  TDOCK_RETURN_IF_ERROR(methods.Serve(kGatherWeights, guarded(&WorkerTraining::GatherWeights)));
  TDOCK_RETURN_IF_ERROR(methods.Serve(kSwapAverage, guarded(&WorkerTraining::SwapAverage)));
  TDOCK_RETURN_IF_ERROR(methods.Serve(kLoadState, guarded(&WorkerTraining::LoadState)));
  TDOCK_RETURN_IF_ERROR(methods.Serve(kSnapshotState, guarded(&WorkerTraining::SnapshotState)));
  return methods.Serve(kWriteState, guarded(&WorkerTraining::WriteState));
}

}  // namespace tdock::trainer
