// Random operations on a dock and on its plain twin, compared after every step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/rng.h"
#include "core/base/testing/fake_clock.h"
#include "dock/testing/slow_columns.h"
#include "dock/testing/slow_dock.h"
#include "dock/testing/slow_row_status.h"
#include "tdock/local_dock.h"

namespace tdock::dock {
namespace {

constexpr const char* kModelled = "p";
const std::vector<std::string> kColumns = {"dense", "ragged", "text", "wide", "note"};

class Driver {
 public:
  explicit Driver(uint64_t seed) : rng_(seed) {
    options_.name = kModelled;
    for (const std::string& name : kColumns) options_.columns.push_back({name, TypeOf(name)});
    if (rng_.Below(2) == 0) options_.group_size = 3;
    if (rng_.Below(2) == 0) options_.retain_for = {"c1", "c4"};
    if (rng_.Below(3) == 0) options_.max_rows = 30;
    groups_are_dropped_ = rng_.Below(3) == 0;
    twin_ = std::make_unique<SlowDock>(options_);
    EXPECT_TRUE(dock_->CreatePartition(options_).ok());
  }

  void Step() {
    twin_->Expire(clock_.Now());
    switch (rng_.Below(22)) {
      case 0:
      case 1:
      case 2:
        return PutNewRows();
      case 3:
      case 4:
      case 5:
        return Fill();
      case 6:
      case 7:
      case 8:
        return Take();
      case 9:
      case 10:
        return FillLease();
      case 11:
        return FinishLease();
      case 12:
        return Clear();
      case 13:
        return Register();
      case 14:
        if (OneIn(2)) Seal();
        return;
      case 15:
        return Drop();
      case 16:
        return OneIn(2) ? Renew() : Requeue();
      case 17:
        return OneIn(2) ? Commit() : Rollback();
      case 18:
        if (OneIn(10)) DropConsumer();
        return;
      case 19:
        if (OneIn(4)) Publish();
        return;
      case 20:
        if (OneIn(5)) StartAgain();
        return;
      default:
        clock_.Advance(absl::Seconds(static_cast<int64_t>(rng_.Below(4))));
        twin_->Expire(clock_.Now());
    }
  }

  void Compare() {
    const PartitionStatus status = *dock_->GetStatus(kModelled);
    ASSERT_EQ(status.rows, static_cast<int64_t>(twin_->AllRows().size()));
    ASSERT_EQ(status.sealed, twin_->sealed());
    ASSERT_EQ(status.weights_version, twin_->published());
    ASSERT_EQ(status.groups, static_cast<int64_t>(twin_->groups()));
    ASSERT_EQ(status.incomplete_groups, twin_->IncompleteGroups());
    for (const ColumnStatus& column : status.columns) ASSERT_EQ(column.ready_cells, twin_->ReadyCells(column.name));
    for (const auto& [name, real] : status.consumers) {
      const ConsumerStatus expected = twin_->StatusOf(name);
      ASSERT_EQ(real.waiting, expected.waiting) << name;
      ASSERT_EQ(real.ready, expected.ready) << name;
      ASSERT_EQ(real.leased, expected.leased) << name;
      ASSERT_EQ(real.quarantined, expected.quarantined) << name;
      ASSERT_EQ(real.done, expected.done) << name;
      ASSERT_EQ(real.uncommitted, expected.uncommitted) << name;
      ASSERT_EQ(real.committed_step, expected.committed_step) << name;
      ASSERT_EQ(real.takeable, expected.takeable) << name;
      ASSERT_EQ(real.completed, expected.completed) << name;
      ASSERT_EQ(real.expired, expected.expired) << name;
      ASSERT_EQ(real.unfinished, expected.unfinished) << name;
      ASSERT_EQ(real.sent_back, expected.sent_back) << name;
      ASSERT_EQ(real.stale_dropped, expected.stale_dropped) << name;
      ASSERT_EQ(real.reset, expected.reset) << name;
    }
    CompareRow();
    if (rng_.Below(20) == 0) CompareCells();
    if (rng_.Below(20) == 0) CompareLabels();
  }

