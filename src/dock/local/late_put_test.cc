// What happens to a put when something else happens while it copies: then what it may do is judged again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "dock/local/partition.h"
#include "dock/store/cell_memory.h"

namespace tdock::dock {
namespace {

using Code = absl::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;

// Memory from the heap; runs something else when the next large buffer is asked for.
class InterruptedMemory final : public CellMemory {
 public:
  Buffer Allocate(size_t size_bytes) override {
    if (size_bytes >= kLargeBytes && meanwhile) std::exchange(meanwhile, nullptr)();
    return Buffer::Allocate(size_bytes);
  }

  static constexpr size_t kLargeBytes = 100'000;
  std::function<void()> meanwhile;
};

// A partition with the columns id, small and large. A put of `large` asks for memory of its own, without the lock, and
// is interrupted there; what it puts into `small` has a place in a block that others use too.
class LatePut : public testing::Test {
 protected:
  static constexpr size_t kLargeFloats = InterruptedMemory::kLargeBytes / sizeof(float);

  LatePut() { Make({}); }

  void Make(PartitionOptions options) {
    options.name = "p";
    if (options.columns.empty()) {
      options.columns = {{"id", ColumnType::Dense(DType::kF32)},
                         {"small", ColumnType::Dense(DType::kF32)},
                         {"large", ColumnType::Ragged(DType::kF32)}};
    }
    partition_ = std::make_shared<Partition>(options, share_, memory_);
  }

  void Register(ConsumerOptions options) {
    options.name = "x";
    options.reads = {"id"};
    options.writes = {"small", "large"};
    ASSERT_EQ(partition_->Ask<verbs::RegisterConsumer>({"p", options}), absl::OkStatus());
  }

  std::vector<RowId> PutIds(const std::vector<float>& ids, std::vector<GroupId> groups = {}) {
    PutRequest put{.partition = "p", .groups = std::move(groups)};
    EXPECT_EQ(put.batch.Add("id", Column::FromValues<float>(ids)), absl::OkStatus());
    const absl::StatusOr<PutResult> result = partition_->Ask<verbs::Put>(put);
    EXPECT_EQ(result.status(), absl::OkStatus());
    return result.ok() ? result->rows : std::vector<RowId>();
  }
  // One row's.
  absl::Status PutSmall(RowId row, float value) {
    FillRequest put{.partition = "p", .rows = {row}};
    EXPECT_EQ(put.batch.Add("small", Column::FromValues<float>({value})), absl::OkStatus());
    return partition_->Ask<verbs::Fill>(put);
  }
  // Both columns of one row, or of a new one.
  static FillRequest Results(std::vector<RowId> rows, LeaseId lease = kNoLease) {
    return {.partition = "p", .batch = NewRow().batch, .rows = std::move(rows), .lease = lease};
  }
  static PutRequest NewRow() {
    PutRequest put{.partition = "p"};
    EXPECT_EQ(put.batch.Add("small", Column::FromValues<float>({5})), absl::OkStatus());
    EXPECT_EQ(put.batch.Add("large", Column::FromRows<float>({std::vector<float>(kLargeFloats, 5)})), absl::OkStatus());
    return put;
  }

  Taken TakeOne() {
    absl::StatusOr<Taken> taken = partition_->Ask<verbs::Take>({.partition = "p", .consumer = "x"});
    EXPECT_EQ(taken.status(), absl::OkStatus());
    return taken.ok() ? *std::move(taken) : Taken();
  }

  // The put's status; `meanwhile` runs while it copies.
  absl::Status PutWhile(const PutRequest& put, std::function<void()> meanwhile) {
    return While([&] { return partition_->Ask<verbs::Put>(put).status(); }, std::move(meanwhile));
  }
  absl::Status PutWhile(const FillRequest& put, std::function<void()> meanwhile) {
    return While([&] { return partition_->Ask<verbs::Fill>(put); }, std::move(meanwhile));
  }
  absl::Status While(const std::function<absl::Status()>& put, std::function<void()> meanwhile) {
    memory_->meanwhile = std::move(meanwhile);
    absl::Status status = put();
    EXPECT_FALSE(memory_->meanwhile) << "the put was not interrupted";
    return status;
  }

