// MindSpeedDock over a Dock. It adds what the dock does not know: the rows of each index, their age, and which consumer
// holds them under which lease.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "tdock/compat/mindspeed.h"

namespace tdock::mindspeed {

// The columns of an unfinished response; all other columns are final.
inline bool IsResumed(absl::string_view column) { return column == "responses" || column == "response_length"; }

// Every consumer is a core consumer of rows that reads nothing, so that its rows are ready, leased or done: not
// consumed, or consumed. A get determines which columns must be ready.
//
// Lock order: a consumer's `sampling` or checking_, then mu_; mu_ is never held during a call of the dock.
class Profile final : public MindSpeedDock {
 public:
  // For tests: called with the consumer's name in each sampling, between choosing rows and taking them. It must not
  // sample for the same consumer.
  using SamplingHook = std::function<void(absl::string_view consumer)>;

  // Creates the partition and its consumers.
  static absl::StatusOr<std::unique_ptr<Profile>> Make(std::shared_ptr<Dock> dock, const MindSpeedOptions& options,
                                                       SamplingHook on_sampling = nullptr);
  ~Profile() override;

  using MindSpeedDock::PutExperience;
  absl::Status PutExperience(const Batch& batch, const ExperienceIndexes& indexes, const PutOptions& options) override;
  absl::StatusOr<ExperienceIndexes> PutPromptsExperience(const Batch& batch, const PromptsOptions& options) override;
  absl::StatusOr<std::optional<Experience>> GetExperience(absl::string_view consumer,
                                                          const std::vector<std::string>& columns,
                                                          const GetOptions& options) override;
  absl::StatusOr<Batch> Get(const std::vector<std::string>& columns, const ExperienceIndexes& indexes) override;
  absl::Status Complete(absl::string_view consumer, const ExperienceIndexes& indexes) override;
  absl::Status Release(absl::string_view consumer, const ExperienceIndexes& indexes) override;
  absl::StatusOr<bool> AllConsumed(absl::string_view consumer) override;
  absl::Status Clear(absl::string_view consumer) override;
  absl::Status ClearIndexes(const std::optional<std::vector<int64_t>>& indexes) override;
  absl::StatusOr<std::optional<std::vector<int64_t>>> PrefetchRequestIndex(int64_t count) override;
  absl::StatusOr<int64_t> GetIncompleteResponseNum() override;
  absl::StatusOr<std::map<std::string, ReadyCells>> GetExperienceData() override;
  absl::StatusOr<std::map<std::string, std::vector<bool>>> GetExperienceStatus() override;
  absl::StatusOr<std::map<std::string, std::vector<bool>>> GetConsumerStatus() override;
  std::vector<int32_t> GetAges() override;
  int64_t GetExperienceLen() const override { return max_len_; }
  std::map<std::string, std::vector<double>> GetMetrics() override;
  void UpdateMetrics(absl::string_view key, double value, bool cumulate) override;

 private:
  struct Consumer {
    MindSpeedConsumer options;
    // The index of the consumer.
    size_t number = 0;
    // It gets unfinished responses again.
    bool resumes = false;
    // The original balances lengths for it, if requested.
    bool balances = false;
    Mutex sampling;
    uint64_t draws TDOCK_GUARDED_BY(sampling) = 0;

    bool leased() const { return options.hand_out == HandOut::kLeased; }
  };

  // The rows at the indexes. Immutable: a clear does not disturb users of an older one.
  struct Generation {
    std::vector<RowId> rows;
    absl::flat_hash_map<RowId, int64_t> index_of;
    std::vector<int32_t> ages;
  };
  struct Snapshot {
    std::shared_ptr<const Generation> generation;
    // By index: its group was complete at the last check. With max_age > 1, other consumers see only those.
    std::shared_ptr<const std::vector<bool>> complete;
  };

  // A get that was validated.
  struct Wanted {
    std::vector<std::string> columns;
    // The columns that must be ready: without those that are resumed.
    std::vector<std::string> needed;
    int64_t count = 0;
    GetOptions options;
  };
  // Rows in the order in which they are handed out.
  struct Chosen {
    std::vector<int64_t> indexes;
    std::vector<RowId> rows;
    std::vector<int32_t> ages;
    Taken taken;
  };

  Profile(std::shared_ptr<Dock> dock, const MindSpeedOptions& options, SamplingHook on_sampling);

  // profile.cc
  absl::Status Begin();
  absl::Status RegisterConsumers();
  absl::StatusOr<std::vector<RowId>> NewRows(int64_t count);
  absl::StatusOr<Consumer*> FindConsumer(absl::string_view name);
  absl::Status CheckColumns(const std::vector<std::string>& columns) const;
  absl::Status CheckIndexes(const std::vector<int64_t>& indexes) const;
  Snapshot Look() TDOCK_EXCLUDES(mu_);
  // The rows of the indexes of a get, or of plain indexes now.
  absl::StatusOr<std::vector<RowId>> Resolve(const ExperienceIndexes& indexes);
  // Adds to a message of the dock the indexes of the rows that it names.
  static absl::Status InIndexes(const absl::Status& status, std::span<const int64_t> indexes,
                                std::span<const RowId> rows);
  // By index of the generation: whether the row is ready for the consumer (unless that is empty) and has the columns.
  absl::StatusOr<std::vector<bool>> Filter(const Generation& generation, const std::string& ready_for,
                                           const std::vector<std::string>& having);
  // Rows that are leased or done.
  absl::StatusOr<int64_t> CountConsumed(const Consumer& consumer);
  LeaseRequest Lease(LeaseId lease, std::vector<RowId> rows = {}) const {
    return {.partition = options_.partition, .lease = lease, .rows = std::move(rows)};
  }
  // Wakes the callers that wait for rows.
  void NoteChange() TDOCK_EXCLUDES(mu_);