  void CompareLabels() {
    const Tags wanted = AnyTags();
    const std::vector<RowId> expected = twin_->RowsWith(wanted);
    std::vector<RowId> listed;
    std::optional<RowId> from = 0;
    while (from.has_value()) {
      const auto page = dock_->List({.partition = kModelled, .tags = wanted, .from = *from, .limit = 3});
      ASSERT_TRUE(page.ok()) << page.status();
      for (const ListedRow& row : page->rows) {
        listed.push_back(row.row);
        ASSERT_EQ(row.key, twin_->KeyOf(row.row));
        ASSERT_EQ(row.tags, twin_->TagsOf(row.row));
        ASSERT_EQ(row.group, twin_->GroupOf(row.row));
        ASSERT_EQ(row.age, twin_->AgeOf(row.row));
        ASSERT_EQ(row.epoch, twin_->EpochOf(row.row));
      }
      from = page->next;
    }
    ASSERT_EQ(listed, expected);
    for (const std::string& key : {AnyKey(), AnyKey()}) {
      const auto found = dock_->FindRows(kModelled, std::vector{key});
      const std::optional<RowId> row = twin_->FindKey(key);
      ASSERT_EQ(found.ok(), row.has_value()) << found.status();
      if (row.has_value()) {
        ASSERT_EQ(found->front(), *row);
      }
    }
  }

  void CompareRow() {
    const std::vector<RowId> rows = twin_->AllRows();
    if (rows.empty()) return;
    const auto status = dock_->GetRowStatus(kModelled, rows[rng_.Below(rows.size())]);
    ASSERT_TRUE(status.ok()) << status.status();
    CheckAsKnown(*status, *twin_);
  }

  void CompareCells() {
    const std::vector<RowId> rows = twin_->AllRows();
    for (const std::string& column : kColumns) {
      std::vector<RowId> filled;
      for (RowId row : rows) {
        if (twin_->Find(row, column) != nullptr) filled.push_back(row);
      }
      if (filled.empty()) continue;
      const auto read = dock_->Fetch({.partition = kModelled, .rows = filled, .columns = {column}});
      ASSERT_TRUE(read.ok()) << read.status();
      CheckCells(*read);
    }
    for (const Rows& view : views_) CheckViewIsUntouched(view);
  }

 private:
  // One in `n`.
  bool OneIn(uint64_t n) { return rng_.Below(n) == 0; }

  // Around what is published soon.
  int64_t AnyVersion() {
    const int64_t version = next_number_ / 400 - static_cast<int64_t>(rng_.Below(3));
    return OneIn(3) || version < 0 ? kNoWeightsVersion : version;
  }
  uint32_t EpochOf(RowId row) {
    const std::vector<RowId> all = twin_->AllRows();
    return std::binary_search(all.begin(), all.end(), row) ? twin_->EpochOf(row) : 0;
  }

  std::string AnyKey() { return "k" + std::to_string(rng_.Below(40)); }
  Tags AnyTags() {
    Tags tags;
    while (OneIn(2)) tags["t" + std::to_string(rng_.Below(3))] = std::to_string(rng_.Below(2));
    return tags;
  }

  std::vector<int64_t> Numbers(int64_t count) {
    std::vector<int64_t> numbers;
    for (int64_t i = 0; i < count; ++i) numbers.push_back(next_number_++);
    return numbers;
  }

