#include "trainer/executor/stage_threads.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/callback.h"
#include "core/base/status.h"

namespace tdock::trainer {
namespace {

// How long a stage waits at most before it looks whether anything can still come.
constexpr absl::Duration kSlice = absl::Milliseconds(100);
constexpr absl::Duration kBetweenLooks = absl::Milliseconds(50);
constexpr int64_t kMostUnits = int64_t{1} << 20;

std::string Seconds(absl::Duration duration) {
  return absl::StrCat(absl::ToInt64Milliseconds(duration) / 100 / 10.0, " s");
}

}  // namespace

std::string RowRange(const Rows& rows) {
  const auto [first, last] = std::minmax_element(rows.ids().begin(), rows.ids().end());
  return absl::StrCat(rows.size(), " rows between ", *first, " and ", *last);
}

absl::Status NoProgress(absl::string_view stage, absl::string_view rows, absl::Duration since) {
  return absl::DeadlineExceededError(
      absl::StrCat("stage '", stage, "', ", rows, ": no sign of progress for ", Seconds(since)));
}

StageThreads::StageThreads(Dock& dock, std::string partition, std::vector<StageTask> tasks, Options options)
    : dock_(dock), partition_(std::move(partition)), options_(std::move(options)), last_work_(options_.clock.Now()) {
  for (StageTask& task : tasks) {
    auto stage = std::make_unique<Stage>();
    stage->task = std::move(task);
    stage->begun = options_.clock.Now();
    stages_.push_back(std::move(stage));
  }
  for (const auto& stage : stages_) {
    stage->thread = std::thread([this, &stage = *stage] { Serve(stage); });
  }
  watcher_ = std::thread([this] { Watch(); });
}

StageThreads::~StageThreads() {
  Stop();
  for (const auto& stage : stages_) stage->thread.join();
  {
    const MutexLock lock(mu_);
    closing_ = true;
    changed_.NotifyAll();
  }
  watcher_.join();
}

absl::Status StageThreads::Join() {
  if (!WaitForAll(options_.grace)) {
    options_.give_up(status());
    WaitForAll(absl::InfiniteDuration());
  }
  return status();
}

bool StageThreads::WaitForAll(absl::Duration grace) {
  const MutexLock lock(mu_);
  absl::Time latest = absl::InfiniteFuture();
  while (!AllEnded()) {
    const absl::Time now = options_.clock.Now();
    if (now >= latest) return false;
    if (!status_.ok()) latest = std::min(latest, now + grace);
    options_.clock.Wait(changed_, mu_, std::min(latest, now + absl::Seconds(1)));
  }
  return true;
}

void StageThreads::Stop() {
  {
    const MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  RequestStop(stop_);
}

absl::Status StageThreads::status() const {
  const MutexLock lock(mu_);
  return status_;
}

bool StageThreads::stopping() const {
  const MutexLock lock(mu_);
  return stopping_;
}

bool StageThreads::AllEnded() const {
  return std::all_of(stages_.begin(), stages_.end(), [](const auto& stage) { return stage->ended; });
}

absl::Duration StageThreads::idle() const {
  const absl::Time now = options_.clock.Now();
  const MutexLock lock(mu_);
  return IdleAt(now);
}

absl::Duration StageThreads::IdleAt(absl::Time now) const {
  const bool works = std::any_of(stages_.begin(), stages_.end(), [](const auto& stage) { return stage->works; });
  return works ? absl::ZeroDuration() : now - last_work_;
}

std::string StageThreads::Describe() const {
  const absl::Time now = options_.clock.Now();
  std::vector<std::string> lines;
  std::vector<size_t> waiting;
  {
    const MutexLock lock(mu_);
    for (const auto& stage : stages_) {
      std::string line = absl::StrCat(stage->task.name, ": ");
      if (stage->ended) {
        absl::StrAppend(&line, "has ended");
      } else if (stage->works) {
        absl::StrAppend(&line, "has worked on ", stage->rows, " for ", Seconds(now - stage->begun),
                        ", with the last sign of progress ", Seconds(now - stage->progress), " ago");
      } else {
        absl::StrAppend(&line, "has waited for rows for ", Seconds(now - stage->begun));
        waiting.push_back(lines.size());
      }
      lines.push_back(std::move(line));
    }
  }
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    absl::StrAppend(&text, lines[i]);
    if (std::find(waiting.begin(), waiting.end(), i) != waiting.end()) {
      const absl::StatusOr<std::string> why = dock_.Explain(partition_, stages_[i]->task.name);
      absl::StrAppend(&text, ". ", why.ok() ? *why : std::string(why.status().message()));
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

void StageThreads::Fail(const absl::Status& status) {
  {
    const MutexLock lock(mu_);
    // What comes after the first is because of it.
    if (status_.ok()) status_ = status;
  }
  Stop();
}

void StageThreads::Serve(Stage& stage) {
  options_.at_start();
  const absl::Status status = Loop(stage);
  options_.timeline.End(stage.task.name);
  if (!status.ok()) Fail(status);
  const MutexLock lock(mu_);
  stage.ended = true;
  stage.works = false;
  changed_.NotifyAll();
}

absl::Status StageThreads::Loop(Stage& stage) {
  options_.timeline.Wait(stage.task.name);
  while (!stopping()) {
    absl::StatusOr<std::optional<Taken>> next = Next(stage);
    if (absl::IsCancelled(next.status())) return absl::OkStatus();
    if (absl::IsOutOfRange(next.status())) {
      if (options_.until_done || options_.until_sealed) return absl::OkStatus();
      const MutexLock lock(mu_);
      if (!stopping_) options_.clock.Wait(changed_, mu_, options_.clock.Now() + kSlice);
      continue;
    }
    if (!next.ok()) return Annotate(next.status(), absl::StrCat("stage '", stage.task.name, "'"));
    if (!next->has_value()) continue;
    const absl::Status worked = Work(stage, **next);
    if (worked.ok()) {
      stage.failures = 0;
      continue;
    }
    const absl::Status error = Annotate(worked, absl::StrCat("stage '", stage.task.name, "', ", RowsOf(stage)));
    if (stopping() && absl::IsCancelled(worked)) return absl::OkStatus();
    if (!MayGoOn(stage, error)) return error;
  }
  return absl::OkStatus();
}

bool StageThreads::MayGoOn(Stage& stage, const absl::Status& error) {
  if (!stage.task.restartable || ++stage.failures > options_.most_restarts || absl::IsCancelled(error)) return false;
  options_.log(absl::StrCat("warning: ", error.message(), "; it is tried again (", stage.failures, " of ",
                            options_.most_restarts, " times in a row)"));
  return true;
}

absl::StatusOr<std::optional<Taken>> StageThreads::Next(const Stage& stage) {
  const StageTask& task = stage.task;
  TakeRequest request{.partition = partition_,
                      .consumer = task.name,
                      .min = 1,
                      .max = task.most_units > 0 ? std::min(task.most_units, kMostUnits) : kMostUnits,
                      .cancel = stop_.get_token()};
  if (options_.until_done || task.in_order) {
    TDOCK_ASSIGN_OR_RETURN(const ConsumerStatus status, dock_.GetConsumerStatus(partition_, task.name));
    if (status.quarantined > 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          status.quarantined, " rows are quarantined: their leases have expired again and again, the last time ",
          "because whoever had them was too slow or died"));
    }
    const int64_t open = (status.waiting + status.ready + status.leased) / task.group_size;
    if (open == 0 && options_.until_done) return absl::OutOfRangeError("every row is done");
    if (task.in_order && open > 0) {
      const bool all_ready = status.waiting == 0;
      request.min = all_ready ? std::min(open, request.max) : open;
      request.max = all_ready ? request.min : std::max(open, request.max);
      if (request.min > kMostUnits) return absl::InternalError("more units than a take can have");
    }
  }
  request.deadline = options_.clock.Now() + kSlice;
  absl::StatusOr<Taken> taken = dock_.Take(request);
  if (absl::IsDeadlineExceeded(taken.status())) return std::optional<Taken>();
  if (!taken.ok()) return taken.status();
  if (task.in_order &&
      std::ssize(taken->rows.ids()) / task.group_size > (task.most_units > 0 ? task.most_units : kMostUnits)) {
    // All are ready now: in pieces of the right size from the first on.
    TDOCK_RETURN_IF_ERROR(dock_.Release({.partition = partition_, .lease = taken->lease}));
    return std::optional<Taken>();
  }
  return std::optional<Taken>(*std::move(taken));
}

void StageThreads::Begin(Stage& stage, const Taken& taken) {
  const std::string rows = RowRange(taken.rows);
  const absl::Time now = options_.clock.Now();
  {
    const MutexLock lock(mu_);
    if (!stage.works) stage.begun = now;
    stage.rows = stage.works ? absl::StrCat(rows, " and those before") : rows;
    stage.works = true;
    stage.leases.push_back({taken.lease, taken.expires - now, now});
    stage.progress = now;
  }
  options_.timeline.Work(stage.task.name, std::ssize(taken.rows.ids()), rows);
}

std::string StageThreads::RowsOf(const Stage& stage) const {
  const MutexLock lock(mu_);
  return stage.rows;
}

absl::StatusOr<std::optional<Taken>> StageThreads::More(Stage& stage) {
  if (stopping()) return std::nullopt;
  absl::StatusOr<Taken> taken =
      dock_.Take({.partition = partition_, .consumer = stage.task.name, .min = 1, .max = kMostUnits});
  if (absl::IsDeadlineExceeded(taken.status()) || absl::IsOutOfRange(taken.status())) return std::nullopt;
  TDOCK_RETURN_IF_ERROR(taken.status());
  Begin(stage, *taken);
  return std::optional<Taken>(*std::move(taken));
}

absl::Status StageThreads::Work(Stage& stage, const Taken& taken) {
  Begin(stage, taken);
  StageSigns signs;
  signs.check_stop = [this]() -> absl::Status {
    TDOCK_RETURN_IF_ERROR(options_.check_stop());
    return stopping() ? absl::CancelledError("the other stages are ending") : absl::OkStatus();
  };
  signs.progress = [this, &stage] {
    options_.timeline.Progress(stage.task.name);
    const absl::Time now = options_.clock.Now();
    const MutexLock lock(mu_);
    stage.progress = now;
  };
  if (stage.task.takes_more) signs.more = [this, &stage] { return More(stage); };
  const absl::Status status = stage.task.run(taken, signs);
  options_.timeline.Wait(stage.task.name);
  std::vector<Lease> leases;
  {
    const MutexLock lock(mu_);
    stage.works = false;
    leases = std::exchange(stage.leases, {});
    stage.begun = last_work_ = options_.clock.Now();
  }
  // What it has left is ready again, whoever gets it next; what counts is the stage's error.
  for (const Lease& lease : leases) {
    if (status.ok() && lease.id == taken.lease) continue;
    dock_.Release({.partition = partition_, .lease = lease.id}).IgnoreError();
  }
  return status;
}

void StageThreads::Watch() {
  for (;;) {
    const absl::Time now = options_.clock.Now();
    {
      const MutexLock lock(mu_);
      if (closing_) return;
    }
    if (!stopping()) {
      if (const absl::Status stop = options_.check_stop(); !stop.ok()) Fail(stop);
      Renew(now);
    }
    // One that hangs does not end when it is asked to, either.
    if (const absl::Status hang = LookForHangs(now); !hang.ok()) Fail(hang);
    const MutexLock lock(mu_);
    if (closing_) return;
    options_.clock.Wait(changed_, mu_, options_.clock.Now() + kBetweenLooks);
  }
}

// Until it has failed: then its rows go to whoever asks for them, if it does not give them back itself.
void StageThreads::Renew(absl::Time now) {
  std::vector<std::pair<Stage*, LeaseId>> due;
  {
    const MutexLock lock(mu_);
    for (const auto& stage : stages_) {
      for (Lease& lease : stage->leases) {
        if (lease.id == kNoLease || now < lease.renewed + lease.lasts / 3) continue;
        lease.renewed = now;
        due.emplace_back(stage.get(), lease.id);
      }
    }
  }
  for (const auto& [stage, id] : due) {
    const absl::Status renewed = dock_.Renew(partition_, id).status();
    // A dock that does not answer may do so when it is next asked.
    if (!absl::IsNotFound(renewed) && !absl::IsFailedPrecondition(renewed)) continue;
    // It is over, because all of its rows are put.
    const MutexLock lock(mu_);
    std::erase_if(stage->leases, [&](const Lease& lease) { return lease.id == id; });
  }
}

absl::Status StageThreads::LookForHangs(absl::Time now) {
  {
    const MutexLock lock(mu_);
    if (!status_.ok()) return absl::OkStatus();  // they end because of it
    for (const auto& stage : stages_) {
      if (!stage->works || now < stage->progress + options_.patience) continue;
      return NoProgress(stage->task.name, stage->rows, now - stage->progress);
    }
    const bool all_wait = options_.until_done && !AllEnded() && IdleAt(now) >= options_.patience;
    if (!all_wait) return absl::OkStatus();
  }
  return absl::DeadlineExceededError(
      absl::StrCat("no stage has had anything to do for ", Seconds(options_.patience), ":\n", Describe()));
}

}  // namespace tdock::trainer
