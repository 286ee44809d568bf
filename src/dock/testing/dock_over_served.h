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

  absl::StatusOr<PutResult> Put(const PutRequest& request) override {
    return Await<PutResult>([&](auto done) { dock_->StartPut(request, std::move(done)); });
  }
  absl::StatusOr<Taken> Take(const TakeRequest& request) override {
    return Await<Taken>([&](auto done) { dock_->StartTake(request, std::move(done)); });
  }
  absl::StatusOr<Rows> Fetch(const FetchRequest& request) override {
    return Await<Rows>([&](auto done) { dock_->StartFetch(request, std::move(done)); });
  }

  absl::Status CreatePartition(const PartitionOptions& options) override { return dock_->CreatePartition(options); }
  absl::Status DropPartition(absl::string_view partition) override { return dock_->DropPartition(partition); }
  absl::StatusOr<std::string> ExportPartition(absl::string_view partition) override {
    return dock_->ExportPartition(partition);
  }
  absl::Status ImportPartition(absl::string_view image) override { return dock_->ImportPartition(image); }
  absl::StatusOr<std::vector<std::string>> ListPartitions() override { return dock_->ListPartitions(); }
  absl::Status RegisterConsumer(absl::string_view partition, const ConsumerOptions& options) override {
    return dock_->RegisterConsumer(partition, options);
  }
  absl::Status DropConsumer(absl::string_view partition, absl::string_view consumer) override {
    return dock_->DropConsumer(partition, consumer);
  }
  absl::Status Complete(const LeaseRequest& request) override { return dock_->Complete(request); }
  absl::Status Release(const LeaseRequest& request) override { return dock_->Release(request); }
  absl::StatusOr<absl::Time> Renew(absl::string_view partition, LeaseId lease) override {
    return dock_->Renew(partition, lease);
  }
  absl::Status Drop(const LeaseRequest& request) override { return dock_->Drop(request); }
  absl::Status Requeue(const RequeueRequest& request) override { return dock_->Requeue(request); }
  absl::Status Commit(const StepRequest& request) override { return dock_->Commit(request); }
  absl::Status Rollback(const StepRequest& request) override { return dock_->Rollback(request); }
  absl::Status PublishWeights(absl::string_view partition, int64_t version) override {
    return dock_->PublishWeights(partition, version);
  }
  absl::StatusOr<std::vector<RowId>> FindRows(absl::string_view partition, std::span<const std::string> keys) override {
    return dock_->FindRows(partition, keys);
  }
  absl::StatusOr<ListResult> List(const ListRequest& request) override { return dock_->List(request); }
  absl::Status Seal(absl::string_view partition) override { return dock_->Seal(partition); }
  absl::StatusOr<int64_t> Clear(const ClearRequest& request) override { return dock_->Clear(request); }
  absl::StatusOr<PartitionStatus> GetStatus(absl::string_view partition) override {
    return dock_->GetStatus(partition);
  }
  absl::StatusOr<ConsumerStatus> GetConsumerStatus(absl::string_view partition, absl::string_view consumer) override {
    return dock_->GetConsumerStatus(partition, consumer);
  }
  absl::StatusOr<RowStatus> GetRowStatus(absl::string_view partition, RowId row) override {
    return dock_->GetRowStatus(partition, row);
  }
  absl::StatusOr<std::string> Explain(absl::string_view partition, absl::string_view consumer) override {
    return dock_->Explain(partition, consumer);
  }

 private:
  template <class T, class Start>
  static absl::StatusOr<T> Await(Start start) {
    // Shared: the waiting thread may return before the notifying one has.
    struct Answer {
      Mutex mu;
      CondVar changed;
      std::optional<absl::StatusOr<T>> result TDOCK_GUARDED_BY(mu);
    };
    const auto answer = std::make_shared<Answer>();
    start([answer](absl::StatusOr<T> result) {
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
