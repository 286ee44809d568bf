// The programming model of MindSpeed-RL's Transfer Dock over any tdock::Dock: rows by their number, fixed tables of
// columns and consumers, the original's samplers. docs/mindspeed.md maps each call of the original to ours.
//
//   index       0     1     2     3     4     5        prompts_num · n indexes, for as long as the dock lives
//   group       └──0──┘     └──1──┘     └──2──┘        the n samples of a prompt are neighbours
//   core row    17    18    2     3     19    20       changes when an index is cleared: that is its generation
//
// Errors, for every call:
//
//   InvalidArgument     an index, a count or a batch that is wrong; the message says what would be right
//   NotFound            no such consumer or column; a row that was cleared since the get that returned it
//   FailedPrecondition  the lease of the indexes is over; rows that cannot be taken; lengths for choosing rows that are
//                       missing, negative or above 2^32
//   AlreadyExists       an unfinished response for an index whose response is complete
//   DeadlineExceeded    what was waited for did not come; the message names the missing cells and their writers
//
// and those of the underlying dock.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tdock/batch.h"
#include "tdock/clock.h"
#include "tdock/dock.h"
#include "tdock/padding.h"

namespace tdock {

// ---- Options.

enum class HandOut : uint8_t {
  kLeased = 0,  // rows become takeable again when the lease ends, unless they were put or completed before
  kDone = 1,    // rows are done as soon as they are handed out
};

struct MindSpeedConsumer {
  std::string name = {};
  // A put of one of these columns by plain indexes completes the rows that the consumer holds. A put under its lease
  // may name these, and those that no consumer writes.
  std::vector<std::string> writes = {};
  // Unset: leased if it writes anything.
  std::optional<HandOut> hand_out = {};
};

struct MindSpeedOptions {
  // The partition that it creates, and removes when it is destroyed.
  std::string partition = {};
  int64_t prompts_num = 0;
  int64_t n_samples_per_prompt = 1;
  std::vector<std::string> columns = {};
  std::vector<MindSpeedConsumer> consumers = {};
  // Additions to the above; names that are there already are ignored.
  std::vector<std::string> addition_columns = {};
  std::vector<MindSpeedConsumer> addition_consumers = {};
  // Above 1, responses may be put unfinished and are resumed; then gbs_train must be 1 to prompts_num.
  int64_t max_age = 1;
  // The prompts of a training batch.
  int64_t gbs_train = 0;
  // How long a read waits for cells.
  absl::Duration timeout = absl::Seconds(300);
  // How long a consumer may hold rows; must exceed `timeout`.
  absl::Duration lease_duration = absl::Hours(1);
  // Random choices depend on this and on the earlier calls.
  uint64_t seed = 0;
  // The clock of the underlying dock; null: Clock::Real(). Must outlive this dock.
  Clock* clock = nullptr;
};

// The columns and consumers of the original's docks.
MindSpeedOptions GrpoDock(int64_t prompts_num, int64_t n_samples_per_prompt);
MindSpeedOptions PpoDock(int64_t prompts_num, int64_t n_samples_per_prompt);
MindSpeedOptions DapoDock(int64_t prompts_num, int64_t n_samples_per_prompt);
// Columns and no consumers: put, and get by index.
MindSpeedOptions TransferDock(int64_t prompts_num, int64_t n_samples_per_prompt, std::vector<std::string> columns);

// ---- Requests and results.

// Row numbers. Made from plain numbers, it means the rows at these indexes at the time of the call. What a get returns
// refers to the rows themselves: a put with it fails with NotFound once they were cleared, and with FailedPrecondition
// once their lease is over. A get by indexes has no lease if some of them were handed out before. A value type.
struct ExperienceIndexes {
  ExperienceIndexes() = default;
  ExperienceIndexes(std::vector<int64_t> plain) : indexes(std::move(plain)) {}                      // NOLINT: implicit
  ExperienceIndexes(std::initializer_list<int64_t> plain) : indexes(plain.begin(), plain.end()) {}  // NOLINT: implicit

  // `count` of them, from position `begin` on, without padding: to put a batch part by part. Positions must exist.
  ExperienceIndexes Slice(size_t begin, size_t count) const;