  // Runs a put on both, with random columns among `from`.
  void RunPut(SlowDock::SlowPut put, const std::vector<std::string>& from) {
    for (const std::string& column : from) {
      if (OneIn(2) && put.request.new_rows == 0) put.columns[column] = Numbers(put.count);
    }
    // Without a batch, the rows that are named say how many there are.
    if (put.columns.empty() && !put.request.rows.empty()) put.count = static_cast<int64_t>(put.request.rows.size());
    if (OneIn(8) && !put.request.rows.empty()) {
      for (RowId row : put.request.rows) put.request.epochs.push_back(OneIn(10) ? 1 : EpochOf(row));
    }
    Batch batch;
    for (const auto& [name, numbers] : put.columns) {
      const Column column = Encode(name, numbers);
      for (int64_t row = 0; row < column.rows() && column.type().kind != ColumnKind::kDense; ++row) {
        put.lengths[name].push_back(column.Length(row));
      }
      ASSERT_TRUE(batch.Add(name, column).ok());
    }
    const Refusals refusals = twin_->CheckPut(put);
    const absl::StatusOr<std::vector<RowId>> rows = Send(put.request, batch);
    ASSERT_TRUE(Agree(rows.status(), refusals));
    if (!rows.ok()) return;
    ASSERT_EQ(*rows, twin_->Put(put));
  }
  absl::StatusOr<std::vector<RowId>> Send(const SlowDock::AnyPut& put, const Batch& batch) {
    if (!put.rows.empty() || put.lease != kNoLease) {
      FillRequest fill = put;
      fill.partition = kModelled;
      fill.batch = batch;
      TDOCK_RETURN_IF_ERROR(dock_->Fill(fill));
      return put.rows;
    }
    TDOCK_ASSIGN_OR_RETURN(PutResult result, dock_->Put({.partition = kModelled,
                                                         .batch = batch,
                                                         .new_rows = put.new_rows,
                                                         .groups = put.groups,
                                                         .group_size = put.group_size,
                                                         .keys = put.keys,
                                                         .tags = put.tags,
                                                         .weights_version = put.weights_version}));
    return std::move(result.rows);
  }

  void PutNewRows() {
    SlowDock::SlowPut put;
    put.count = static_cast<int64_t>(OneIn(100) ? 40 : rng_.Below(6));
    if (options_.group_size > 1 || OneIn(3)) {
      for (int64_t i = 0; i < put.count; ++i) put.request.groups.push_back(rng_.Below(put.count > 8 ? 100 : 8));
      if (options_.group_size == 1) put.request.group_size = 2;
      if (OneIn(20)) put.request.groups.push_back(0);
    }
    if (OneIn(20)) put.request.group_size = static_cast<int64_t>(rng_.Below(4)) - 1;
    if (OneIn(5)) put.request.new_rows = put.count;
    for (int64_t i = 0; i < put.count && options_.group_size == 1; ++i)
      put.request.keys.push_back(OneIn(3) ? AnyKey() : "");
    if (OneIn(3)) put.request.tags = {AnyTags()};
    put.request.weights_version = AnyVersion();
    RunPut(put, kColumns);
  }

  void Fill() {
    SlowDock::SlowPut put;
    const std::vector<RowId> all = twin_->AllRows();
    for (uint64_t i = 0; i <= rng_.Below(4) && !all.empty(); ++i) {
      const RowId row = OneIn(30) ? rng_.Below(twin_->next_row() + 1) : all[rng_.Below(all.size())];
      if (OneIn(30) || std::find(put.request.rows.begin(), put.request.rows.end(), row) == put.request.rows.end()) {
        put.request.rows.push_back(row);
      }
    }
    if (put.request.rows.empty()) return;
    put.count = static_cast<int64_t>(put.request.rows.size()) + (OneIn(30) ? 1 : 0);
    put.request.overwrite = OneIn(4);
    put.request.keep = OneIn(30);
    put.request.partial = OneIn(10);
    put.request.weights_version = AnyVersion();
    if (OneIn(4)) {
      for (size_t i = 0; i < put.request.rows.size(); ++i) put.request.tags.push_back(AnyTags());
      if (OneIn(20)) put.request.tags.push_back(AnyTags());
    }
    RunPut(put, kColumns);
  }

  LeaseId AnyLease() {
    if (leases_.empty() || OneIn(20)) return rng_.Below(twin_->last_lease() + 2);
    return leases_[rng_.Below(leases_.size())];
  }

  // Some of the rows that the lease holds, or now and then others.
  std::vector<RowId> RowsFor(LeaseId lease) {
    std::vector<RowId> rows;
    for (RowId row : twin_->LeaseRows(lease)) {
      if (!OneIn(3)) rows.push_back(row);
    }
    if (OneIn(15)) rows.push_back(rng_.Below(twin_->next_row() + 1));
    rng_.Shuffle(std::span(rows));
    return rows;
  }

  void FillLease() {
    SlowDock::SlowPut put;
    put.request.lease = AnyLease();
    put.request.rows = RowsFor(put.request.lease);
    put.count = static_cast<int64_t>(put.request.rows.size());
    if (put.count == 0) return;
    put.request.keep = OneIn(4);
    put.request.partial = OneIn(3);
    put.request.weights_version = AnyVersion();
    put.request.overwrite = !put.request.partial && OneIn(2);
    if ((!put.request.keep && !put.request.partial) || OneIn(10)) put.request.step = StepFor(put.request.lease);
    const std::string name = twin_->ConsumerOf(put.request.lease);
    RunPut(put, OneIn(10) || name.empty() ? kColumns : twin_->OptionsOf(name).writes);
  }

