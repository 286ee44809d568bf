#include "trainer/distributed/training_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/testing/fails.h"
#include "model/decoder/testing/models.h"
#include "tdock/batch.h"
#include "tdock/column.h"
#include "tdock/local_dock.h"
#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/distributed/worker_training.h"

namespace tdock::trainer {
namespace {

using runtime::Value;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Answers = std::function<absl::StatusOr<Value>(int rank, const std::string& method, const Value& argument)>;

// Ranks that answer at once.
class FakeController final : public runtime::Controller {
 public:
  explicit FakeController(Answers answers) : answers_(std::move(answers)) {}
  std::string address() const override { return ""; }
  absl::Status AwaitWorkers(absl::Time) override { return absl::OkStatus(); }
  absl::Status Welcome(const Value&) override { return absl::OkStatus(); }
  absl::Status AwaitServing(absl::Time) override { return absl::OkStatus(); }
  std::shared_ptr<runtime::WorkerLink> worker(int rank) override { return std::make_shared<Link>(*this, rank); }
  std::string name(int) const override { return "actor"; }
  absl::Status status() const override { return absl::OkStatus(); }
  void End(const absl::Status&) override {}

 private:
  class Link final : public runtime::WorkerLink {
   public:
    Link(FakeController& controller, int rank) : controller_(controller), rank_(rank) {}
    std::string Describe() const override { return absl::StrCat("rank ", rank_); }
    void Invoke(std::string method, std::vector<Value> arguments, absl::Time,
                std::function<void(absl::StatusOr<Value>)> done) override {
      done(controller_.answers_(rank_, method, arguments.at(0)));
    }

   private:
    FakeController& controller_;
    const int rank_;
  };

  const Answers answers_;
};

// Trains nothing, and fails if it is told to.
class SharedStage final : public Stage {
 public:
  SharedStage() {
    consumer_.name = "actor";
    consumer_.reads = {"number"};
  }
  const ConsumerOptions& consumer() const override { return consumer_; }
  absl::StatusOr<StageOutput> Run(const Rows&, StageContext&) override {
    if (!failure.ok()) return failure;
    return StageOutput();
  }
  bool trains() const override { return true; }
  bool uses_policy() const override { return true; }
  bool has_shards() const override { return shards; }
  bool splits_weights() const override { return splits; }
  absl::Status GatherWeights() override {
    ++gathered;
    return absl::OkStatus();
  }

  absl::Status failure;
  bool shards = true, splits = true;
  int gathered = 0;

 private:
  ConsumerOptions consumer_;
};

class TrainingCallsTest : public testing::Test {
 protected:
  TrainingCallsTest()
      : controller_([this](int rank, const std::string& method, const Value& argument) -> absl::StatusOr<Value> {
          asked_.push_back(absl::StrCat(method, " ", rank));
          if (const auto found = failures_.find(method); found != failures_.end() && rank == 2) return found->second;
          return Answer(method, argument);
        }),
        dock_(MakeLocalDock({})),
        calls_({.controller = controller_,
                .dock = *dock_,
                .env = Env::Real(),
                .groups = [](const std::string&) { return TrainingRanks(); },
                .on_ended = [this](const RankSpan& span) { ended_.push_back(span.rank); }}),
        runner_(*dock_, "p") {
    policy_.version = 5;
    calls_.Add(stage_, policy_, {0, 1, 2});
  }

  absl::StatusOr<Value> Answer(const std::string& method, const Value&) const {
    if (method == "update_actor") return ToValue(ShareResult());
    if (method == "snapshot_state") return Value::Object{{"actor", Value::List{step_of_others_, int64_t{5}}}};
    if (method == "load_state") {
      return Value::Object{{"checkpoint", checkpoint_of_others_},
                           {"stages", Value::Object{{"actor", digest_of_others_}}}};
    }
    return Value();
  }