  std::vector<int64_t> indexes = {};
  // The row of each index; empty for plain numbers.
  std::vector<RowId> rows = {};
  // The lease of all the rows, if they were sampled.
  LeaseId lease = kNoLease;
  // The number of padding rows at the end of the batch, which repeat the last row. A put ignores them.
  int64_t padding_rows = 0;
};

struct Experience {
  // One row for each index, in the order of the indexes, then the padding. Ragged rows have their own lengths.
  Batch batch = {};
  ExperienceIndexes indexes = {};
};

struct GetOptions {
  // How many rows to sample; required without `indexes`.
  std::optional<int64_t> experience_count = {};
  // A short batch of unfinished responses is padded to a multiple of it.
  int64_t dp_size = 1;
  // Exactly these, even if they were handed out before; otherwise rows are sampled.
  std::optional<ExperienceIndexes> indexes = {};
  // Whether to sample whole groups.
  bool get_n_samples = true;
  bool use_batch_seqlen_balance = false;
  // Unless another rule applies, prefers rows whose prompt_length + response_length is near it: a row is drawn with the
  // weight 1 / (1 + exp(−1 / (|length − target| + 0.001))), a group with that of its total length. Must be finite.
  std::optional<double> target_seq_len = {};
  // Until when to wait for enough rows; in the past: returns "nothing yet" at once. A call that waits also returns that
  // when every row is done.
  absl::Time deadline = absl::InfinitePast();
};

struct PutOptions {
  // Stores without completing: more columns will follow for these rows.
  bool keep = false;
};

struct PromptsOptions {
  // Columns of the batch to put beside `prompts`, if it has them.
  std::vector<std::string> dataset_additional_keys = {};
  // Default: from 0 on.
  std::optional<std::vector<int64_t>> indexes = {};
  // Puts the prompts after a first batch of the same size; not with `indexes`.
  bool add_another_batch = false;
};

// The cells of a column that are ready.
struct ReadyCells {
  std::vector<int64_t> indexes = {};  // ascending
  Column column;                      // one row for each
};

// ---- The dock.

// Thread-safe. A sampling call excludes only other sampling for the same consumer; apart from that, a call waits only
// for its own data, until its deadline.
class MindSpeedDock {
 public:
  virtual ~MindSpeedDock() = default;

  // Stores the rows of the batch at the indexes; if an index is named twice, the last row. Replaces what was there.
  // Under a lease it completes the rows for their consumer; without one, for the consumers that hold them and write one
  // of the columns.
  //
  // With max_age > 1, `responses` come with `rollout_completed` (one integer per row): rows with 0 are unfinished, and
  // are handed to actor_rollout again. No other consumer sees their responses.
  virtual absl::Status PutExperience(const Batch& batch, const ExperienceIndexes& indexes,
                                     const PutOptions& options = {}) = 0;
  // The same, for columns that PadColumns made; `PadColumns(experience.batch)` pads what a get returns.
  absl::Status PutExperience(const PaddedColumns& padded, const ExperienceIndexes& indexes,
                             const PutOptions& options = {});

  // Puts each row of `prompts` n times with its prompt_length, as RepeatPrompts makes them. Returns the indexes.
  virtual absl::StatusOr<ExperienceIndexes> PutPromptsExperience(const Batch& batch,
                                                                 const PromptsOptions& options = {}) = 0;

  // Unset: nothing yet. For actor_rollout with max_age > 1, get_n_samples must be off; it may get fewer rows than it
  // asked for, with a column `age` (int32); `responses` and `response_length` are what an earlier round left, or empty
  // and 0.
  virtual absl::StatusOr<std::optional<Experience>> GetExperience(absl::string_view consumer,
                                                                  const std::vector<std::string>& columns,
                                                                  const GetOptions& options = {}) = 0;

  // Reads without consuming, in the order of the indexes; waits as long as `timeout`.
  virtual absl::StatusOr<Batch> Get(const std::vector<std::string>& columns, const ExperienceIndexes& indexes) = 0;