  void FinishLease() {
    const LeaseId lease = AnyLease();
    std::vector<RowId> rows = OneIn(2) ? std::vector<RowId>() : RowsFor(lease);
    const bool completes = OneIn(2);
    const int64_t step = completes ? StepFor(lease) : kNoStep;
    const Refusals refusals = completes ? twin_->CheckComplete(lease, rows, step) : twin_->CheckLease(lease, rows);
    const LeaseRequest request{.partition = kModelled, .lease = lease, .rows = rows, .step = step};
    const absl::Status status = completes ? dock_->Complete(request) : dock_->Release(request);
    ASSERT_TRUE(Agree(status, refusals));
    if (!status.ok()) return;
    if (rows.empty()) rows = twin_->LeaseRows(lease);
    if (completes) {
      twin_->Complete(lease, rows, step);
    } else {
      twin_->Release(lease, rows);
    }
  }

  // Mostly one that fits.
  int64_t StepFor(LeaseId lease) {
    const std::string name = twin_->ConsumerOf(lease);
    const bool checkpointed = !name.empty() && twin_->OptionsOf(name).checkpointed;
    if (checkpointed == OneIn(30)) return kNoStep;
    return OneIn(20) ? static_cast<int64_t>(rng_.Below(8)) : ++step_;
  }

  void Commit() {
    const std::string name = OneIn(10) ? AnyConsumer() : OneIn(2) ? "c4" : "c6";
    if (!twin_->HasConsumer(name)) return;
    const int64_t step = step_ - static_cast<int64_t>(rng_.Below(8));
    const int64_t version = OneIn(20) ? AnyVersion() : kNoWeightsVersion;
    const absl::Status status = dock_->Commit({kModelled, name, step, version});
    ASSERT_TRUE(Agree(status, twin_->CheckCommit(name, step, version)));
    if (status.ok()) twin_->Commit(name, step);
  }

  void Rollback() {
    const std::string name = OneIn(10) ? AnyConsumer() : OneIn(2) ? "c4" : "c6";
    if (!twin_->HasConsumer(name)) return;
    const int64_t step = step_ - static_cast<int64_t>(rng_.Below(10));
    const int64_t version =
        OneIn(2) ? kNoWeightsVersion : std::max<int64_t>(twin_->published() - static_cast<int64_t>(rng_.Below(3)), -1);
    const absl::Status status = dock_->Rollback({kModelled, name, step, version});
    ASSERT_TRUE(Agree(status, twin_->CheckRollback(name, step, version)));
    if (status.ok()) twin_->Rollback(name, step, version);
  }

  void DropConsumer() {
    const std::string name = AnyConsumer();
    const absl::Status status = dock_->DropConsumer(kModelled, name);
    ASSERT_TRUE(Agree(status, twin_->CheckDropConsumer(name)));
    if (status.ok()) twin_->DropConsumer(name);
  }

  void Publish() {
    const int64_t version = std::max(twin_->published(), AnyVersion()) + OneIn(2) - OneIn(20);
    const absl::Status status = dock_->PublishWeights(kModelled, version);
    ASSERT_TRUE(Agree(status, twin_->CheckPublish(version)));
    if (status.ok()) twin_->Publish(version);
  }

  // As after a restart: with another dock, of what the first one exported.
  void StartAgain() {
    const absl::StatusOr<std::string> image = dock_->ExportPartition(kModelled);
    ASSERT_TRUE(image.ok()) << image.status();
    std::unique_ptr<Dock> next = MakeLocalDock({.clock = &clock_});
    ASSERT_EQ(next->ImportPartition(*image), absl::OkStatus());
    ASSERT_TRUE(next->ExportPartition(kModelled) == image);
    dock_ = std::move(next);
    twin_->EndLeases();
  }

