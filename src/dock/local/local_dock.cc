#include "tdock/local_dock.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/no_memory.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "dock/local/partition.h"
#include "dock/local/partition_image.h"
#include "dock/local/served_dock.h"
#include "dock/store/cell_memory.h"
#include "dock/store/warm_memory.h"
#include "dock/table/limits.h"
#include "dock/table/name.h"

namespace tdock::dock {
namespace {

absl::Status CheckOptions(const PartitionOptions& options) {
  TDOCK_RETURN_IF_ERROR(CheckName("partition", options.name));
  if (options.group_size < 1 || options.group_size > kMaxGroupSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("group_size is ", options.group_size, "; it must be at least 1, and at most ", kMaxGroupSize));
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
    return absl::InvalidArgumentError("a partition without `growing` needs columns");
  }
  if (options.columns.size() > kMaxColumns) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.columns.size(), " columns; a partition has at most ", kMaxColumns));
  }
  absl::flat_hash_set<absl::string_view> names;
  for (const ColumnSpec& spec : options.columns) {
    TDOCK_RETURN_IF_ERROR(CheckName("column", spec.name));
    const std::string what = absl::StrCat("column '", spec.name, "'");
    TDOCK_RETURN_IF_ERROR(Annotate(Column::Empty(spec.type).status(), what));
    if (!names.insert(spec.name).second) return absl::InvalidArgumentError(absl::StrCat(what, " is there twice"));
  }
  if (options.retain_for.size() > kMaxConsumers) {
    return absl::InvalidArgumentError(absl::StrCat("retain_for names ", options.retain_for.size(),
                                                   " consumers; a partition has at most ", kMaxConsumers));
  }
  names.clear();
  for (const std::string& name : options.retain_for) {
    TDOCK_RETURN_IF_ERROR(CheckName("retain_for", name));
    if (names.insert(name).second) continue;
    return absl::InvalidArgumentError(absl::StrCat("retain_for names consumer '", name, "' twice"));
  }
  return absl::OkStatus();
}

std::shared_ptr<const CustomSamplers> WithoutNulls(CustomSamplers samplers) {
  std::erase_if(samplers, [](const auto& named) { return named.second == nullptr; });
  return std::make_shared<const CustomSamplers>(std::move(samplers));
}

class LocalDock final : public ServedDock {
 public:
  explicit LocalDock(const ServedDockOptions& options)
      : memory_for_(options.memory_for),
        share_{.clock = options.local.clock == nullptr ? Clock::Real() : *options.local.clock,
               .work = options.work,
               .copies = memory_,
               .samplers = WithoutNulls(options.local.samplers),
               .notifier = notifier_,
               .calls = calls_},
        last_lease_(options.last_lease) {}

  ~LocalDock() override {
    for (const auto& partition : Partitions()) partition->Close();
    calls_.AwaitNone();
    notifier_->Close();
    std::thread admission_thread;
    {
      MutexLock lock(mu_);
      admission_thread.swap(admission_thread_);
    }
    if (admission_thread.joinable()) admission_thread.join();
  }

  void Start(const AnyCall& call) override {
    VisitVerb(call.verb(), [&]<class V>() { Serve<V>(call); });
  }

