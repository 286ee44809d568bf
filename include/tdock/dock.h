// The dock: a table of samples that stages of post-training fill column by column and take rows from.
//
// A partition is a table. Its rows are samples, its columns are fields. A consumer is a stage: it says which columns it
// reads and writes, and the dock hands it each row once, when all that it reads is there. For each consumer,
//
//             every column it reads is there        Take                 Put with the lease, Complete
//   waiting ────────────────────────────────► ready ────────► leased ──────────────────────────────────► done
//                                               ▲                │
//                                               └────────────────┘ Release, or the lease expires
//
// Errors, for every call:
//   InvalidArgument     the request is wrong in itself, or does not fit the schema; the message says what would be
//   right NotFound            no such partition, column, consumer, row or lease; rows go when they are cleared or
//   released AlreadyExists       a cell that is ready, a partition or a consumer that exists otherwise
//   FailedPrecondition  the state does not allow it: a sealed partition, a lease that is over, an incomplete group
//   DeadlineExceeded    what was waited for did not come; the message names what is missing and who holds it. Retry.
//   OutOfRange          nothing can come any more: the partition is sealed and every row is done for this consumer
// A call that fails changes nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tdock/batch.h"
#include "tdock/rows.h"

namespace tdock {

// Names the rows of one Take. Ascending within a partition, never reused.
using LeaseId = uint64_t;
inline constexpr LeaseId kNoLease = 0;

struct PartitionOptions {
  // Names, here and elsewhere, are 1 to 255 bytes of UTF-8 without control characters.
  std::string name = {};
  std::vector<ColumnSpec> columns = {};
  // Lets puts add columns to those above; otherwise a column that is not listed is an error.
  bool growing = false;
  // The number of rows in a group, where the put that starts it does not say.
  int64_t group_size = 1;
  // The consumers that a row must outlive, registered yet or not: it is released when all of them are done with it.
  // None: rows stay until they are cleared.
  std::vector<std::string> retain_for = {};

  friend bool operator==(const PartitionOptions&, const PartitionOptions&) = default;
};

enum class Unit : uint8_t {
  kRow = 0,
  kGroup = 1,  // takes whole groups: all rows exist, all are ready, none is leased or done
};

enum class Sampler : uint8_t {
  kFirstCome = 0,  // in the order of the row ids; a group stands where its first row does
  kUniform = 1,    // uniform without replacement: depends on the seed, the takes before, and what is ready, not on when
                   // it became ready
};

struct ConsumerOptions {
  std::string name = {};
  // At most 250 columns. Those of a growing partition may come later.
  std::vector<std::string> reads = {};
  // Columns that it may put under its leases. Explain names it as the one to write them.
  std::vector<std::string> writes = {};
  Unit unit = Unit::kRow;
  Sampler sampler = Sampler::kFirstCome;
  uint64_t seed = 0;
  // How long it may hold what it takes. May be infinite.
  absl::Duration lease_duration = absl::Minutes(10);

