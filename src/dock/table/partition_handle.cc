#include "tdock/partition_handle.h"

#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"
#include "tdock/dock.h"

namespace tdock {

PartitionHandle Dock::partition(std::string name) { return {*this, std::move(name)}; }

template <class Request, class Result>
Result PartitionHandle::Ask(Result (Dock::*call)(const Request&), Request request) const {
  if (request.partition.empty()) request.partition = name_;
  if (request.partition != name_) {
    return absl::InvalidArgumentError(absl::StrCat("the request names partition '", EscapeForMessage(request.partition),
                                                   "', and this is the handle of '", EscapeForMessage(name_),
                                                   "': leave the name out, or ask the dock"));
  }
  return (dock_->*call)(request);
}

absl::Status PartitionHandle::RegisterConsumer(const ConsumerOptions& options) const {
  return dock_->RegisterConsumer(name_, options);
}
absl::Status PartitionHandle::DropConsumer(absl::string_view consumer) const {
  return dock_->DropConsumer(name_, consumer);
}
absl::StatusOr<PutResult> PartitionHandle::Put(PutRequest request) const { return Ask(&Dock::Put, std::move(request)); }
absl::StatusOr<Taken> PartitionHandle::Take(TakeRequest request) const { return Ask(&Dock::Take, std::move(request)); }
absl::StatusOr<Rows> PartitionHandle::Fetch(FetchRequest request) const {
  return Ask(&Dock::Fetch, std::move(request));
}
absl::Status PartitionHandle::Complete(LeaseRequest request) const { return Ask(&Dock::Complete, std::move(request)); }
absl::Status PartitionHandle::Release(LeaseRequest request) const { return Ask(&Dock::Release, std::move(request)); }
absl::StatusOr<absl::Time> PartitionHandle::Renew(LeaseId lease) const { return dock_->Renew(name_, lease); }
absl::Status PartitionHandle::Drop(LeaseRequest request) const { return Ask(&Dock::Drop, std::move(request)); }
absl::Status PartitionHandle::Requeue(RequeueRequest request) const { return Ask(&Dock::Requeue, std::move(request)); }
absl::Status PartitionHandle::Commit(StepRequest request) const { return Ask(&Dock::Commit, std::move(request)); }
absl::Status PartitionHandle::Rollback(StepRequest request) const { return Ask(&Dock::Rollback, std::move(request)); }
absl::Status PartitionHandle::PublishWeights(int64_t version) const { return dock_->PublishWeights(name_, version); }
absl::StatusOr<std::vector<RowId>> PartitionHandle::FindRows(std::span<const std::string> keys) const {
  return dock_->FindRows(name_, keys);
}
absl::StatusOr<ListResult> PartitionHandle::List(ListRequest request) const {
  return Ask(&Dock::List, std::move(request));
}
absl::Status PartitionHandle::Seal() const { return dock_->Seal(name_); }
absl::StatusOr<int64_t> PartitionHandle::Clear(ClearRequest request) const {
  return Ask(&Dock::Clear, std::move(request));
}
absl::StatusOr<PartitionStatus> PartitionHandle::GetStatus() const { return dock_->GetStatus(name_); }
absl::StatusOr<ConsumerStatus> PartitionHandle::GetConsumerStatus(absl::string_view consumer) const {
  return dock_->GetConsumerStatus(name_, consumer);
}
absl::StatusOr<RowStatus> PartitionHandle::GetRowStatus(RowId row) const { return dock_->GetRowStatus(name_, row); }
absl::StatusOr<std::string> PartitionHandle::Explain(absl::string_view consumer) const {
  return dock_->Explain(name_, consumer);
}

}  // namespace tdock
