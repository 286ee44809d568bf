// One method, called at several ranks at once.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "runtime/control/processes.h"
#include "runtime/dispatch/value.h"
#include "trainer/distributed/stage_call.h"

namespace tdock::trainer {

// Thread-safe.
class RankCall : public std::enable_shared_from_this<RankCall> {
 public:
  struct Answer {
    int rank;
    std::string who;  // for errors: "rank 3 (actor)"
    absl::StatusOr<runtime::Value> value;
  };
  // `on_failure` is called, by any thread, with each error of a rank. It outlives the controller.
  static std::shared_ptr<RankCall> Start(
      runtime::Controller& controller, const StageMethod& method, const std::vector<int>& ranks,
      const runtime::Value& argument, absl::Time deadline,
      std::function<void(const absl::Status&)> on_failure = [](const absl::Status&) {});

  // The answers of all, in the order of the ranks. DeadlineExceeded names those that have not answered.
  absl::StatusOr<std::vector<Answer>> Await(absl::Time deadline) TDOCK_EXCLUDES(mu_);

  // Of answers, the error that says most: one of a rank's own rather than that another rank has left it, or that it was
  // told to end. It names the rank and the method.
  static absl::Status FirstError(const std::vector<Answer>& answers, const StageMethod& method);

 private:
  explicit RankCall(const StageMethod& method) : method_(method) {}
  void Take(size_t index, absl::StatusOr<runtime::Value> value) TDOCK_EXCLUDES(mu_);

  const StageMethod& method_;
  Mutex mu_;
  CondVar changed_;
  size_t open_ TDOCK_GUARDED_BY(mu_) = 0;
  std::vector<Answer> answers_ TDOCK_GUARDED_BY(mu_);
  std::vector<bool> answered_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::trainer