  // For leased consumers that put nothing: makes rows that the consumer holds done, or lets them be sampled again.
  virtual absl::Status Complete(absl::string_view consumer, const ExperienceIndexes& indexes) = 0;
  virtual absl::Status Release(absl::string_view consumer, const ExperienceIndexes& indexes) = 0;

  // Whether every row is handed out: leased or done. With max_age > 1, whether a training batch is: for actor_rollout,
  // whether gbs_train groups are complete; the other consumers then see the complete groups.
  virtual absl::StatusOr<bool> AllConsumed(absl::string_view consumer) = 0;

  // Clears the dock, its metrics and the cursor of PrefetchRequestIndex. With max_age > 1, clears only the rows that
  // `consumer` has consumed: the others keep their cells and, if input_ids is ready, their age grows by one; then all
  // rows of a group get the largest age in it, and the groups are sorted by it, cleared ones last.
  virtual absl::Status Clear(absl::string_view consumer = "actor_train") = 0;
  // Clears these indexes, or all.
  virtual absl::Status ClearIndexes(const std::optional<std::vector<int64_t>>& indexes = {}) = 0;

  // The next `count` row numbers, fewer at the end; unset after the end.
  virtual absl::StatusOr<std::optional<std::vector<int64_t>>> PrefetchRequestIndex(int64_t count) = 0;

  // The number of prompts whose response is missing or incomplete.
  virtual absl::StatusOr<int64_t> GetIncompleteResponseNum() = 0;

  virtual absl::StatusOr<std::map<std::string, ReadyCells>> GetExperienceData() = 0;
  // By column and index: whether the cell is ready.
  virtual absl::StatusOr<std::map<std::string, std::vector<bool>>> GetExperienceStatus() = 0;
  // By consumer and index: whether it is handed out.
  virtual absl::StatusOr<std::map<std::string, std::vector<bool>>> GetConsumerStatus() = 0;
  // By index: how many clears the row has survived; all rows of a group have the age of its oldest row.
  virtual std::vector<int32_t> GetAges() = 0;
  // prompts_num · n.
  virtual int64_t GetExperienceLen() const = 0;

  // The values of each metric: the last one, or all if they were cumulated.
  virtual std::map<std::string, std::vector<double>> GetMetrics() = 0;
  virtual void UpdateMetrics(absl::string_view key, double value, bool cumulate = false) = 0;
};

// Creates the partition, with all its rows. AlreadyExists if there is one of this name; InvalidArgument for invalid
// options.
absl::StatusOr<std::unique_ptr<MindSpeedDock>> MakeMindSpeedDock(std::shared_ptr<Dock> dock,
                                                                 const MindSpeedOptions& options);

// Images and videos, once for each prompt. Thread-safe.
class MultimodalDock {
 public:
  // As for MakeMindSpeedDock. With `reuse_image_embeds`, consumers read vit_embeds in place of pixels.
  static absl::StatusOr<std::unique_ptr<MultimodalDock>> Make(std::shared_ptr<Dock> dock, const std::string& partition,
                                                              int64_t prompts_num, int64_t n_samples_per_prompt,
                                                              bool reuse_image_embeds = false,
                                                              absl::Duration timeout = absl::Seconds(300));

  // One row for each prompt number.
  absl::Status PutExperience(const Batch& batch, const std::vector<int64_t>& prompts);
  // The prompts of these sample indexes; with `get_n_samples`, of every n-th of them. The rows of a ragged column are
  // contiguous (Column::Values); image_num, video_num and video_fps have the row shape [1].
  absl::StatusOr<Batch> GetExperience(const std::vector<std::string>& columns, const std::vector<int64_t>& indexes,
                                      bool get_n_samples = true);
  // The columns that the consumer reads; none while one of them has no data.
  absl::StatusOr<std::vector<std::string>> GetColumns(absl::string_view consumer);
  absl::Status Clear();

 private:
  MultimodalDock(std::unique_ptr<MindSpeedDock> dock, int64_t n, bool reuse_image_embeds)
      : dock_(std::move(dock)), n_(n), reuse_image_embeds_(reuse_image_embeds) {}

  const std::unique_ptr<MindSpeedDock> dock_;
  const int64_t n_;
  const bool reuse_image_embeds_;
};

}  // namespace tdock