  friend bool operator==(const ConsumerOptions&, const ConsumerOptions&) = default;
};

struct PutRequest {
  std::string partition = {};
  // At least one column, and one row.
  Batch batch = {};
  // The rows that the batch fills, one each and no two equal. Empty: new rows.
  std::vector<RowId> rows = {};
  // With a lease, `rows` must be held by it, the columns be among those that its consumer writes, and the rows are done
  // for that consumer afterwards; the lease's other rows stay leased.
  LeaseId lease = kNoLease;
  // Stores under the lease without completing.
  bool keep = false;
  // The group of each new row. Empty: rows without a group, which only a partition with group_size 1 takes.
  std::vector<GroupId> groups = {};
  // The size of the groups that this put starts; 0: the partition's.
  int64_t group_size = 0;
  // Replaces cells that are ready. Views of the old ones live on, and what is done stays done.
  bool overwrite = false;
  // The version of the weights that made these cells.
  int64_t weights_version = kNoWeightsVersion;
};

struct PutResult {
  // One for each row of the batch: the new ids, or those of the request.
  std::vector<RowId> rows = {};
};

struct TakeRequest {
  std::string partition = {};
  std::string consumer = {};
  // Rows, or groups for a consumer of groups. 1 ≤ min ≤ max.
  int64_t min = 1;
  int64_t max = 1;
  // In the past: answer at once.
  absl::Time deadline = absl::InfinitePast();
};

struct Taken {
  LeaseId lease = kNoLease;
  // When the lease ends. What is published after that is refused.
  absl::Time expires = {};
  Rows rows = {};
};

struct FetchRequest {
  std::string partition = {};
  std::vector<RowId> rows = {};
  std::vector<std::string> columns = {};
  absl::Time deadline = absl::InfinitePast();
};

struct LeaseRequest {
  std::string partition = {};
  LeaseId lease = kNoLease;
  // Empty: all that the lease still holds.
  std::vector<RowId> rows = {};
};

// What to clear: the rows, or the groups, or everything. Naming more or less than one of them is InvalidArgument.
struct ClearRequest {
  std::string partition = {};
  std::vector<RowId> rows = {};
  std::vector<GroupId> groups = {};
  // Also unseals.
  bool everything = false;
};

struct ConsumerStatus {
  // Rows that are there now, by their state for this consumer.
  int64_t waiting = 0;
  int64_t ready = 0;
  int64_t leased = 0;
  int64_t done = 0;
  // Rows, or groups for a consumer of groups, that a Take could have now.
  int64_t takeable = 0;
  // Since it was registered: rows that became done, and rows whose lease expired.
  int64_t completed = 0;
  int64_t expired = 0;
};

struct ColumnStatus {
  std::string name = {};
  // Unset for a column that a consumer reads and nobody has put.
  bool typed = false;
  ColumnType type = {};
  int64_t ready_cells = 0;
};

struct NamedConsumerStatus {
  std::string name = {};
  ConsumerStatus status = {};
};

struct PartitionStatus {
  bool sealed = false;
  int64_t rows = 0;
  int64_t groups = 0;
  // Groups of which not all rows are there.
  int64_t incomplete_groups = 0;
  // Bytes that the partition's cells occupy, those of views that outlive their cells included.
  int64_t held_bytes = 0;
  // In the order in which they were named first.
  std::vector<ColumnStatus> columns = {};
  std::vector<NamedConsumerStatus> consumers = {};
};

// Thread-safe. Only Take and Fetch wait, and only until their deadline; a call never waits for another's copying of
// data.
class Dock {
 public:
  virtual ~Dock() = default;

  // A partition that exists with equal options is left as it is; with others it is AlreadyExists, naming the
  // difference.
  virtual absl::Status CreatePartition(const PartitionOptions& options) = 0;
  // Removes a partition and all that belongs to it. Calls that wait on it fail with NotFound; views live on.
  virtual absl::Status DropPartition(absl::string_view partition) = 0;
  // Sorted.
  virtual absl::StatusOr<std::vector<std::string>> ListPartitions() = 0;

  // Registering again is as for partitions. A consumer registered late sees the rows that are there.
  virtual absl::Status RegisterConsumer(absl::string_view partition, const ConsumerOptions& options) = 0;

  // All or nothing. Copies the data. Without a lease anybody may fill empty cells, sealed or not; a sealed partition
  // takes no new rows.
  virtual absl::StatusOr<PutResult> Put(const PutRequest& request) = 0;

  // Returns once `min` can be had, with as many as can be had up to `max`. In a sealed partition `min` sinks to what
  // can still come. Costs the same whatever the size of the table.
  virtual absl::StatusOr<Taken> Take(const TakeRequest& request) = 0;

  // Waits until the cells are ready and returns them, in the order of the request.
  virtual absl::StatusOr<Rows> Fetch(const FetchRequest& request) = 0;

  // Makes rows of a lease done, without a put, or gives them back: they are ready again, in their old place.
  virtual absl::Status Complete(const LeaseRequest& request) = 0;
  virtual absl::Status Release(const LeaseRequest& request) = 0;

  // No new rows from now on; cells of those that are there may still be put. FailedPrecondition if a group is
  // incomplete.
  virtual absl::Status Seal(absl::string_view partition) = 0;

  // Removes rows, whatever their state, and returns how many. Leases lose them, views live on.
  virtual absl::StatusOr<int64_t> Clear(const ClearRequest& request) = 0;

  // Counters; they cost the same whatever the size of the table.
  virtual absl::StatusOr<PartitionStatus> GetStatus(absl::string_view partition) = 0;
  virtual absl::StatusOr<ConsumerStatus> GetConsumerStatus(absl::string_view partition, absl::string_view consumer) = 0;

  // What keeps this consumer from having more: which columns of which rows are missing, who writes them, who holds them
  // and since when; for people to read.
  virtual absl::StatusOr<std::string> Explain(absl::string_view partition, absl::string_view consumer) = 0;
};

}  // namespace tdock
