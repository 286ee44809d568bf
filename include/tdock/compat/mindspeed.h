// The programming model of MindSpeed-RL's Transfer Dock over any tdock::Dock: rows by their number, fixed tables of
// columns and consumers, the original's samplers. docs/mindspeed.md maps each call of the original to ours.
//
//   index       0     1     2     3     4     5        prompts_num · n of them, for as long as the dock lives
//   group       └──0──┘     └──1──┘     └──2──┘        the n samples of a prompt are neighbours
//   core row    17    18    2     3     19    20       changes when an index is cleared: that is its generation
//
// Errors, for every call:
//
//   InvalidArgument     an index, a count or a batch that is wrong; the message says what would be right
//   NotFound            no such consumer or column; an index of a handle that was cleared since
//   FailedPrecondition  the lease of a handle is over; rows that are not there to be taken; lengths to choose rows by
//                       that are missing, negative or above 2^32
//   AlreadyExists       an unfinished response for an index whose response is complete
//   DeadlineExceeded    what was waited for did not come; the message names cells that are missing and who writes them
//
// and what the dock beneath returns.
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

// ---- What a dock is made of.

enum class HandOut : uint8_t {
  kLeased = 0,  // rows come back when the lease ends, unless they were put or completed before
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
  // The partition that it makes, and removes at its end.
  std::string partition = {};
  int64_t prompts_num = 0;
  int64_t n_samples_per_prompt = 1;
  std::vector<std::string> columns = {};
  std::vector<MindSpeedConsumer> consumers = {};
  // More of them; those that are there already are passed over.
  std::vector<std::string> addition_columns = {};
  std::vector<MindSpeedConsumer> addition_consumers = {};
  // Above 1, responses may be put unfinished and are resumed; then gbs_train must be 1 to prompts_num.
  int64_t max_age = 1;
  // The prompts of a training batch.
  int64_t gbs_train = 0;
  // How long a read waits for cells.
  absl::Duration timeout = absl::Seconds(300);
  // How long a consumer may hold rows; above `timeout`.
  absl::Duration lease_duration = absl::Hours(1);
  // What random choices depend on, besides the calls before.
  uint64_t seed = 0;
  // The one by which the dock beneath judges deadlines; null: the real one. Must outlive this dock.
  Clock* clock = nullptr;
};

// The columns and consumers of the original's docks.
MindSpeedOptions GrpoDock(int64_t prompts_num, int64_t n_samples_per_prompt);
MindSpeedOptions PpoDock(int64_t prompts_num, int64_t n_samples_per_prompt);
MindSpeedOptions DapoDock(int64_t prompts_num, int64_t n_samples_per_prompt);
// Columns and no consumers: put, and get by index.
MindSpeedOptions TransferDock(int64_t prompts_num, int64_t n_samples_per_prompt, std::vector<std::string> columns);

// ---- What travels.

// Row numbers. Made from plain numbers, it means what is at these indexes when the call is made. What a get returns
// remembers the rows themselves: a put through it fails with NotFound once they were cleared, and with
// FailedPrecondition once their lease is over. A get by indexes of which some were handed out before has no lease. A
// value.
struct ExperienceIndexes {
  ExperienceIndexes() = default;
  ExperienceIndexes(std::vector<int64_t> plain) : indexes(std::move(plain)) {}                      // NOLINT: implicit
  ExperienceIndexes(std::initializer_list<int64_t> plain) : indexes(plain.begin(), plain.end()) {}  // NOLINT: implicit

  // `count` of them, from position `begin` on, without padding: to put a batch part by part. Positions must be there.
  ExperienceIndexes Slice(size_t begin, size_t count) const;

  std::vector<int64_t> indexes = {};
  // The row of each index; empty for plain numbers.
  std::vector<RowId> rows = {};
  // The lease that all of the rows are under, if they were sampled.
  LeaseId lease = kNoLease;
  // So many rows follow in the batch, repeating the last one. A put passes over them.
  int64_t padding_rows = 0;
};

struct Experience {
  // One row for each index, in their order, then the padding. Ragged rows have their own length.
  Batch batch = {};
  ExperienceIndexes indexes = {};
};

struct GetOptions {
  // How many rows to sample; needed without indexes.
  std::optional<int64_t> experience_count = {};
  // A short batch of unfinished responses is padded to a multiple of it.
  int64_t dp_size = 1;
  // Exactly these, whoever had them; otherwise rows are sampled.
  std::optional<ExperienceIndexes> indexes = {};
  // Whether to sample whole groups.
  bool get_n_samples = true;
  bool use_batch_seqlen_balance = false;
  // Where nothing else decides, prefers rows whose prompt_length + response_length is near it: a row is drawn with the
  // weight 1 / (1 + exp(−1 / (|length − target| + 0.001))), its group with that of the sum over the group. Finite.
  std::optional<double> target_seq_len = {};
  // Until when to wait for enough rows; in the past: the answer is "nothing yet" at once. Who waits gets that answer,
  // too, when every row is done.
  absl::Time deadline = absl::InfinitePast();
};

struct PutOptions {
  // Stores without completing: there is more to come for these rows.
  bool keep = false;
};

