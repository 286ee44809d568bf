#include "runtime/dispatch/worker_group.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "runtime/dispatch/method_table.h"

namespace tdock::runtime {
namespace {

// "a, b, c and 5 more".
std::string Enumerate(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kShown; ++i) absl::StrAppend(&text, i == 0 ? "" : ", ", names[i]);
  if (names.size() > kShown) absl::StrAppend(&text, " and ", names.size() - kShown, " more");
  return text;
}

// A call that runs on its workers. It is kept alive by those who have yet to answer it, and by its alarm. Thread-safe.
class OpenCall : public std::enable_shared_from_this<OpenCall> {
 public:
  OpenCall(std::string what, DividedCall call, absl::Duration timeout, Clock& clock, FutureValue result)
      : what_(std::move(what)),
        call_(std::move(call)),
        timeout_(timeout),
        clock_(clock),
        result_(std::move(result)),
        answers_(call_.arguments().size()),
        left_(answers_.size()) {}

  void Begin(const std::string& method, std::span<const std::shared_ptr<WorkerLink>> workers) TDOCK_EXCLUDES(mu_);

 private:
  void Answer(size_t rank, absl::StatusOr<Value> answer) TDOCK_EXCLUDES(mu_);
  void Expire() TDOCK_EXCLUDES(mu_);
  std::vector<std::string> Missing() const TDOCK_REQUIRES(mu_);

  const std::string what_;  // "method 'generate_sequences' of 'rollout'"
  const DividedCall call_;
  const absl::Duration timeout_;
  Clock& clock_;
  const FutureValue result_;
  std::vector<std::string> names_;  // of the workers; set before anything else runs

  Mutex mu_;
  std::vector<std::optional<Value>> answers_ TDOCK_GUARDED_BY(mu_);
  std::set<size_t> failed_ TDOCK_GUARDED_BY(mu_);
  size_t left_ TDOCK_GUARDED_BY(mu_);
  absl::Status first_error_ TDOCK_GUARDED_BY(mu_);
  bool ended_ TDOCK_GUARDED_BY(mu_) = false;
  std::optional<Clock::AlarmId> alarm_ TDOCK_GUARDED_BY(mu_);
};

void OpenCall::Begin(const std::string& method, std::span<const std::shared_ptr<WorkerLink>> workers) {
  for (const auto& worker : workers) names_.push_back(worker->Describe());
  const absl::Time deadline = clock_.Now() + timeout_;
  const std::optional<Clock::AlarmId> alarm =
      clock_.SetAlarm(deadline, [self = shared_from_this()] { self->Expire(); });
  if (!alarm.has_value()) return Expire();
  {
    MutexLock lock(mu_);
    alarm_ = alarm;
  }
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    workers[rank]->Invoke(
        method, call_.arguments()[rank], deadline,
        [self = shared_from_this(), rank](absl::StatusOr<Value> answer) { self->Answer(rank, std::move(answer)); });
  }
}

void OpenCall::Answer(size_t rank, absl::StatusOr<Value> answer) {
  std::vector<Value> results;
  absl::Status error;
  std::optional<Clock::AlarmId> alarm;
  {
    MutexLock lock(mu_);
    if (ended_ || answers_[rank].has_value() || failed_.contains(rank)) return;
    if (answer.ok()) {
      answers_[rank] = *std::move(answer);
    } else {
      failed_.insert(rank);
      if (first_error_.ok()) first_error_ = Annotate(answer.status(), absl::StrCat(what_, " failed on ", names_[rank]));
    }
    if (--left_ > 0) return;
    ended_ = true;
    error = first_error_;
    alarm = alarm_;
    for (std::optional<Value>& result : answers_) {
      if (result.has_value()) results.push_back(*std::exchange(result, std::nullopt));
    }
  }
  if (alarm.has_value()) clock_.CancelAlarm(*alarm);
  result_.Set(error.ok() ? call_.Collect(std::move(results)) : error);
}

std::vector<std::string> OpenCall::Missing() const {
  std::vector<std::string> names;
  for (size_t rank = 0; rank < answers_.size(); ++rank) {
    if (!answers_[rank].has_value() && !failed_.contains(rank)) names.push_back(names_[rank]);
  }
  return names;
}

void OpenCall::Expire() {
  absl::Status error;
  std::vector<std::optional<Value>> given_up;  // freed without the lock
  {
    MutexLock lock(mu_);
    if (std::exchange(ended_, true)) return;
    const std::string missing = Enumerate(Missing());
    const std::string within = absl::FormatDuration(timeout_);
    error = first_error_.ok()
                ? absl::DeadlineExceededError(absl::StrCat(what_, ": no answer within ", within, " from ", missing))
                : absl::Status(first_error_.code(), absl::StrCat(first_error_.message(), " (and no answer within ",
                                                                 within, " from ", missing, ")"));
    given_up.swap(answers_);
  }
  result_.Set(error);
}

