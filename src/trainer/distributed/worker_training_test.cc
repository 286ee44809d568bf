#include "trainer/distributed/worker_training.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/testing/fails.h"
#include "model/decoder/testing/models.h"
#include "runtime/dispatch/method_table.h"
#include "tdock/local_dock.h"
#include "trainer/checkpoint/state_files.h"

namespace tdock::trainer {
namespace {

using runtime::Value;
using testing::IsEmpty;

// Its state is a number, of which this rank has all.
class NumberStage final : public Stage {
 public:
  NumberStage() { consumer_.name = "actor"; }
  const ConsumerOptions& consumer() const override { return consumer_; }
  absl::StatusOr<StageOutput> Run(const Rows&, StageContext&) override { return StageOutput(); }
  bool trains() const override { return true; }
  bool has_shards() const override { return true; }
  void Save(State& state) const override { state.SetTensor("number", number); }

  const at::Tensor number = at::zeros({1});

 private:
  ConsumerOptions consumer_;
};

class WorkerTrainingTest : public testing::Test {
 protected:
  WorkerTrainingTest()  // tests of it run at the same time
      : folder_(JoinPath(testing::TempDir(), std::string("worker_training_") +
                                                 testing::UnitTest::GetInstance()->current_test_info()->name())) {
    EXPECT_TRUE(Env::Real().RemoveAll(folder_).ok());
    EXPECT_TRUE(Env::Real().CreateFolders(folder_).ok());
    auto stage = std::make_unique<NumberStage>();
    number_ = stage->number;
    stages_.push_back(std::move(stage));
    training_ = std::make_unique<WorkerTraining>(WorkerTraining::Options{.env = Env::Real(),
                                                                         .dock = *dock_,
                                                                         .policy = policy_,
                                                                         .models = models_,
                                                                         .groups = groups_,
                                                                         .check_stop = [] { return absl::OkStatus(); },
                                                                         .progress = [](const std::string&) {},
                                                                         .on_weights = [] {}},
                                                 stages_);
    EXPECT_EQ(training_->AddTo(methods_), absl::OkStatus());
  }

  absl::Status Snapshot(int64_t step, int64_t part = 0) {
    return methods_.Call("snapshot_state", {Value::Object{{"step", step}, {"part", part}}}, absl::InfiniteFuture())
        .status();
  }
  absl::Status Write(int64_t step, int64_t part = 0) {
    const Value::Object call = {
        {"folder", folder_}, {"step", step}, {"part", part}, {"rank", int64_t{1}}, {"ranks", int64_t{2}}};
    return methods_.Call("write_state", {call}, absl::InfiniteFuture()).status();
  }
  // What was written of the stage.
  float Written() {
    EXPECT_EQ(WriteState(Env::Real(), folder_, State()), absl::OkStatus());
    const absl::StatusOr<State> state = ReadState(Env::Real(), folder_);
    EXPECT_TRUE(state.ok()) << state.status();
    return state->tensors().at("stages/actor/number").item<float>();
  }

  const std::string folder_;
  at::Tensor number_;
  std::unique_ptr<Dock> dock_ = MakeLocalDock({});
  Policy policy_{model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/true), 1, at::kCPU)};
  std::map<std::string, RoleModel> models_;
  TrainingGroups groups_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::unique_ptr<WorkerTraining> training_;
  runtime::MethodTable methods_;
};

TEST_F(WorkerTrainingTest, WhatIsWrittenIsOfTheMomentOfTheSnapshot) {
  number_.fill_(7);
  ASSERT_EQ(Snapshot(7), absl::OkStatus());
  number_.fill_(8);
  ASSERT_EQ(Write(7), absl::OkStatus());
  EXPECT_EQ(Written(), 7);
}

TEST_F(WorkerTrainingTest, SavesThatOverlapAreNeverMixed) {
  number_.fill_(7);
  ASSERT_EQ(Snapshot(7), absl::OkStatus());
  number_.fill_(8);
  ASSERT_EQ(Snapshot(8), absl::OkStatus());
  // Of the first there is nothing left, and the second is not written in its place.
  for (const auto& [step, part] : std::vector<std::pair<int64_t, int64_t>>{{7, 0}, {8, 1}, {0, 0}}) {
    EXPECT_THAT(Write(step, part), Fails(absl::StatusCode::kFailedPrecondition, {absl::StrCat("step ", step)}));
    EXPECT_THAT(*Env::Real().List(folder_), IsEmpty());
  }
  EXPECT_EQ(Write(8), absl::OkStatus());
  EXPECT_EQ(Written(), 8);
  EXPECT_TRUE(absl::IsFailedPrecondition(Write(8)));  // it is written once
}

TEST_F(WorkerTrainingTest, NothingIsWrittenWithoutASnapshot) {
  EXPECT_TRUE(absl::IsFailedPrecondition(Write(0)));
  EXPECT_THAT(*Env::Real().List(folder_), IsEmpty());
}

}  // namespace
}  // namespace tdock::trainer