struct PromptsOptions {
  // Columns of the batch to put too, beside prompts: those that it has.
  std::vector<std::string> dataset_additional_keys = {};
  // Default: from 0 on.
  std::optional<std::vector<int64_t>> indexes = {};
  // Puts behind a first batch of the same size; then without `indexes`.
  bool add_another_batch = false;
};

// The cells of a column that are ready.
struct ReadyCells {
  std::vector<int64_t> indexes = {};  // ascending
  Column column;                      // one row for each
};

// ---- The dock.

// Thread-safe. Sampling excludes only other sampling of the same consumer; nothing else waits for anything but its own
// data, until its deadline.
class MindSpeedDock {
 public:
  virtual ~MindSpeedDock() = default;

  // Stores the rows of the batch at the indexes; of an index that is named twice, the last. What was there before is
  // replaced. Under a lease it completes the rows for their consumer; without one, for the consumers that hold them and
  // write one of the columns.
  //
  // With max_age > 1, `responses` come with `rollout_completed` (one integer per row): rows with 0 are unfinished, and
  // handed to actor_rollout again. Theirs are seen by nobody else.
  virtual absl::Status PutExperience(const Batch& batch, const ExperienceIndexes& indexes,
                                     const PutOptions& options = {}) = 0;
  // The same of columns as PadColumns makes them; `PadColumns(experience.batch)` pads what a get returns.
  absl::Status PutExperience(const PaddedColumns& padded, const ExperienceIndexes& indexes,
                             const PutOptions& options = {});

  // Each row of `prompts` n times, and its prompt_length, as RepeatPrompts makes them. Returns the indexes.
  virtual absl::StatusOr<ExperienceIndexes> PutPromptsExperience(const Batch& batch,
                                                                 const PromptsOptions& options = {}) = 0;

  // Unset: nothing yet. For actor_rollout with max_age > 1, get_n_samples must be off; it may be handed fewer rows than
  // it asked for, and a column `age` (int32); `responses` and `response_length` are what an earlier round left, or
  // empty and 0.
  virtual absl::StatusOr<std::optional<Experience>> GetExperience(absl::string_view consumer,
                                                                  const std::vector<std::string>& columns,
                                                                  const GetOptions& options = {}) = 0;

  // Reads without consuming, in the order of the indexes; waits as long as `timeout`.
  virtual absl::StatusOr<Batch> Get(const std::vector<std::string>& columns, const ExperienceIndexes& indexes) = 0;

  // For leased consumers that put nothing: rows that it holds are done, or can be sampled again.
  virtual absl::Status Complete(absl::string_view consumer, const ExperienceIndexes& indexes) = 0;
  virtual absl::Status Release(absl::string_view consumer, const ExperienceIndexes& indexes) = 0;

  // Whether everything is handed out: leased or done. With max_age > 1, whether a training batch is: for actor_rollout,
  // that gbs_train groups are complete; the other consumers are then shown the groups that are.
  virtual absl::StatusOr<bool> AllConsumed(absl::string_view consumer) = 0;

  // Empties the dock, its metrics and the cursor of PrefetchRequestIndex. With max_age > 1, only the rows that
  // `consumer` has consumed: others keep what they have and, where input_ids is ready, grow older by one; then groups
  // move to the order of their largest age, emptied ones last.
  virtual absl::Status Clear(absl::string_view consumer = "actor_train") = 0;
  // Empties these indexes, or all.
  virtual absl::Status ClearIndexes(const std::optional<std::vector<int64_t>>& indexes = {}) = 0;

  // The next `count` row numbers, fewer at the end; unset after the end.
  virtual absl::StatusOr<std::optional<std::vector<int64_t>>> PrefetchRequestIndex(int64_t count) = 0;

  // Prompts whose response is not there or not complete.
  virtual absl::StatusOr<int64_t> GetIncompleteResponseNum() = 0;

  virtual absl::StatusOr<std::map<std::string, ReadyCells>> GetExperienceData() = 0;
  // By column and index: whether the cell is ready.
  virtual absl::StatusOr<std::map<std::string, std::vector<bool>>> GetExperienceStatus() = 0;
  // By consumer and index: whether it is handed out.
  virtual absl::StatusOr<std::map<std::string, std::vector<bool>>> GetConsumerStatus() = 0;
  // prompts_num · n.
  virtual int64_t GetExperienceLen() const = 0;

  // The values of each metric: the last one, or all that were cumulated.
  virtual std::map<std::string, std::vector<double>> GetMetrics() = 0;
  virtual void UpdateMetrics(absl::string_view key, double value, bool cumulate = false) = 0;
};

// Makes the partition, with all its rows. AlreadyExists if there is one of this name; InvalidArgument for options.
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
  // The prompts of these sample indexes, of every n-th of them with `get_n_samples`. The rows of a ragged column lie
  // one behind the other (Column::Values); image_num, video_num and video_fps have the row shape [1].
  absl::StatusOr<Batch> GetExperience(const std::vector<std::string>& columns, const std::vector<int64_t>& indexes,
                                      bool get_n_samples = true);
  // What the consumer reads; empty while one of the columns has no data.
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