absl::Status CheckTimeout(absl::Duration timeout) {
  if (timeout > absl::ZeroDuration() && timeout < absl::InfiniteDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the timeout of calls is ", absl::FormatDuration(timeout), "; it must be positive and finite"));
}

absl::Status CheckMeshes(const std::map<std::string, Mesh, std::less<>>& meshes, size_t ranks) {
  for (const auto& [name, mesh] : meshes) {
    if (static_cast<size_t>(mesh.ranks()) != ranks) {
      return absl::InvalidArgumentError(absl::StrCat("mesh '", name, "' (", mesh.ToString(), ") has ", mesh.ranks(),
                                                     " ranks; the group has ", ranks));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WorkerGroup> WorkerGroup::Of(std::vector<std::shared_ptr<WorkerLink>> workers,
                                            WorkerGroupOptions options) {
  absl::Status status = CheckMeshes(options.meshes, workers.size());
  if (workers.empty()) status = absl::InvalidArgumentError("it has no workers");
  if (status.ok()) status = CheckTimeout(options.timeout);
  if (!status.ok()) return Annotate(status, absl::StrCat("worker group '", options.role, "'"));
  return WorkerGroup(std::make_shared<const Workers>(std::move(workers)),
                     std::make_shared<const WorkerGroupOptions>(std::move(options)));
}

// A call that begins when all of its arguments are there. It is kept alive by those that are not. Thread-safe.
class WorkerGroup::WaitingCall {
 public:
  WaitingCall(WorkerGroup group, const MethodSpec& method, std::vector<Argument> arguments)
      : group_(std::move(group)),
        name_(method.name),
        mesh_(method.dispatch.mesh),
        method_(method),
        arguments_(std::move(arguments)),
        result_(*group_.options_->clock) {
    method_.name = name_;
    method_.dispatch.mesh = mesh_;
  }
  WaitingCall(const WaitingCall&) = delete;
  WaitingCall& operator=(const WaitingCall&) = delete;

  static FutureValue Start(const std::shared_ptr<WaitingCall>& call) {
    std::vector<const FutureValue*> futures;
    for (const Argument& argument : call->arguments_) {
      if (const FutureValue* future = std::get_if<FutureValue>(&argument)) futures.push_back(future);
    }
    call->open_ = futures.size() + 1;
    for (const FutureValue* future : futures) future->OnReady([call] { call->CountReady(); });
    call->CountReady();
    return call->result_;
  }

 private:
  void CountReady() {
    if (open_.fetch_sub(1) != 1) return;
    const absl::StatusOr<std::vector<Value>> values = Values();
    if (values.ok()) {
      group_.Begin(method_, *values, result_);
    } else {
      result_.Set(values.status());
    }
  }

  absl::StatusOr<std::vector<Value>> Values() const {
    std::vector<Value> values;
    for (const Argument& argument : arguments_) {
      if (const Value* value = std::get_if<Value>(&argument)) {
        values.push_back(*value);
        continue;
      }
      absl::StatusOr<Value> value = std::get<FutureValue>(argument).Get();
      if (!value.ok()) {
        return Annotate(value.status(),
                        absl::StrCat("method '", name_, "' has not begun, for its argument ", values.size()));
      }
      values.push_back(*std::move(value));
    }
    return values;
  }

  const WorkerGroup group_;
  const std::string name_, mesh_;
  MethodSpec method_;  // its strings are the two above
  const std::vector<Argument> arguments_;
  const FutureValue result_;
  std::atomic<size_t> open_ = 0;
};

void WorkerGroup::Begin(const MethodSpec& method, const std::vector<Value>& arguments,
                        const FutureValue& result) const {
  absl::StatusOr<DividedCall> call = DividedCall::Of(method, arguments, {.ranks = ranks(), .meshes = options_->meshes});
  absl::Status status = call.status();
  if (status.ok()) status = CheckTimeout(options_->timeout);
  if (!status.ok()) {
    result.Set(status);
    return;
  }
  const size_t taking_part = call->arguments().size();
  const auto open = std::make_shared<OpenCall>(absl::StrCat("method '", method.name, "' of '", role(), "'"),
                                               *std::move(call), options_->timeout, *options_->clock, result);
  order_->Run([open, name = MethodTable::NameOf(prefix_, method.name), workers = workers_, taking_part] {
    open->Begin(name, std::span(*workers).first(taking_part));
  });
}

FutureValue WorkerGroup::StartAny(const MethodSpec& method, std::vector<Argument> arguments) const {
  return WaitingCall::Start(std::make_shared<WaitingCall>(*this, method, std::move(arguments)));
}

WorkerGroup WorkerGroup::WithTimeout(absl::Duration timeout) const {
  WorkerGroupOptions options = *options_;
  options.timeout = timeout;
  WorkerGroup group = *this;
  group.options_ = std::make_shared<const WorkerGroupOptions>(std::move(options));
  return group;
}

absl::StatusOr<WorkerGroup> WorkerGroup::Subgroup(std::span<const int64_t> ranks,
                                                  std::map<std::string, Mesh, std::less<>> meshes) const {
  Workers workers;
  std::set<int64_t> seen;
  for (const int64_t rank : ranks) {
    if (rank < 0 || rank >= this->ranks()) {
      return absl::OutOfRangeError(absl::StrCat("rank ", rank, " of group '", role(), "', which has ", this->ranks()));
    }
    if (!seen.insert(rank).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " is named twice for a part of group '", role(), "'"));
    }
    workers.push_back((*workers_)[static_cast<size_t>(rank)]);
  }
  WorkerGroupOptions options = *options_;
  options.meshes = std::move(meshes);
  TDOCK_ASSIGN_OR_RETURN(WorkerGroup group, Of(std::move(workers), std::move(options)));
  group.order_ = order_;
  group.prefix_ = prefix_;
  return group;
}

absl::StatusOr<std::map<std::string, WorkerGroup>> WorkerGroup::Spawn(std::span<const std::string> roles) const {
  std::map<std::string, WorkerGroup> groups;
  for (const std::string& role : roles) {
    if (role.empty()) return absl::InvalidArgumentError("a role has no name; give it one, such as 'actor'");
    WorkerGroupOptions options = *options_;
    options.role = role;
    WorkerGroup group = *this;
    group.options_ = std::make_shared<const WorkerGroupOptions>(std::move(options));
    group.prefix_ = role;
    if (!groups.emplace(role, std::move(group)).second) {
      return absl::InvalidArgumentError(absl::StrCat("role '", role, "' is named twice"));
    }
  }
  return groups;
}

}  // namespace tdock::runtime