  void Renew() {
    const LeaseId lease = AnyLease();
    const absl::StatusOr<absl::Time> expires = dock_->Renew(kModelled, lease);
    ASSERT_TRUE(Agree(expires.status(), twin_->CheckLease(lease, {})));
    if (expires.ok()) twin_->Renew(lease, clock_.Now());
  }

  void Drop() {
    if (!OneIn(3)) return;
    LeaseRequest request{.partition = kModelled};
    if (OneIn(2)) request.lease = AnyLease();
    std::vector<RowId> rows = request.lease != kNoLease ? RowsFor(request.lease) : AnyRows();
    request.rows = rows;
    Refusals refusals =
        request.lease == kNoLease ? twin_->CheckRowsThere(rows) : twin_->CheckLease(request.lease, rows);
    if (rows.empty() && request.lease == kNoLease) refusals.insert(absl::StatusCode::kInvalidArgument);
    const absl::Status status = dock_->Drop(request);
    ASSERT_TRUE(Agree(status, refusals));
    if (status.ok()) twin_->Drop(rows.empty() ? twin_->LeaseRows(request.lease) : rows);
  }

  void Requeue() {
    const std::string name = AnyConsumer();
    if (!twin_->HasConsumer(name)) return;
    std::vector<RowId> rows;
    for (RowId row : twin_->Quarantined(name)) {
      if (OneIn(2)) rows.push_back(row);
    }
    if (OneIn(10)) rows = AnyRows();
    const absl::Status status = dock_->Requeue({.partition = kModelled, .consumer = name, .rows = rows});
    ASSERT_TRUE(Agree(status, twin_->CheckRequeue(name, rows)));
    if (status.ok()) twin_->Requeue(name, rows.empty() ? twin_->Quarantined(name) : rows);
  }

  std::string AnyConsumer() { return "c" + std::to_string(rng_.Below(7)); }

  // A few that are there, or now and then not, or twice.
  std::vector<RowId> AnyRows() {
    std::vector<RowId> rows;
    const std::vector<RowId> all = twin_->AllRows();
    for (uint64_t i = 0; i <= rng_.Below(4) && !all.empty(); ++i) {
      rows.push_back(OneIn(20) ? rng_.Below(twin_->next_row() + 1) : all[rng_.Below(all.size())]);
    }
    return rows;
  }

  void Take() {
    const std::string name = AnyConsumer();
    if (!twin_->HasConsumer(name)) return;
    const int64_t min = static_cast<int64_t>(rng_.Below(4)),
                  max = min + static_cast<int64_t>(rng_.Below(4)) - OneIn(20);
    const int32_t rank = static_cast<int32_t>(rng_.Below(OneIn(20) ? 4 : twin_->OptionsOf(name).ranks)) - OneIn(50);
    const SlowDock::TakePlan plan = PlanTake(name, rank, min, max);
    const std::vector<RowId> takeable = plan.refusals.empty() ? twin_->Takeable(name, rank) : std::vector<RowId>();
    const absl::StatusOr<Taken> taken =
        dock_->Take({.partition = kModelled, .consumer = name, .min = min, .max = max, .rank = rank});
    ASSERT_TRUE(Agree(taken.status(), plan.refusals));
    if (!taken.ok()) return;

    std::vector<RowId> expected, real(taken->rows.ids().begin(), taken->rows.ids().end());
    if (twin_->OptionsOf(name).sampler != Sampler::kFirstCome) {
      int64_t units = 0;
      for (RowId unit : takeable) {
        const std::vector<RowId> rows = twin_->RowsOfUnit(name, unit);
        if (std::search(real.begin(), real.end(), rows.begin(), rows.end()) == real.end()) continue;
        expected.insert(expected.end(), rows.begin(), rows.end());
        ++units;
      }
      ASSERT_EQ(units, plan.count);
      ASSERT_THAT(real, testing::UnorderedElementsAreArray(expected));
    } else {
      for (int64_t i = 0; i < plan.count; ++i) {
        const auto rows = twin_->RowsOfUnit(name, takeable[static_cast<size_t>(i)]);
        expected.insert(expected.end(), rows.begin(), rows.end());
      }
      ASSERT_EQ(real, expected);
    }
    for (size_t i = 0; i < real.size(); ++i) {
      ASSERT_EQ(taken->rows.groups()[i], twin_->GroupOf(real[i]));
      ASSERT_EQ(taken->rows.redeliveries(i), twin_->Redeliveries(name, real[i]));
      ASSERT_EQ(taken->rows.key(i), twin_->KeyOf(real[i]));
      ASSERT_EQ(taken->rows.tags(i), twin_->TagsOf(real[i]));
      ASSERT_EQ(taken->rows.age(i), twin_->AgeOf(real[i]));
      ASSERT_EQ(taken->rows.epoch(i), twin_->EpochOf(real[i]));
      for (size_t column = 0; column < taken->rows.columns().size(); ++column) {
        CheckCell(taken->rows, i, column, twin_->OptionsOf(name));
      }
    }
    twin_->Take(name, taken->lease, real, clock_.Now());
    Remember(taken->lease, taken->rows);
  }

