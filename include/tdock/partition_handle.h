// A handle of one partition: the calls of a dock that need its name, without it.
//
//   PartitionHandle train = dock->partition("train");
//   absl::StatusOr<Taken> taken = train.Take({.consumer = "reward", .min = 8, .max = 64});
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tdock/options.h"
#include "tdock/requests.h"

namespace tdock {

class Dock;

// Each call is the dock's of the same name (dock.h). Requests need not name the partition; one that names another is
// InvalidArgument. Holds nothing but the name and the dock, which must outlive it: it may be made before the partition
// is. Cheap to copy; thread-safe.
class PartitionHandle {
 public:
  PartitionHandle(Dock& dock, std::string name) : dock_(&dock), name_(std::move(name)) {}

  const std::string& name() const { return name_; }

  absl::Status RegisterConsumer(const ConsumerOptions& options) const;
  absl::Status DropConsumer(absl::string_view consumer) const;
  absl::StatusOr<PutResult> Put(PutRequest request) const;
  absl::StatusOr<Taken> Take(TakeRequest request) const;
  absl::StatusOr<Rows> Fetch(FetchRequest request) const;
  absl::Status Complete(LeaseRequest request) const;
  absl::Status Release(LeaseRequest request) const;
  absl::StatusOr<absl::Time> Renew(LeaseId lease) const;
  absl::Status Drop(LeaseRequest request) const;
  absl::Status Requeue(RequeueRequest request) const;
  absl::Status Commit(StepRequest request) const;
  absl::Status Rollback(StepRequest request) const;
  absl::Status PublishWeights(int64_t version) const;
  absl::StatusOr<std::vector<RowId>> FindRows(std::span<const std::string> keys) const;
  absl::StatusOr<ListResult> List(ListRequest request) const;
  absl::Status Seal() const;
  absl::StatusOr<int64_t> Clear(ClearRequest request) const;
  absl::StatusOr<PartitionStatus> GetStatus() const;
  absl::StatusOr<ConsumerStatus> GetConsumerStatus(absl::string_view consumer) const;
  absl::StatusOr<RowStatus> GetRowStatus(RowId row) const;
  absl::StatusOr<std::string> Explain(absl::string_view consumer) const;

 private:
  // Has the dock do what the request asks for in this partition.
  template <class Request, class Result>
  Result Ask(Result (Dock::*call)(const Request&), Request request) const;

  Dock* dock_;
  std::string name_;
};

}  // namespace tdock
