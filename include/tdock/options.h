// The options of partitions and consumers.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tdock/fields.h"
#include "tdock/rows.h"

namespace tdock {

struct PartitionOptions {
  // Names, here and elsewhere, are 1 to 255 bytes of UTF-8 without control characters and invisible ones, such as those
  // that turn text around or have no width.
  std::string name = {};
  std::vector<ColumnSpec> columns = {};
  // Puts may add columns to those above; otherwise a column that is not listed is an error.
  bool growing = false;
  // The number of rows in a group, unless the put that starts it says otherwise.
  int64_t group_size = 1;
  // The consumers that rows are retained for, registered yet or not: a row is released when all of them are done with
  // it. None: rows stay until they are cleared.
  std::vector<std::string> retain_for = {};
  // The partition's budget; 0: no limit. Puts of new rows wait until they fit, in order of arrival, and for whole
  // groups at once; fills of existing rows never wait. Counted are also the missing rows of groups that were begun, and
  // bytes that only views hold. Every row counts for at least row_bytes (0: for the average of all rows), however few
  // bytes it has so far.
  int64_t max_rows = 0;
  int64_t max_bytes = 0;
  int64_t row_bytes = 0;
  // Refuse puts with a NaN in a floating-point column.
  bool refuse_nan = false;

  friend bool operator==(const PartitionOptions&, const PartitionOptions&) = default;

  TDOCK_FIELDS(PartitionOptions, name, columns, growing, group_size, retain_for, max_rows, max_bytes, row_bytes,
               refuse_nan)
};

enum class Unit : uint8_t {
  kRow = 0,
  kGroup = 1,  // takes whole groups: all rows exist, all are ready, none is leased or done
};

enum class Sampler : uint8_t {
  kFirstCome = 0,  // those of the highest age first (see Rows::age), of the same age in the order of the row ids; a row
                   // is as old as the oldest of its group, and a group stands where its first row does
  kUniform = 1,    // uniform without replacement: depends on the seed, the takes before, and what is ready, not on when
                   // it became ready
  kLengthBalanced = 2,  // splits the oldest 8 · max that are ready into sets of equal size and nearly equal length, and
                        // hands out the one that has the oldest
  kCustom = 3,  // by a CustomSampler that the dock was given (sampler.h)
};

// What happens to rows that are too old for a consumer.
enum class Stale : uint8_t {
  kSendBack =
      0,      // what the writer of the old cells writes is cleared, and all that was derived from it; it is made anew
  kDrop = 1,  // they are done for all consumers
};

// The names of an enumeration's values, from 0 on.
constexpr std::array<absl::string_view, 2> NamesOf(Unit) { return {"row", "group"}; }
constexpr std::array<absl::string_view, 4> NamesOf(Sampler) {
  return {"first_come", "uniform", "length_balanced", "custom"};
}
constexpr std::array<absl::string_view, 2> NamesOf(Stale) { return {"send_back", "drop"}; }

struct ConsumerOptions {
  std::string name = {};
  // At most 250 columns. In a growing partition, they may be added later.
  std::vector<std::string> reads = {};
  // Columns that it also gets if they are ready (see Rows::Has), but does not wait for.
  std::vector<std::string> reads_optional = {};
  // Columns that it may put under its leases. Explain names it as their writer.
  std::vector<std::string> writes = {};
  Unit unit = Unit::kRow;
  Sampler sampler = Sampler::kFirstCome;
  uint64_t seed = 0;
  // The column of `reads` whose lengths the sampler uses; required for kLengthBalanced.
  std::string length_column = {};
  // The name of the sampler, for kCustom.
  std::string custom_sampler = {};
  // Deals rows and groups out to this many ranks in turn: a row by its id, a group by the order in which groups began.
  // A take names its rank; several loaders of one rank share the rank's rows.
  int32_t ranks = 1;
  // How long it may hold what it takes. May be infinite.
  absl::Duration lease_duration = absl::Minutes(10);
  // A row whose lease has expired this many times is quarantined: it is not handed out again until it is requeued.
  int32_t max_deliveries = 5;
  // By how many versions of the weights what it reads may be older than the published version. A row's version is the
  // smallest among the cells that it would get; cells without a version do not count. Checked by Take: rows that are
  // too old are not handed out, but sent back or dropped; for a consumer of groups, whole groups are.
  int64_t max_version_lag = INT64_MAX;
  Stale stale = Stale::kSendBack;
  // Rows are done as soon as they are handed out, without a lease: if the consumer loses a row, the row is not
  // delivered again.
  bool at_most_once = false;
  // What it completes, under the number of a step, becomes final only when that step is committed; until then it can be
  // rolled back. Rows retained for the consumer stay until the commit.
  bool checkpointed = false;

  friend bool operator==(const ConsumerOptions&, const ConsumerOptions&) = default;

  TDOCK_FIELDS(ConsumerOptions, name, reads, reads_optional, writes, unit, sampler, seed, length_column, custom_sampler,
               ranks, lease_duration, max_deliveries, max_version_lag, stale, at_most_once, checkpointed)
};

}  // namespace tdock