  // What a take comes to when those that are too old are out of its way. Only consumers that take in order have such.
  SlowDock::TakePlan PlanTake(const std::string& name, int32_t rank, int64_t min, int64_t max) {
    for (;;) {
      SlowDock::TakePlan plan = twin_->CheckTake(name, rank, min, max);
      if (!plan.refusals.empty()) return plan;
      std::vector<RowId> rows;
      const std::vector<RowId> takeable = twin_->Takeable(name, rank);
      for (int64_t i = 0; i < plan.count; ++i) {
        const std::vector<RowId> unit = twin_->RowsOfUnit(name, takeable[static_cast<size_t>(i)]);
        rows.insert(rows.end(), unit.begin(), unit.end());
      }
      const SlowDock::StaleRows stale = twin_->JudgeForTake(name, rows);
      plan.refusals = stale.refusals;
      if (stale.empty() || !plan.refusals.empty()) return plan;
      twin_->PutAside(stale, name);
    }
  }

  void Remember(LeaseId lease, const Rows& view) {
    if (lease != kNoLease) leases_.push_back(lease);
    if (leases_.size() > 6) leases_.erase(leases_.begin());
    views_.push_back(view);
    copies_.push_back(*view.ToBatch());
    if (views_.size() > 4) {
      views_.erase(views_.begin());
      copies_.erase(copies_.begin());
    }
  }

  void Clear() {
    ClearRequest request{.partition = kModelled};
    std::vector<RowId> rows;
    const std::vector<RowId> all = twin_->AllRows();
    const uint64_t choice = rng_.Below(12);
    if (choice == 0 && OneIn(twin_->sealed() ? 2 : 8)) {
      request.everything = true;
      rows = all;
    } else if (choice < 4) {
      request.groups = {rng_.Below(8)};
      rows = twin_->RowsOf(request.groups[0]);
      const absl::StatusOr<int64_t> cleared = dock_->Clear(request);
      ASSERT_EQ(cleared.ok(), twin_->HasGroup(request.groups[0])) << cleared.status();
      if (!cleared.ok()) return;
      twin_->Clear(rows);
      twin_->ForgetGroup(request.groups[0]);
      return;
    } else if (choice == 4) {
      request.tags = AnyTags();
      if (request.tags.empty()) return;
      rows = twin_->RowsWith(request.tags);
    } else {
      rows = AnyRows();
      if (rows.empty()) return;
      request.rows = rows;
    }
    const Refusals refusals = twin_->CheckRowsThere(rows);
    const absl::StatusOr<int64_t> cleared = dock_->Clear(request);
    ASSERT_TRUE(Agree(cleared.status(), refusals));
    if (!cleared.ok()) return;
    ASSERT_EQ(*cleared, static_cast<int64_t>(rows.size()));
    twin_->Clear(rows);
    if (request.everything) twin_->ForgetEverything();
  }

  void Seal() {
    const Refusals refusals = twin_->CheckSeal();
    const absl::Status status = dock_->Seal(kModelled);
    ASSERT_TRUE(Agree(status, refusals));
    if (status.ok()) twin_->Seal();
  }

