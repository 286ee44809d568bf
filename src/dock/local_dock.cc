#include "tdock/local_dock.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "arena/warm_memory.h"
#include "base/status.h"
#include "base/utf8.h"
#include "dock/name.h"
#include "dock/partition.h"

namespace tdock {
namespace {

absl::Status CheckOptions(const PartitionOptions& options) {
  TDOCK_RETURN_IF_ERROR(CheckName("partition", options.name));
  if (options.group_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat("group_size is ", options.group_size, "; it must be at least 1"));
  }
  constexpr int64_t kMaxBudget = int64_t{1} << 50;
  for (const auto& [name, value] : {std::pair("max_rows", options.max_rows), std::pair("max_bytes", options.max_bytes),
                                    std::pair("row_bytes", options.row_bytes)}) {
    if (value >= 0 && value <= kMaxBudget) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, "; it must be 0 to ", kMaxBudget));
  }
  if (options.max_rows > 0 && options.group_size > options.max_rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("groups of ", options.group_size, " rows do not fit max_rows ", options.max_rows));
  }
  if (options.columns.empty() && !options.growing) {
    return absl::InvalidArgumentError("a partition that does not grow needs columns");
  }
  for (size_t i = 0; i < options.columns.size(); ++i) {
    const ColumnSpec& spec = options.columns[i];
    TDOCK_RETURN_IF_ERROR(CheckName("column", spec.name));
    const std::string what = absl::StrCat("column '", spec.name, "'");
    TDOCK_RETURN_IF_ERROR(Annotate(Column::Empty(spec.type).status(), what));
    for (size_t k = 0; k < i; ++k) {
      if (options.columns[k].name == spec.name)
        return absl::InvalidArgumentError(absl::StrCat(what, " is there twice"));
    }
  }
  for (size_t i = 0; i < options.retain_for.size(); ++i) {
    const std::string& name = options.retain_for[i];
    TDOCK_RETURN_IF_ERROR(CheckName("retain_for", name));
    const auto end = options.retain_for.begin() + static_cast<ptrdiff_t>(i);
    if (std::find(options.retain_for.begin(), end, name) != end) {
      return absl::InvalidArgumentError(absl::StrCat("retain_for names consumer '", name, "' twice"));
    }
  }
  return absl::OkStatus();
}

std::shared_ptr<const Table::OwnSamplers> WithoutNulls(Table::OwnSamplers samplers) {
  std::erase_if(samplers, [](const auto& named) { return named.second == nullptr; });
  return std::make_shared<const Table::OwnSamplers>(std::move(samplers));
}

class LocalDock final : public Dock {
 public:
  explicit LocalDock(const LocalDockOptions& options)
      : clock_(options.clock == nullptr ? Clock::Real() : *options.clock), samplers_(WithoutNulls(options.samplers)) {}

  absl::Status CreatePartition(const PartitionOptions& options) override TDOCK_EXCLUDES(mu_) {
    TDOCK_RETURN_IF_ERROR(CheckOptions(options));
    std::shared_ptr<Partition> existing;
    {
      MutexLock lock(mu_);
      auto& entry = partitions_[options.name];
      if (entry == nullptr) {
        entry = std::make_shared<Partition>(options, clock_, memory_, samplers_);
        return absl::OkStatus();
      }
      existing = entry;
    }
    return existing->Matches(options);
  }

  absl::Status DropPartition(absl::string_view partition) override TDOCK_EXCLUDES(mu_) {
    std::shared_ptr<Partition> dropped;
    {
      MutexLock lock(mu_);
      const auto it = partitions_.find(partition);
      if (it == partitions_.end()) return NoPartition(partition);
      dropped = std::move(it->second);
      partitions_.erase(it);
    }
    dropped->Close();
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> ListPartitions() override TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return Names();
  }

  absl::Status RegisterConsumer(absl::string_view partition, const ConsumerOptions& options) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(partition));
    return found->RegisterConsumer(options);
  }
  absl::Status DropConsumer(absl::string_view partition, absl::string_view consumer) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(partition));
    return found->DropConsumer(consumer);
  }
  absl::StatusOr<PutResult> Put(const PutRequest& request) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(request.partition));
    return found->Put(request);
  }
  absl::StatusOr<Taken> Take(const TakeRequest& request) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(request.partition));
    return found->Take(request);
  }
  absl::StatusOr<Rows> Fetch(const FetchRequest& request) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(request.partition));
    return found->Fetch(request);
  }
  absl::Status Complete(const LeaseRequest& request) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(request.partition));
    return found->Complete(request);
  }
  absl::Status Release(const LeaseRequest& request) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(request.partition));
    return found->Release(request);
  }
  absl::StatusOr<absl::Time> Renew(absl::string_view partition, LeaseId lease) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(partition));
    return found->Renew(lease);
  }
  absl::Status Drop(const LeaseRequest& request) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(request.partition));
    return found->Drop(request);
  }
  absl::Status Requeue(const RequeueRequest& request) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(request.partition));
    return found->Requeue(request);
  }
  absl::Status Commit(const StepRequest& request) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(request.partition));
    return found->Commit(request);
  }
  absl::Status Rollback(const StepRequest& request) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(request.partition));
    return found->Rollback(request);
  }
  absl::Status PublishWeights(absl::string_view partition, int64_t version) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(partition));
    return found->PublishWeights(version);
  }
  absl::StatusOr<std::vector<RowId>> FindRows(absl::string_view partition, std::span<const std::string> keys) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(partition));
    return found->FindRows(keys);
  }
  absl::StatusOr<ListResult> List(const ListRequest& request) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(request.partition));
    return found->List(request);
  }
  absl::Status Seal(absl::string_view partition) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(partition));
    return found->Seal();
  }
  absl::StatusOr<int64_t> Clear(const ClearRequest& request) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(request.partition));
    return found->Clear(request);
  }
  absl::StatusOr<PartitionStatus> GetStatus(absl::string_view partition) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(partition));
    return found->GetStatus();
  }
  absl::StatusOr<ConsumerStatus> GetConsumerStatus(absl::string_view partition, absl::string_view consumer) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(partition));
    return found->GetConsumerStatus(consumer);
  }
  absl::StatusOr<std::string> Explain(absl::string_view partition, absl::string_view consumer) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(partition));
    return found->Explain(consumer);
  }

 private:
  absl::StatusOr<std::shared_ptr<Partition>> Find(absl::string_view name) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    const auto it = partitions_.find(name);
    if (it == partitions_.end()) return NoPartition(name);
    return it->second;
  }

  std::vector<std::string> Names() const TDOCK_REQUIRES(mu_) {
    std::vector<std::string> names;
    for (const auto& [name, partition] : partitions_) names.push_back(name);
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::Status NoPartition(absl::string_view name) const TDOCK_REQUIRES(mu_) {
    const std::vector<std::string> names = Names();
    return absl::NotFoundError(absl::StrCat("there is no partition '", EscapeForMessage(name), "'; there are ",
                                            names.empty() ? "none" : absl::StrJoin(names, ", ")));
  }

  Clock& clock_;
  const std::shared_ptr<const Table::OwnSamplers> samplers_;
  const std::shared_ptr<Memory> memory_ = std::make_shared<WarmMemory>();
  Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<Partition>> partitions_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<Dock> MakeLocalDock(const LocalDockOptions& options) { return std::make_unique<LocalDock>(options); }

}  // namespace tdock
