#include "runtime/dispatch/in_process_workers.h"

#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"

namespace tdock::runtime {

class InProcessWorkers::Worker : public WorkerLink {
 public:
  Worker(std::string name, MethodTable table, Clock& clock)
      : name_(std::move(name)), table_(std::move(table)), clock_(clock) {}

  std::string Describe() const override { return name_; }

  void Invoke(std::string method, std::vector<Value> arguments, absl::Time deadline,
              std::function<void(absl::StatusOr<Value>)> done) override TDOCK_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      if (!ending_) {
        calls_.push_back({std::move(method), std::move(arguments), deadline, std::move(done)});
        changed_.NotifyOne();
        return;
      }
    }
    done(absl::CancelledError("the worker has ended"));
  }

  void Serve() TDOCK_EXCLUDES(mu_) {
    while (std::optional<Waiting> call = TakeNext()) {
      if (clock_.Now() >= call->deadline) {
        call->done(absl::DeadlineExceededError("its time was over before its turn; the worker had earlier calls"));
      } else {
        call->done(table_.Call(call->method, std::move(call->arguments), call->deadline));
      }
    }
    std::deque<Waiting> left;
    {
      MutexLock lock(mu_);
      left.swap(calls_);
    }
    for (Waiting& call : left) call.done(absl::CancelledError("the worker has ended before its turn"));
  }

  void End() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    ending_ = true;
    changed_.NotifyOne();
  }

 private:
  struct Waiting {
    std::string method = {};
    std::vector<Value> arguments = {};
    absl::Time deadline = {};
    std::function<void(absl::StatusOr<Value>)> done = {};
  };

  std::optional<Waiting> TakeNext() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (calls_.empty() && !ending_) changed_.Wait(mu_);
    if (ending_) return std::nullopt;
    Waiting call = std::move(calls_.front());
    calls_.pop_front();
    return call;
  }

  const std::string name_;
  const MethodTable table_;
  Clock& clock_;
  Mutex mu_;
  CondVar changed_;
  std::deque<Waiting> calls_ TDOCK_GUARDED_BY(mu_);
  bool ending_ TDOCK_GUARDED_BY(mu_) = false;
};

InProcessWorkers::InProcessWorkers(absl::string_view role, std::vector<MethodTable> tables, Clock& clock) {
  for (MethodTable& table : tables) {
    workers_.push_back(
        std::make_shared<Worker>(absl::StrCat("rank ", workers_.size(), " (", role, ")"), std::move(table), clock));
    threads_.emplace_back([worker = workers_.back()] { worker->Serve(); });
  }
}

InProcessWorkers::~InProcessWorkers() {
  for (const auto& worker : workers_) worker->End();
  for (std::thread& thread : threads_) thread.join();
}

std::vector<std::shared_ptr<WorkerLink>> InProcessWorkers::links() const { return {workers_.begin(), workers_.end()}; }

}  // namespace tdock::runtime