  absl::StatusOr<Taken> TakeRows() {
    TDOCK_RETURN_IF_ERROR(
        dock_->CreatePartition({.name = "p", .columns = {{"number", ColumnType::Dense(DType::kI32)}}}));
    TDOCK_RETURN_IF_ERROR(runner_.Add(stage_));
    TDOCK_ASSIGN_OR_RETURN(Column numbers, Column::FromValues(std::vector<int32_t>{1, 2, 3}));
    Batch batch;
    TDOCK_RETURN_IF_ERROR(batch.Add("number", std::move(numbers)));
    TDOCK_RETURN_IF_ERROR(dock_->Put({.partition = "p", .batch = std::move(batch)}).status());
    return dock_->Take({.partition = "p", .consumer = "actor", .min = 3, .max = 3});
  }

  absl::StatusOr<StageRunner::Round> RunStage() {
    TDOCK_ASSIGN_OR_RETURN(const Taken taken, TakeRows());
    StepMetrics metrics;
    StageContext context{4, metrics};
    return calls_.Run(stage_, "p", taken, context);
  }
  int64_t Completed() { return dock_->GetStatus("p")->consumers.front().status.completed; }

  std::vector<std::string> asked_;
  std::map<std::string, absl::Status> failures_;  // of rank 2, by method
  int64_t step_of_others_ = 0;
  std::string digest_of_others_, checkpoint_of_others_;
  std::vector<int> ended_;
  FakeController controller_;
  std::unique_ptr<Dock> dock_;
  SharedStage stage_;
  Policy policy_{model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/true), 1, at::kCPU)};
  TrainingCalls calls_;
  StageRunner runner_;
};

TEST_F(TrainingCallsTest, AllRanksComputeAndTheFirstCompletesTheRows) {
  const auto round = RunStage();
  ASSERT_TRUE(round.ok()) << round.status();
  EXPECT_THAT(asked_, ElementsAre("update_actor 1", "update_actor 2"));
  EXPECT_THAT(ended_, ElementsAre(0, 1, 2));
  EXPECT_EQ(Completed(), 3);
}

TEST_F(TrainingCallsTest, ARanksOwnErrorSaysMoreThanThatItIsGoneForTheOthers) {
  stage_.failure = absl::UnavailableError("rank 2 has left");
  failures_["update_actor"] = absl::InternalError("no memory");
  const auto round = RunStage();
  EXPECT_TRUE(absl::IsInternal(round.status())) << round.status();
  EXPECT_THAT(round.status().message(), AllOf(HasSubstr("rank 2, update_actor"), HasSubstr("no memory")));
  EXPECT_THAT(ended_, IsEmpty());
  EXPECT_EQ(Completed(), 0);
}

TEST_F(TrainingCallsTest, WeightsAreGatheredOnceAfterTheyWereTrained) {
  ASSERT_TRUE(calls_.PrepareWeights("actor").ok());
  EXPECT_EQ(stage_.gathered, 0);  // they are whole before the first step
  ASSERT_TRUE(RunStage().ok());
  asked_.clear();
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(calls_.PrepareWeights("actor").ok());
  EXPECT_EQ(stage_.gathered, 1);
  EXPECT_THAT(asked_, ElementsAre("gather_weights 1", "gather_weights 2"));
}

TEST_F(TrainingCallsTest, WeightsThatEveryRankKeepsAreNotGathered) {
  stage_.splits = false;
  ASSERT_TRUE(RunStage().ok());
  ASSERT_TRUE(calls_.PrepareWeights("actor").ok());
  EXPECT_EQ(stage_.gathered, 0);
}

TEST_F(TrainingCallsTest, NothingIsWrittenByOthersWhereRankZeroHasEverything) {
  stage_.shards = false;
  const auto write = calls_.SnapshotParts(4, 0);
  ASSERT_TRUE(write.ok()) << write.status();
  EXPECT_EQ(*write, nullptr);
  EXPECT_THAT(asked_, IsEmpty());
}

TEST_F(TrainingCallsTest, OthersWriteTheirParts) {
  const auto write = calls_.SnapshotParts(0, 0);
  ASSERT_TRUE(write.ok()) << write.status();
  EXPECT_TRUE((*write)("/folder").ok());
  EXPECT_THAT(asked_, ElementsAre("snapshot_state 1", "snapshot_state 2", "write_state 1", "write_state 2"));
}

TEST_F(TrainingCallsTest, ARankAtAnotherStepIsNamedWithBothPlaces) {
  step_of_others_ = 3;
  const auto write = calls_.SnapshotParts(0, 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(write.status())) << write.status();
  EXPECT_THAT(write.status().message(),
              AllOf(HasSubstr("rank 1 is at step 3, weights 5"), HasSubstr("rank 0 at step 0, weights 5")));
}