  PartitionStatus Status() {
    const absl::StatusOr<PartitionStatus> status = partition_->Ask<verbs::GetStatus>({});
    EXPECT_EQ(status.status(), absl::OkStatus());
    return status.ok() ? *status : PartitionStatus();
  }
  ConsumerStatus StatusOfX() {
    const absl::StatusOr<ConsumerStatus> status = partition_->Ask<verbs::GetConsumerStatus>({"p", "x"});
    EXPECT_EQ(status.status(), absl::OkStatus());
    return status.ok() ? *status : ConsumerStatus();
  }
  // Of id, small and large.
  std::vector<int64_t> ReadyCells() {
    std::vector<int64_t> cells;
    for (const ColumnStatus& column : Status().columns) cells.push_back(column.ready_cells);
    return cells;
  }
  float Small(RowId row) {
    const absl::StatusOr<Rows> rows =
        partition_->Ask<verbs::Fetch>({.partition = "p", .rows = {row}, .columns = {"small"}});
    EXPECT_EQ(rows.status(), absl::OkStatus());
    return rows.ok() ? rows->Get<float>(0, "small")->front() : -1;
  }

  FakeClock clock_;
  const std::shared_ptr<InterruptedMemory> memory_ = std::make_shared<InterruptedMemory>();
  WaitingCalls calls_;
  const PartitionsShare share_{.clock = clock_,
                               .work = nullptr,
                               .copies = memory_,
                               .samplers = std::make_shared<CustomSamplers>(),
                               .notifier = nullptr,
                               .calls = calls_};
  std::shared_ptr<Partition> partition_;
};

TEST_F(LatePut, IsRefusedWhenItsLeaseHasExpired) {
  Register({.lease_duration = absl::Seconds(30)});
  const std::vector<RowId> rows = PutIds({1, 2});
  ASSERT_EQ(PutSmall(rows[1], 7), absl::OkStatus());
  const Taken taken = TakeOne();
  const int64_t held = Status().held_bytes;
  const absl::Status status = PutWhile(Results({rows[0]}, taken.lease), [&] { clock_.Advance(absl::Seconds(30)); });
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("expired"));
  EXPECT_THAT(ReadyCells(), ElementsAre(2, 1, 0));
  EXPECT_EQ(Status().held_bytes, held);
  EXPECT_EQ(StatusOfX().ready, 2);
  EXPECT_EQ(StatusOfX().completed, 0);
  EXPECT_EQ(StatusOfX().expired, 1);
  // Whoever has the row now is the one who may put it.
  EXPECT_EQ(partition_->Ask<verbs::Fill>(Results({rows[0]}, TakeOne().lease)), absl::OkStatus());
  EXPECT_EQ(Small(rows[0]), 5);
}

TEST_F(LatePut, SucceedsWhenItsLeaseWasRenewed) {
  Register({.lease_duration = absl::Seconds(30)});
  const std::vector<RowId> rows = PutIds({1});
  const Taken taken = TakeOne();
  EXPECT_EQ(PutWhile(Results(rows, taken.lease),
                     [&] {
                       clock_.Advance(absl::Seconds(20));
                       EXPECT_TRUE(partition_->Ask<verbs::Renew>({"p", taken.lease}).ok());
                       clock_.Advance(absl::Seconds(20));
                     }),
            absl::OkStatus());
  EXPECT_EQ(StatusOfX().completed, 1);
}

TEST_F(LatePut, IsRefusedWhenItsRowWasSentBack) {
  Register({});
  ASSERT_EQ(partition_->Ask<verbs::RegisterConsumer>({"p", {.name = "maker", .writes = {"id"}}}), absl::OkStatus());
  ASSERT_EQ(partition_->Ask<verbs::RegisterConsumer>({"p", {.name = "judge", .reads = {"id"}, .max_version_lag = 0}}),
            absl::OkStatus());
  int64_t version = 0;
  // What `id` is made from is too old a moment later.
  const auto send_back = [&] {
    ASSERT_EQ(partition_->Ask<verbs::PublishWeights>({"p", version + 1}), absl::OkStatus());
    EXPECT_EQ(partition_->Ask<verbs::Take>({.partition = "p", .consumer = "judge"}).status().code(),
              Code::kDeadlineExceeded);
  };
  const std::vector<RowId> rows = PutIds({1});
  for (const bool leased : {true, false}) {
    FillRequest id{.partition = "p", .rows = rows, .overwrite = true, .weights_version = ++version};
    ASSERT_EQ(id.batch.Add("id", Column::FromValues<float>({1})), absl::OkStatus());
    ASSERT_EQ(partition_->Ask<verbs::Fill>(id), absl::OkStatus());
    const Taken taken = TakeOne();
    FillRequest results = Results(rows, leased ? taken.lease : kNoLease);
    if (!leased) results.epochs = {taken.rows.epoch(0)};
    EXPECT_EQ(PutWhile(results, send_back).code(), Code::kFailedPrecondition);
    EXPECT_THAT(ReadyCells(), ElementsAre(0, 0, 0));
    EXPECT_EQ(StatusOfX().waiting, 1);
    EXPECT_EQ(StatusOfX().completed, 0);
  }
  EXPECT_EQ(StatusOfX().reset, 2);
}

TEST_F(LatePut, IsRefusedWhenItsRowWasCleared) {
  Register({});
  const std::vector<RowId> rows = PutIds({1, 2, 3});
  ASSERT_EQ(PutSmall(rows[2], 7), absl::OkStatus());
  const Taken taken = *partition_->Ask<verbs::Take>({.partition = "p", .consumer = "x", .min = 2, .max = 2});
  const int64_t held = Status().held_bytes;
  const absl::Status status = PutWhile(Results({rows[0]}, taken.lease), [&] {
    EXPECT_EQ(*partition_->Ask<verbs::Clear>({.partition = "p", .rows = {rows[0]}}), 1);
  });
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("row 0 is gone"));
  EXPECT_THAT(ReadyCells(), ElementsAre(2, 1, 0));
  EXPECT_LE(Status().held_bytes, held);
  EXPECT_EQ(Status().rows, 2);
  EXPECT_EQ(StatusOfX().leased, 1);
  EXPECT_EQ(Small(rows[2]), 7);
}

