// A dock whose calls wait for the threadless calls of a served dock, as a remote dock's do. For tests.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "core/base/mutex.h"
#include "dock/local/served_dock.h"

namespace tdock::dock {

class DockOverServed final : public Dock {
 public:
  explicit DockOverServed(std::unique_ptr<ServedDock> dock) : dock_(std::move(dock)) {}

  void Start(const AnyCall& call) override {
    VisitVerb(call.verb(), [&]<class V>() {
      call.template Reply<V>(Await<ResultOf<V>>(
          [&](auto done) { dock_->Start(AnyCall::Owned<V>(call.template request<V>(), std::move(done))); }));
    });
  }
  absl::StatusOr<std::string> ExportPartition(absl::string_view partition) override {
    return dock_->ExportPartition(partition);
  }
  absl::Status ImportPartition(absl::string_view image) override { return dock_->ImportPartition(image); }

 private:
  template <class Result, class Begin>
  static Result Await(Begin begin) {
    // Shared: the waiting thread may return before the notifying one has.
    struct Answer {
      Mutex mu;
      CondVar changed;
      std::optional<Result> result TDOCK_GUARDED_BY(mu);
    };
    const auto answer = std::make_shared<Answer>();
    begin([answer](Result result) {
      MutexLock lock(answer->mu);
      answer->result = std::move(result);
      answer->changed.NotifyAll();
    });
    MutexLock lock(answer->mu);
    while (!answer->result.has_value()) answer->changed.Wait(answer->mu);
    return *std::move(answer->result);
  }

  const std::unique_ptr<ServedDock> dock_;
};

}  // namespace tdock::dock