TEST_F(TrainingCallsTest, ARankThatCannotWriteItsPartIsNamed) {
  failures_["write_state"] = absl::ResourceExhaustedError("the disk is full");
  const auto write = calls_.SnapshotParts(0, 0);
  ASSERT_TRUE(write.ok()) << write.status();
  const absl::Status written = (*write)("/folder");
  EXPECT_THAT(written.message(), AllOf(HasSubstr("rank 2, write_state"), HasSubstr("the disk is full")));
}

TEST_F(TrainingCallsTest, RanksThatBeginWithOtherWeightsAreNamed) {
  digest_of_others_ = DigestOf(stage_, policy_.decoder);
  EXPECT_TRUE(calls_.Begin("").ok());
  digest_of_others_ = "another";
  const absl::Status begun = calls_.Begin("");
  EXPECT_TRUE(absl::IsFailedPrecondition(begun)) << begun;
  EXPECT_THAT(begun.message(), HasSubstr("stage 'actor' of rank 1, rank 2"));
}

// A checkpoint without files.
std::string NewCheckpoint(int64_t step) {
  std::string path = testing::TempDir() + "/training_calls_XXXXXX";
  CheckpointFolder folder(Env::Real(), ::mkdtemp(path.data()));
  const Manifest head{.place = {step, 0}, .saved = absl::FromUnixSeconds(1), .metrics = {}, .files = {}};
  EXPECT_EQ(folder.Write(head, [](const std::string&) { return absl::OkStatus(); }), absl::OkStatus());
  return folder.PathOf(head.place);
}

TEST_F(TrainingCallsTest, RanksThatSeeAnotherCheckpointUnderThePathAreNamed) {
  const std::string own = NewCheckpoint(3), other = NewCheckpoint(4);
  digest_of_others_ = DigestOf(stage_, policy_.decoder);
  checkpoint_of_others_ = *ManifestChecksum(Env::Real(), own);
  EXPECT_EQ(calls_.Begin(own), absl::OkStatus());
  checkpoint_of_others_ = *ManifestChecksum(Env::Real(), other);
  const absl::Status begun = calls_.Begin(own);
  EXPECT_THAT(begun, Fails(absl::StatusCode::kFailedPrecondition, {own, "rank 1, rank 2", "one folder"}));
}

// What a worker answers, or its error.
absl::StatusOr<Value> LoadedBy(const std::string& folder) {
  const std::unique_ptr<Dock> dock = MakeLocalDock({});
  Policy policy{model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/true), 1, at::kCPU)};
  std::map<std::string, RoleModel> models;
  const TrainingGroups groups;
  std::vector<std::unique_ptr<Stage>> stages;
  stages.push_back(std::make_unique<SharedStage>());
  WorkerTraining training({.env = Env::Real(),
                           .dock = *dock,
                           .policy = policy,
                           .models = models,
                           .groups = groups,
                           .check_stop = [] { return absl::OkStatus(); },
                           .progress = [](const std::string&) {},
                           .on_weights = [] {}},
                          stages);
  runtime::MethodTable methods;
  TDOCK_RETURN_IF_ERROR(training.AddTo(methods));
  return methods.Call("load_state", {folder}, absl::InfiniteFuture());
}

TEST(WorkerTraining, ReadsNoCheckpointThatIsNotAsItsManifestSays) {
  ASSERT_TRUE(LoadedBy("").ok());
  const std::string folder = NewCheckpoint(3);
  EXPECT_THAT(LoadedBy(folder).status().message(), testing::Not(HasSubstr("has changed")));  // it lacks the model
  Manifest with_file = *ReadManifest(Env::Real(), folder);
  with_file.files["state.json"] = {.bytes = 2, .checksum = 0};
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), folder + "/manifest.json", ManifestJson(with_file)).ok());
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), folder + "/state.json", "{}").ok());
  EXPECT_THAT(LoadedBy(folder).status(), Fails(absl::StatusCode::kDataLoss, {"state.json has changed", "rank 0"}));
}

}  // namespace
}  // namespace tdock::trainer
