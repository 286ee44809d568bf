// The calls of a dock and of a handle, each one verb.
#include "tdock/dock.h"

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "tdock/verbs.h"

namespace tdock {

absl::Status Dock::CreatePartition(const PartitionOptions& options) {
  return Ask<verbs::CreatePartition>(*this, options);
}
absl::Status Dock::DropPartition(absl::string_view partition) {
  return Ask<verbs::DropPartition>(*this, {std::string(partition)});
}
absl::StatusOr<std::string> Dock::ExportPartition(absl::string_view partition) {
  TDOCK_ASSIGN_OR_RETURN(ExportedPartition exported, Ask<verbs::ExportPartition>(*this, {std::string(partition)}));
  return std::move(exported.bytes);
}
absl::Status Dock::ImportPartition(absl::string_view image) {
  const int64_t offsets[] = {0, static_cast<int64_t>(image.size())};
  ImportRequest request;
  TDOCK_ASSIGN_OR_RETURN(Column column, Column::MakeBytes(Buffer::Wrap(image.data(), image.size(), nullptr),
                                                          Buffer::CopyOf(std::as_bytes(std::span(offsets)))));
  TDOCK_RETURN_IF_ERROR(request.image.Add("image", std::move(column)));
  return Ask<verbs::ImportPartition>(*this, request);
}
absl::StatusOr<std::vector<std::string>> Dock::ListPartitions() { return Ask<verbs::ListPartitions>(*this, {}); }
absl::Status Dock::RegisterConsumer(absl::string_view partition, const ConsumerOptions& options) {
  return Ask<verbs::RegisterConsumer>(*this, {std::string(partition), options});
}
absl::Status Dock::DropConsumer(absl::string_view partition, absl::string_view consumer) {
  return Ask<verbs::DropConsumer>(*this, {std::string(partition), std::string(consumer)});
}
absl::StatusOr<PutResult> Dock::Put(const PutRequest& request) { return Ask<verbs::Put>(*this, request); }
absl::Status Dock::Fill(const FillRequest& request) { return Ask<verbs::Fill>(*this, request); }
absl::StatusOr<Taken> Dock::Take(const TakeRequest& request) { return Ask<verbs::Take>(*this, request); }
absl::StatusOr<Rows> Dock::Fetch(const FetchRequest& request) { return Ask<verbs::Fetch>(*this, request); }
absl::Status Dock::Complete(const LeaseRequest& request) { return Ask<verbs::Complete>(*this, request); }
absl::Status Dock::Release(const LeaseRequest& request) { return Ask<verbs::Release>(*this, request); }
absl::StatusOr<absl::Time> Dock::Renew(absl::string_view partition, LeaseId lease) {
  return Ask<verbs::Renew>(*this, {.partition = std::string(partition), .lease = lease});
}
absl::Status Dock::Drop(const LeaseRequest& request) { return Ask<verbs::Drop>(*this, request); }
absl::Status Dock::Requeue(const RequeueRequest& request) { return Ask<verbs::Requeue>(*this, request); }
absl::Status Dock::Commit(const StepRequest& request) { return Ask<verbs::Commit>(*this, request); }
absl::Status Dock::Rollback(const StepRequest& request) { return Ask<verbs::Rollback>(*this, request); }
absl::Status Dock::PublishWeights(absl::string_view partition, int64_t version) {
  return Ask<verbs::PublishWeights>(*this, {std::string(partition), version});
}
absl::StatusOr<std::vector<RowId>> Dock::FindRows(absl::string_view partition, std::span<const std::string> keys) {
  return Ask<verbs::FindRows>(*this, {std::string(partition), {keys.begin(), keys.end()}});
}
absl::StatusOr<ListResult> Dock::List(const ListRequest& request) { return Ask<verbs::List>(*this, request); }
absl::Status Dock::Seal(absl::string_view partition) { return Ask<verbs::Seal>(*this, {std::string(partition)}); }
absl::StatusOr<int64_t> Dock::Clear(const ClearRequest& request) { return Ask<verbs::Clear>(*this, request); }
absl::StatusOr<PartitionStatus> Dock::GetStatus(absl::string_view partition) {
  return Ask<verbs::GetStatus>(*this, {std::string(partition)});
}
absl::StatusOr<ConsumerStatus> Dock::GetConsumerStatus(absl::string_view partition, absl::string_view consumer) {
  return Ask<verbs::GetConsumerStatus>(*this, {std::string(partition), std::string(consumer)});
}
absl::StatusOr<RowStatus> Dock::GetRowStatus(absl::string_view partition, RowId row) {
  return Ask<verbs::GetRowStatus>(*this, {std::string(partition), row});
}
absl::StatusOr<std::string> Dock::Explain(absl::string_view partition, absl::string_view consumer) {
  return Ask<verbs::Explain>(*this, {std::string(partition), std::string(consumer)});
}

// ---- Handles.

PartitionHandle Dock::partition(std::string name) { return {*this, std::move(name)}; }

template <class V>
auto PartitionHandle::Do(typename V::Request request) const {
  if (request.partition.empty()) request.partition = name_;
  if (request.partition == name_) return Ask<V>(*dock_, request);
  return ResultOf<V>(absl::InvalidArgumentError(absl::StrCat(
      "the request names partition '", EscapeForMessage(request.partition), "', and this is the handle of '",
      EscapeForMessage(name_), "': leave the name out, or ask the dock")));
}

absl::Status PartitionHandle::RegisterConsumer(const ConsumerOptions& options) const {
  return Do<verbs::RegisterConsumer>({.options = options});
}
absl::Status PartitionHandle::DropConsumer(absl::string_view consumer) const {
  return Do<verbs::DropConsumer>({.consumer = std::string(consumer)});
}
absl::StatusOr<PutResult> PartitionHandle::Put(PutRequest request) const { return Do<verbs::Put>(std::move(request)); }
absl::Status PartitionHandle::Fill(FillRequest request) const { return Do<verbs::Fill>(std::move(request)); }
absl::StatusOr<Taken> PartitionHandle::Take(TakeRequest request) const { return Do<verbs::Take>(std::move(request)); }
absl::StatusOr<Rows> PartitionHandle::Fetch(FetchRequest request) const { return Do<verbs::Fetch>(std::move(request)); }
absl::Status PartitionHandle::Complete(LeaseRequest request) const { return Do<verbs::Complete>(std::move(request)); }
absl::Status PartitionHandle::Release(LeaseRequest request) const { return Do<verbs::Release>(std::move(request)); }
absl::StatusOr<absl::Time> PartitionHandle::Renew(LeaseId lease) const { return Do<verbs::Renew>({.lease = lease}); }
absl::Status PartitionHandle::Drop(LeaseRequest request) const { return Do<verbs::Drop>(std::move(request)); }
absl::Status PartitionHandle::Requeue(RequeueRequest request) const { return Do<verbs::Requeue>(std::move(request)); }
absl::Status PartitionHandle::Commit(StepRequest request) const { return Do<verbs::Commit>(std::move(request)); }
absl::Status PartitionHandle::Rollback(StepRequest request) const { return Do<verbs::Rollback>(std::move(request)); }
absl::Status PartitionHandle::PublishWeights(int64_t version) const {
  return Do<verbs::PublishWeights>({.version = version});
}
absl::StatusOr<std::vector<RowId>> PartitionHandle::FindRows(std::span<const std::string> keys) const {
  return Do<verbs::FindRows>({.keys = {keys.begin(), keys.end()}});
}
absl::StatusOr<ListResult> PartitionHandle::List(ListRequest request) const {
  return Do<verbs::List>(std::move(request));
}
absl::Status PartitionHandle::Seal() const { return Do<verbs::Seal>({}); }
absl::StatusOr<int64_t> PartitionHandle::Clear(ClearRequest request) const {
  return Do<verbs::Clear>(std::move(request));
}
absl::StatusOr<PartitionStatus> PartitionHandle::GetStatus() const { return Do<verbs::GetStatus>({}); }
absl::StatusOr<ConsumerStatus> PartitionHandle::GetConsumerStatus(absl::string_view consumer) const {
  return Do<verbs::GetConsumerStatus>({.consumer = std::string(consumer)});
}
absl::StatusOr<RowStatus> PartitionHandle::GetRowStatus(RowId row) const {
  return Do<verbs::GetRowStatus>({.row = row});
}
absl::StatusOr<std::string> PartitionHandle::Explain(absl::string_view consumer) const {
  return Do<verbs::Explain>({.consumer = std::string(consumer)});
}

}  // namespace tdock