TEST_F(LatePut, LeavesNothingBehindWhenEverythingWasCleared) {
  const std::vector<RowId> rows = PutIds({1, 2});
  ASSERT_EQ(PutSmall(rows[1], 7), absl::OkStatus());
  EXPECT_EQ(PutWhile(Results({rows[0]}),
                     [&] { EXPECT_EQ(*partition_->Ask<verbs::Clear>({.partition = "p", .everything = true}), 2); })
                .code(),
            Code::kNotFound);
  // The block where it had a place outlived its last cell only until the put was over.
  EXPECT_EQ(Status().held_bytes, 0);
  const std::vector<RowId> again = PutIds({3});
  EXPECT_EQ(partition_->Ask<verbs::Fill>(Results(again)), absl::OkStatus());
  EXPECT_EQ(Small(again[0]), 5);
}

TEST_F(LatePut, OfANewRowIsRefusedWhenThePartitionWasSealed) {
  PutIds({1});
  const int64_t held = Status().held_bytes;
  const absl::Status status =
      PutWhile(NewRow(), [&] { EXPECT_EQ(partition_->Ask<verbs::Seal>({}), absl::OkStatus()); });
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("sealed"));
  EXPECT_EQ(Status().rows, 1);
  EXPECT_THAT(ReadyCells(), ElementsAre(1, 0, 0));
  EXPECT_EQ(Status().held_bytes, held);
}