  absl::Status ExpireLeases(absl::string_view partition, std::span<const LeaseId> leases) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(partition));
    return found->ExpireLeases(leases);
  }
  absl::StatusOr<std::vector<LeaseId>> LiveLeases(absl::string_view partition,
                                                  std::span<const LeaseId> leases) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(partition));
    return found->LiveLeases(leases);
  }
  Load LoadOf(absl::string_view partition, LeaseId lease) override {
    const std::shared_ptr<Partition> found = Look(partition);
    return found == nullptr ? Load() : found->LoadOf(lease);
  }
  int64_t CountPartitions() override TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return static_cast<int64_t>(partitions_.size());
  }
  std::shared_ptr<void> BeginLong(absl::string_view partition) override {
    std::shared_ptr<Partition> found = Look(partition);
    return found == nullptr ? nullptr : Partition::BeginLong(std::move(found));
  }
  absl::StatusOr<std::shared_ptr<Memory>> MemoryOf(absl::string_view partition) override {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(partition));
    return found->memory();
  }

 private:
  template <class V>
  void Serve(const AnyCall& call) {
    const typename V::Request& request = call.template request<V>();
    if constexpr (requires { On(V(), request); }) {
      call.template Reply<V>(On(V(), request));
    } else {
      absl::StatusOr<std::shared_ptr<Partition>> found = Find(request.partition);
      if (!found.ok()) return call.template Reply<V>(std::move(found).status());
      (*found)->template Start<V>(call);
    }
  }

  // The verbs of the dock itself.
  absl::Status On(verbs::CreatePartition, const PartitionOptions& options) TDOCK_EXCLUDES(mu_) {
    TDOCK_RETURN_IF_ERROR(CheckOptions(options));
    std::shared_ptr<Partition> existing;
    const std::shared_ptr<CellMemory> memory = Look(options.name) == nullptr ? MemoryFor(options.name) : memory_;
    {
      MutexLock lock(mu_);
      TDOCK_RETURN_IF_ERROR(CheckRoomFor(options.name));
      auto& entry = partitions_[options.name];
      if (entry == nullptr) {
        entry = std::make_shared<Partition>(options, share_, memory, last_lease_);
        if (options.max_bytes > 0) StartAdmission();
        return absl::OkStatus();
      }
      existing = entry;
    }
    return existing->Matches(options);
  }

  absl::Status On(verbs::DropPartition, const PartitionRequest& request) TDOCK_EXCLUDES(mu_) {
    const std::string& partition = request.partition;
    std::shared_ptr<Partition> dropped;
    {
      MutexLock lock(mu_);
      const auto it = partitions_.find(partition);
      if (it == partitions_.end()) return NoPartition(partition);
      dropped = it->second;
    }
    const LeaseId last = dropped->Close();
    MutexLock lock(mu_);
    const auto it = partitions_.find(partition);
    if (it == partitions_.end() || it->second != dropped) return NoPartition(partition);
    partitions_.erase(it);
    // A client that still knows a lease of it must not refer to one of the next partition of this name.
    last_lease_ = std::max(last_lease_, last);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> On(verbs::ListPartitions, Nothing) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    std::vector<std::string> names;
    names.reserve(partitions_.size());
    for (const auto& [name, partition] : partitions_) names.push_back(name);
    return names;
  }

  absl::StatusOr<ExportedPartition> On(verbs::ExportPartition, const PartitionRequest& request) {
    TDOCK_ASSIGN_OR_RETURN(const auto found, Find(request.partition));
    TDOCK_ASSIGN_OR_RETURN(std::string image, found->Export());
    return ExportedPartition{std::move(image)};
  }

  absl::Status On(verbs::ImportPartition, const ImportRequest& request) {
    const std::span<const NamedColumn> columns = request.image.columns();
    if (columns.size() != 1 || request.image.rows() != 1 || columns[0].column.type().kind != ColumnKind::kBytes) {
      return absl::InvalidArgumentError("an import takes the image as one column of bytes with one row");
    }
    const std::span<const std::byte> bytes = columns[0].column.RowBytes(0);
    const absl::string_view image(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return OrNoMemory("the partition of this image", [&] { return Import(image); });
  }
  absl::Status Import(absl::string_view bytes) TDOCK_EXCLUDES(mu_) {
    TDOCK_ASSIGN_OR_RETURN(PartitionImage image, DecodePartitionImage(bytes));
    const PartitionOptions options = image.options;
    TDOCK_RETURN_IF_ERROR(CheckOptions(options));
    {
      MutexLock lock(mu_);
      TDOCK_RETURN_IF_ERROR(CheckNew(options.name));
    }
    const auto partition = std::make_shared<Partition>(options, share_, MemoryFor(options.name));
    if (absl::Status status = partition->Restore(std::move(image)); !status.ok()) {
      return Annotate(status, absl::StrCat("the image of partition '", options.name, "'"));
    }
    MutexLock lock(mu_);
    TDOCK_RETURN_IF_ERROR(CheckNew(options.name));
    // Nobody else knows it yet, so nobody holds its lock.
    partition->SkipLeases(last_lease_);
    partitions_.emplace(options.name, partition);
    if (options.max_bytes > 0) StartAdmission();
    return absl::OkStatus();
  }

  std::shared_ptr<CellMemory> MemoryFor(const std::string& name) const {
    std::shared_ptr<CellMemory> memory = memory_for_ == nullptr ? nullptr : memory_for_(name);
    return memory == nullptr ? memory_ : memory;
  }
  absl::Status CheckRoomFor(const std::string& name) const TDOCK_REQUIRES(mu_) {
    if (partitions_.size() < kMaxPartitions || partitions_.contains(name)) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", kMaxPartitions, " partitions, the limit: drop one before '", name, "' is created"));
  }
  absl::Status CheckNew(const std::string& name) const TDOCK_REQUIRES(mu_) {
    if (!partitions_.contains(name)) return CheckRoomFor(name);
    return absl::AlreadyExistsError(
        absl::StrCat("partition '", name, "' exists: an image is imported where there is none of its name"));
  }
  void StartAdmission() TDOCK_REQUIRES(mu_) {
    if (!admission_thread_.joinable()) admission_thread_ = std::thread([this] { AdmitPuts(); });
  }

  // Null if it does not exist.
  std::shared_ptr<Partition> Look(absl::string_view name) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    const auto it = partitions_.find(name);
    return it == partitions_.end() ? nullptr : it->second;
  }
  absl::StatusOr<std::shared_ptr<Partition>> Find(absl::string_view name) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    const auto it = partitions_.find(name);
    if (it == partitions_.end()) return NoPartition(name);
    return it->second;
  }

  std::vector<std::shared_ptr<Partition>> Partitions() TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    std::vector<std::shared_ptr<Partition>> partitions;
    for (const auto& [name, partition] : partitions_) partitions.push_back(partition);
    return partitions;
  }

  // A thread that releases a view may hold locks that waiting puts need, so a separate thread admits them.
  void AdmitPuts() TDOCK_EXCLUDES(mu_) {
    while (notifier_->Await()) {
      for (const auto& partition : Partitions()) partition->BytesWereFreed();
    }
  }

  absl::Status NoPartition(absl::string_view name) const TDOCK_REQUIRES(mu_) {
    constexpr size_t kMostNamed = 20;
    std::string names;
    size_t named = 0;
    for (auto it = partitions_.begin(); it != partitions_.end() && named < kMostNamed; ++it, ++named) {
      absl::StrAppend(&names, named == 0 ? "" : ", ", it->first);
    }
    if (partitions_.size() > named) absl::StrAppend(&names, " and ", partitions_.size() - named, " more");
    return absl::NotFoundError(absl::StrCat("there is no partition '", EscapeForMessage(name), "'; there are ",
                                            names.empty() ? "none" : names));
  }

  const std::function<std::shared_ptr<CellMemory>(absl::string_view)> memory_for_;
  const std::shared_ptr<CellMemory> memory_ = std::make_shared<WarmMemory>();
  const std::shared_ptr<Notifier> notifier_ = std::make_shared<Notifier>();
  WaitingCalls calls_;
  const PartitionsShare share_;
  Mutex mu_;
  // By name, in their order.
  absl::btree_map<std::string, std::shared_ptr<Partition>> partitions_ TDOCK_GUARDED_BY(mu_);
  // Each partition numbers its leases from the next number on.
  LeaseId last_lease_ TDOCK_GUARDED_BY(mu_);
  std::thread admission_thread_ TDOCK_GUARDED_BY(mu_);  // runs once there is a partition with max_bytes
};

}  // namespace

std::unique_ptr<ServedDock> MakeServedDock(const ServedDockOptions& options) {
  return std::make_unique<LocalDock>(options);
}

}  // namespace tdock::dock

namespace tdock {

std::unique_ptr<Dock> MakeLocalDock(const LocalDockOptions& options) {
  return std::make_unique<dock::LocalDock>(dock::ServedDockOptions{.local = options});
}

}  // namespace tdock