  // profile_put.cc
  struct Target {
    std::vector<RowId> rows;
    LeaseId lease = kNoLease;
    bool keep = false;
  };
  absl::Status PutCells(const Batch& batch, const Target& target);
  absl::Status PutResponses(const Batch& batch, const Target& target);
  absl::Status CheckHeld(const Consumer& consumer, const Target& target) TDOCK_EXCLUDES(mu_);
  absl::Status PutUnfinished(const Batch& batch, const Target& target);
  absl::Status PutFinished(const Batch& batch, const Target& target);
  // The rows of `rows` that the consumer holds, by lease; they are no longer recorded as held.
  using HeldRows = absl::flat_hash_map<LeaseId, std::vector<RowId>>;
  HeldRows TakeHeld(const Consumer& consumer, std::span<const RowId> rows) TDOCK_EXCLUDES(mu_);
  void ForgetLease(LeaseId lease, std::span<const RowId> rows) TDOCK_EXCLUDES(mu_);
  absl::Status CompleteHolders(const Batch& batch, std::span<const RowId> rows);
  using LeaseCall = absl::Status (Dock::*)(const LeaseRequest&);
  absl::Status EndHeld(const Consumer& consumer, std::span<const RowId> rows, LeaseCall call);
  absl::Status EndLeases(absl::string_view consumer, const ExperienceIndexes& indexes, LeaseCall call);

  // profile_get.cc
  absl::StatusOr<Wanted> CheckGet(const Consumer& consumer, const std::vector<std::string>& columns,
                                  const GetOptions& options) const;
  absl::StatusOr<std::optional<Experience>> GetSampled(Consumer& consumer, const Wanted& wanted);
  absl::StatusOr<Experience> GetNamed(Consumer& consumer, const Wanted& wanted);
  // Unset if there are not enough.
  absl::StatusOr<std::optional<Chosen>> TakeSample(Consumer& consumer, const Wanted& wanted)
      TDOCK_EXCLUDES(consumer.sampling);
  absl::StatusOr<std::vector<int64_t>> Choose(Consumer& consumer, const Wanted& wanted, const Snapshot& snapshot)
      TDOCK_REQUIRES(consumer.sampling);
  absl::StatusOr<std::vector<int64_t>> UsableUnits(const Consumer& consumer, const Wanted& wanted,
                                                   const Snapshot& snapshot);
  absl::StatusOr<std::vector<size_t>> ChooseUnits(Consumer& consumer, const Wanted& wanted, const Snapshot& snapshot,
                                                  const std::vector<int64_t>& units, size_t count)
      TDOCK_REQUIRES(consumer.sampling);
  // prompt_length + response_length of each unit.
  absl::StatusOr<std::vector<int64_t>> LengthsOf(const std::vector<int64_t>& units, int64_t unit_size,
                                                 const Generation& generation);
  // Takes the rows that are not consumed.
  absl::StatusOr<Taken> TakeUnconsumed(const Consumer& consumer, std::vector<RowId> rows);
  absl::StatusOr<Batch> Read(const Consumer& consumer, const Wanted& wanted, const Chosen& chosen, absl::Time deadline);
  // Reads the rows that were taken and returns them; gives them back if that fails.
  absl::StatusOr<Batch> HandOver(const Consumer& consumer, const Wanted& wanted, const Chosen& chosen,
                                 absl::Time deadline);
  absl::Status ExplainShortage(const Consumer& consumer, const Wanted& wanted);
  // Whether the consumer cannot get anything more until a clear.
  absl::StatusOr<bool> IsServed(const Consumer& consumer);
  // False if nothing changed until the deadline.
  bool AwaitChange(uint64_t since, absl::Time deadline) TDOCK_EXCLUDES(mu_);

  // profile_clear.cc
  // Replaces the cleared rows by new ones, by index. False if the generation is no longer the current one.
  absl::StatusOr<bool> Empty(const Snapshot& snapshot, const std::vector<bool>& emptied, Generation next,
                             std::vector<bool> complete);
  static std::vector<int32_t> GroupAges(const Generation& generation, const std::vector<bool>& emptied, int64_t n);
  static std::vector<size_t> OldestFirst(const std::vector<int32_t>& age_of);
  absl::StatusOr<bool> ClearAll(const Snapshot& snapshot);
  absl::StatusOr<bool> CarryOver(const Snapshot& snapshot, const Consumer& consumer);

  const std::shared_ptr<Dock> dock_;
  const MindSpeedOptions options_;
  const SamplingHook on_sampling_;
  const int64_t max_len_;
  const int64_t n_;
  // Responses may be unfinished.
  const bool partial_rollout_;
  Clock& clock_;
  std::vector<std::string> columns_;
  std::vector<std::unique_ptr<Consumer>> consumers_;
  bool made_partition_ = false;

  Mutex checking_;  // held by AllConsumed of the consumer that resumes
  Mutex mu_;
  CondVar changed_;
  uint64_t changes_ TDOCK_GUARDED_BY(mu_) = 0;
  Snapshot now_ TDOCK_GUARDED_BY(mu_);
  // By consumer: the lease under which a row was last handed out, until it is put, completed, released or cleared.
  std::vector<absl::flat_hash_map<RowId, LeaseId>> held_ TDOCK_GUARDED_BY(mu_);
  int64_t next_request_ TDOCK_GUARDED_BY(mu_) = 0;
  std::map<std::string, std::vector<double>> metrics_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::mindspeed