TEST_F(LatePut, ToARowThatIsThereSucceedsWhenThePartitionWasSealed) {
  const std::vector<RowId> rows = PutIds({1});
  EXPECT_EQ(PutWhile(Results(rows), [&] { EXPECT_EQ(partition_->Ask<verbs::Seal>({}), absl::OkStatus()); }),
            absl::OkStatus());
  EXPECT_EQ(Small(rows[0]), 5);
}

TEST_F(LatePut, IsRefusedWhenItsConsumerWasRolledBack) {
  Register({.checkpointed = true});
  const std::vector<RowId> rows = PutIds({1, 2});
  ASSERT_EQ(PutSmall(rows[1], 7), absl::OkStatus());
  const Taken taken = TakeOne();
  const int64_t held = Status().held_bytes;
  FillRequest put = Results({rows[0]}, taken.lease);
  put.step = 1;
  EXPECT_EQ(PutWhile(put,
                     [&] {
                       EXPECT_EQ(partition_->Ask<verbs::Rollback>({"p", "x", 0}), absl::OkStatus());
                     })
                .code(),
            Code::kFailedPrecondition);
  EXPECT_THAT(ReadyCells(), ElementsAre(2, 1, 0));
  EXPECT_EQ(Status().held_bytes, held);
  EXPECT_EQ(StatusOfX().ready, 2);
  EXPECT_EQ(StatusOfX().uncommitted, 0);
}

TEST_F(LatePut, IsRefusedWhenItsStepWasCommitted) {
  Register({.checkpointed = true});
  const std::vector<RowId> rows = PutIds({1});
  const Taken taken = TakeOne();
  FillRequest put = Results(rows, taken.lease);
  put.step = 1;
  const absl::Status status = PutWhile(put, [&] {
    EXPECT_EQ(partition_->Ask<verbs::Commit>({"p", "x", 1}), absl::OkStatus());
  });
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("step 1"));
  EXPECT_EQ(StatusOfX().leased, 1);
  EXPECT_THAT(ReadyCells(), ElementsAre(1, 0, 0));
}

TEST_F(LatePut, IsRefusedWhenAnotherHasFilledTheCell) {
  const std::vector<RowId> rows = PutIds({1, 2});
  ASSERT_EQ(PutSmall(rows[1], 7), absl::OkStatus());
  const int64_t held = Status().held_bytes;
  const absl::Status status = PutWhile(Results({rows[0]}), [&] { EXPECT_EQ(PutSmall(rows[0], 8), absl::OkStatus()); });
  EXPECT_EQ(status.code(), Code::kAlreadyExists);
  EXPECT_THAT(status.message(), HasSubstr("'small' of row 0"));
  // Neither column is written.
  EXPECT_THAT(ReadyCells(), ElementsAre(2, 2, 0));
  EXPECT_EQ(Small(rows[0]), 8);
  EXPECT_EQ(Small(rows[1]), 7);
  EXPECT_EQ(Status().held_bytes, held);
}

TEST_F(LatePut, ThatOverwritesWinsWhenAnotherHasFilledTheCell) {
  const std::vector<RowId> rows = PutIds({1});
  FillRequest put = Results(rows);
  put.overwrite = true;
  EXPECT_EQ(PutWhile(put, [&] { EXPECT_EQ(PutSmall(rows[0], 8), absl::OkStatus()); }), absl::OkStatus());
  EXPECT_EQ(Small(rows[0]), 5);
  EXPECT_THAT(ReadyCells(), ElementsAre(1, 1, 1));
}

TEST_F(LatePut, IsRefusedWhenItsConsumerWasDropped) {
  Register({});
  const std::vector<RowId> rows = PutIds({1});
  const Taken taken = TakeOne();
  const int64_t held = Status().held_bytes;
  EXPECT_EQ(PutWhile(Results(rows, taken.lease),
                     [&] {
                       EXPECT_EQ(partition_->Ask<verbs::DropConsumer>({"p", "x"}), absl::OkStatus());
                       // Its place may be another's by then, and the name too.
                       Register({});
                     })
                .code(),
            Code::kFailedPrecondition);
  EXPECT_THAT(ReadyCells(), ElementsAre(1, 0, 0));
  EXPECT_EQ(Status().held_bytes, held);
  EXPECT_EQ(StatusOfX().ready, 1);
}