  void Register() {
    static const std::vector<std::vector<std::string>> reads = {
        {"text"}, {"dense"}, {"dense"}, {"dense", "text"}, {"wide"}, {"dense", "ragged", "text", "wide"}, {"note"}};
    static const std::vector<std::vector<std::string>> writes = {
        {"wide"}, {"text"}, {"ragged", "text", "wide"}, {}, {"dense"}, {"text", "wide"}, {"note"}};
    const uint64_t i = rng_.Below(7);
    ConsumerOptions options{.name = "c" + std::to_string(i), .reads = reads[i], .writes = writes[i]};
    if (i == 2) options.reads_optional = {"ragged", "text"};
    if (i == 1) {
      options.max_version_lag = 2;
      options.stale = Stale::kDrop;
    }
    if (i == 0 || i == 4) options.max_version_lag = 1;
    if (i == 0 && groups_are_dropped_) options.stale = Stale::kDrop;
    options.unit = i == 0 || i == 3 ? Unit::kGroup : Unit::kRow;
    if (i == 2 || i == 3) options.sampler = Sampler::kUniform;
    if (i == 5) {
      options.sampler = Sampler::kLengthBalanced;
      options.length_column = "ragged";
    }
    options.ranks = i == 1 || i == 3 ? 2 : 1;
    options.lease_duration = absl::Seconds(5);
    options.max_deliveries = i % 2 == 0 ? 1 : 3;
    options.checkpointed = i == 4 || i == 6;
    options.at_most_once = i == 5;
    ASSERT_TRUE(dock_->RegisterConsumer(kModelled, options).ok());
    if (!twin_->HasConsumer(options.name)) twin_->Register(options);
  }

  void CheckCell(const Rows& rows, size_t i, size_t column, const ConsumerOptions& options) {
    const std::string& name = rows.columns()[column].name;
    const SlowCell* const expected = twin_->CellSeenBy(options, rows.ids()[i], name);
    ASSERT_EQ(rows.Has(i, column), expected != nullptr) << name;
    if (expected == nullptr) return;
    const Cell& cell = rows.cell(i, column);
    ASSERT_EQ(cell.partial, twin_->Find(rows.ids()[i], name) == nullptr) << name;
    ASSERT_EQ(cell.weights_version, expected->Oldest()) << name;
    ASSERT_EQ(*rows.Pieces(i, name), expected->Pieces()) << name;
    ASSERT_TRUE(std::ranges::equal(cell.bytes, Encode(name, {expected->number}).RowBytes(0))) << name;
  }

  // Every cell of the view holds its number, made by its version.
  void CheckCells(const Rows& rows) {
    const Batch batch = *rows.ToBatch();
    for (const NamedColumn& column : batch.columns()) {
      std::vector<int64_t> numbers;
      for (size_t i = 0; i < rows.size(); ++i) {
        const SlowCell* value = twin_->Find(rows.ids()[i], column.name);
        ASSERT_NE(value, nullptr);
        numbers.push_back(value->number);
        ASSERT_EQ(*rows.WeightsVersion(i, column.name), value->Oldest());
        ASSERT_EQ(*rows.Pieces(i, column.name), value->Pieces());
      }
      ExpectEqual(column.column, Encode(column.name, numbers));
    }
  }

  void CheckViewIsUntouched(const Rows& view) {
    const size_t index = static_cast<size_t>(&view - views_.data());
    const Batch now = *view.ToBatch();
    for (const NamedColumn& column : now.columns()) ExpectEqual(column.column, *copies_[index].Find(column.name));
  }

  Rng rng_;
  FakeClock clock_;
  PartitionOptions options_;
  bool groups_are_dropped_ = false;
  std::unique_ptr<Dock> dock_ = MakeLocalDock({.clock = &clock_});
  std::unique_ptr<SlowDock> twin_;
  int64_t next_number_ = 1;
  int64_t step_ = 0;
  std::vector<LeaseId> leases_;
  std::vector<Rows> views_;
  std::vector<Batch> copies_;
};

class ModelCheck : public testing::TestWithParam<uint64_t> {};

TEST_P(ModelCheck, ADockBehavesAsItsPlainTwin) {
  Driver driver(GetParam());
  for (int step = 0; step < 6'000; ++step) {
    SCOPED_TRACE(testing::Message() << "seed " << GetParam() << ", step " << step);
    driver.Step();
    if (!testing::Test::HasFatalFailure()) driver.Compare();
    if (testing::Test::HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ModelCheck, testing::Range<uint64_t>(0, 20));

}  // namespace
}  // namespace tdock::dock