TEST_F(LatePut, IsRefusedWhenItsRowsWereGivenBackOrDone) {
  for (const bool done : {false, true}) {
    Make({});
    Register({});
    const std::vector<RowId> rows = PutIds({1});
    const Taken taken = TakeOne();
    const LeaseRequest all{.partition = "p", .lease = taken.lease};
    EXPECT_EQ(PutWhile(Results(rows, taken.lease),
                       [&] {
                         EXPECT_EQ(done ? partition_->Ask<verbs::Complete>(all) : partition_->Ask<verbs::Release>(all),
                                   absl::OkStatus());
                       })
                  .code(),
              Code::kFailedPrecondition);
    EXPECT_THAT(ReadyCells(), ElementsAre(1, 0, 0));
    EXPECT_EQ(StatusOfX().completed, done ? 1 : 0);
    EXPECT_EQ(StatusOfX().ready, done ? 0 : 1);
  }
}

TEST_F(LatePut, IsRefusedWhenThePartitionWasDropped) {
  const std::vector<RowId> rows = PutIds({1});
  const absl::StatusOr<Rows> view = partition_->Ask<verbs::Fetch>({.partition = "p", .rows = rows, .columns = {"id"}});
  ASSERT_EQ(view.status(), absl::OkStatus());
  const absl::Status status = PutWhile(Results(rows), [&] { partition_->Close(); });
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("'p' was dropped"));
  partition_.reset();
  EXPECT_EQ(view->Get<float>(0, "id")->front(), 1);
}

TEST_F(LatePut, ThatWouldBeOneTooManyInItsGroupIsRefused) {
  Make({.group_size = 2});
  PutIds({1}, {7});
  PutRequest put = NewRow();
  put.groups = {7};
  const absl::Status status = PutWhile(put, [&] { PutIds({2}, {7}); });
  EXPECT_THAT(status, Fails(Code::kInvalidArgument, {"group 7", "takes 2", "has 2"}));
  EXPECT_EQ(Status().rows, 2);
}

TEST_F(LatePut, OfAColumnThatAnotherHasGivenItsTypeMustFitIt) {
  for (const bool fits : {false, true}) {
    Make({.columns = {{"id", ColumnType::Dense(DType::kF32)}}, .growing = true});
    const std::vector<RowId> rows = PutIds({1, 2});
    const absl::Status status = PutWhile(Results({rows[0]}), [&] {
      FillRequest other{.partition = "p", .rows = {rows[1]}};
      const auto floats = Column::FromValues<float>({7});
      const auto longs = Column::FromValues<int64_t>({7});
      EXPECT_EQ(other.batch.Add("small", fits ? floats : longs), absl::OkStatus());
      EXPECT_EQ(partition_->Ask<verbs::Fill>(other), absl::OkStatus());
    });
    if (fits) {
      EXPECT_EQ(status, absl::OkStatus());
      EXPECT_EQ(Small(rows[0]), 5);
      EXPECT_EQ(Small(rows[1]), 7);
    } else {
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_THAT(status.message(), HasSubstr("'small' holds int64[]; given float32[]"));
      // The column `large` was not added either.
      EXPECT_EQ(Status().columns.size(), 2u);
    }
  }
}

TEST_F(LatePut, SucceedsWhenWhatChangedDoesNotConcernIt) {
  Register({});
  const std::vector<RowId> rows = PutIds({1});
  const Taken taken = TakeOne();
  EXPECT_EQ(PutWhile(Results(rows, taken.lease),
                     [&] { EXPECT_EQ(partition_->Ask<verbs::Fill>(Results(PutIds({2}))), absl::OkStatus()); }),
            absl::OkStatus());
  EXPECT_EQ(Small(rows[0]), 5);
  EXPECT_EQ(StatusOfX().completed, 1);
  EXPECT_EQ(StatusOfX().ready, 1);
}

}  // namespace
}  // namespace tdock::dock
