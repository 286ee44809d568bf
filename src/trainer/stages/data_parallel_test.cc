#include "trainer/stages/data_parallel.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "model/decoder/testing/models.h"
#include "runtime/collective/gloo/testing/rank_threads.h"
#include "tdock/local_dock.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/supervised_objective.h"
#include "trainer/stages/update_stage.h"
#include "trainer/stages/weight_average.h"

namespace tdock::trainer {
namespace {

using testing::ElementsAre;

TEST(DealPasses, GivesEachRankNearlyTheSameWork) {
  const std::vector<int64_t> costs = {5, 1, 4, 2, 3, 3};
  EXPECT_THAT(DealPasses(costs, 1), ElementsAre(ElementsAre(0, 1, 2, 3, 4, 5)));
  EXPECT_THAT(DealPasses(costs, 2), ElementsAre(ElementsAre(0, 1, 5), ElementsAre(2, 3, 4)));
  EXPECT_THAT(DealPasses(std::vector<int64_t>{7}, 3), ElementsAre(ElementsAre(0), ElementsAre(), ElementsAre()));
}

struct Training {
  int ranks = 1;
  Zero zero = Zero::kNone;
  std::string what = {};  // of the model: see MakeDecoder()
  int steps = 3;
  int64_t mini_batch_size = 0;
};

// What a rank has come to.
struct Trained {
  std::vector<at::Tensor> weights;
  std::map<std::string, double> figures;
  State state;                           // of the stage, and of the average
  std::vector<at::Tensor> average = {};  // weights, where one is kept
  absl::Status status;
};

model::Decoder MakeDecoder(const std::string& what) {
  model::Decoder decoder = model::Decoder::Random(model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/true), 1,
                                                  at::kCPU, at::kDouble);
  if (what == "adapters") {
    EXPECT_TRUE(decoder.AddAdapters({.rank = 2, .alpha = 4, .targets = {"q_proj", "down_proj"}}, 5).ok());
  }
  if (what == "dropout") decoder.SetDropout(0.3);
  if (what == "recomputed") decoder.SetRecomputed(model::Recomputed::kLayers);
  decoder.SetTrainable(true);
  return decoder;
}

// Seven answers of different lengths, in passes of one each.
PutRequest AnswersOf(int64_t step) {
  std::vector<std::vector<int32_t>> prompts, responses;
  std::vector<std::vector<uint8_t>> masks;
  for (int32_t i = 0; i < 7; ++i) {
    prompts.push_back({i % 5 + 1, 2});
    responses.emplace_back();
    for (int32_t j = 0; j <= (3 * i + static_cast<int32_t>(step)) % 7; ++j) responses.back().push_back((i + j) % 7 + 1);
    masks.emplace_back(responses.back().size(), 1);
    masks.back().front() = static_cast<uint8_t>(i % 2);
  }
  PutRequest request{.partition = "train"};
  EXPECT_TRUE(request.batch.Add(kPrompt, Column::FromRows(prompts)).ok());
  EXPECT_TRUE(request.batch.Add(kResponses, Column::FromRows(responses)).ok());
  EXPECT_TRUE(request.batch.Add(kResponseMask, Column::FromRows(masks)).ok());
  return request;
}

std::vector<at::Tensor> CopyOf(const model::Decoder& decoder) {
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : decoder.parameters()) weights.push_back(parameter.detach().clone());
  return weights;
}

// One rank's training, from the first weights or a state.
Trained Train(
    const Training& training, runtime::TensorCollective* group, const State* from = nullptr,
    const std::function<void(UpdateOptions&)>& change = [](UpdateOptions&) {}) {
  Policy policy{MakeDecoder(training.what)};
  Workers workers(2);
  UpdateOptions options{
      .forward = {.workers = workers, .micro_batch_size = 1}, .optimizer = {.clip_grad = 0.5}, .schedule = {}};
  options.lr = 1e-2;
  options.mini_batch_size = training.mini_batch_size;
  options.saves_weights = true;
  options.ranks = {.group = group, .zero = training.zero, .timeout = kPatience};
  change(options);
  const auto stage = MakeUpdateStage(policy, MakeSupervisedObjective("train/", 1.0), options);
  Trained trained;
  if (from != nullptr) {
    trained.status = stage->Load(*from);
    if (stage->average() != nullptr) trained.status.Update(from->Get(kAverage, *stage->average()));
  }
  const std::unique_ptr<Dock> dock = MakeLocalDock();
  EXPECT_TRUE(
      dock->CreatePartition({.name = "train", .columns = ColumnsNamed({kPrompt, kResponses, kResponseMask})}).ok());
  StageRunner runner(*dock, "train");
  EXPECT_TRUE(runner.Add(*stage).ok());
  StepMetrics metrics;
  for (int64_t step = policy.version + 1; step <= training.steps && trained.status.ok(); ++step) {
    EXPECT_TRUE(dock->Put(AnswersOf(step)).ok());
    StageContext context{step, metrics};
    trained.status = runner.Run(*stage, 7, context).status();
  }
  if (trained.status.ok()) {
    stage->Save(trained.state);
    if (stage->average() != nullptr) trained.state.Set(kAverage, *stage->average());
    trained.state = trained.state.Snapshot();
    trained.status = stage->GatherWeights();
  }
  if (trained.status.ok()) trained.weights = CopyOf(policy.decoder);
  if (trained.status.ok() && options.ema_decay > 0) {
    trained.status = stage->SwapAverage();
    trained.average = CopyOf(policy.decoder);
    trained.status.Update(stage->SwapAverage());
    const std::vector<at::Tensor> again = CopyOf(policy.decoder);
    for (size_t i = 0; i < again.size(); ++i) EXPECT_TRUE(at::equal(again[i], trained.weights[i])) << "parameter " << i;
  }
  trained.figures = metrics.Values();
  std::erase_if(trained.figures, [](const auto& figure) { return absl::StartsWith(figure.first, "timing_"); });
  return trained;
}

std::vector<Trained> TrainOnRanks(
    const Training& training, const State* from = nullptr,
    const std::function<void(UpdateOptions&)>& change = [](UpdateOptions&) {}) {
  std::vector<Trained> trained(static_cast<size_t>(training.ranks));
  runtime::RunOnRanks(training.ranks, [&](runtime::TensorCollective& group) {
    trained[static_cast<size_t>(group.rank())] = Train(training, &group, from, change);
  });
  return trained;
}

void ExpectNear(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& other) {
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) {
    const double norm = one[i].norm().item<double>();
    EXPECT_LE((one[i] - other[i]).norm().item<double>(), 1e-12 * norm) << "parameter " << i;
  }
}

void ExpectNear(const Trained& one, const Trained& other) {
  ASSERT_EQ(one.status, absl::OkStatus());
  ASSERT_EQ(other.status, absl::OkStatus());
  ExpectNear(one.weights, other.weights);
  ASSERT_EQ(one.figures.size(), other.figures.size());
  for (const auto& [name, value] : one.figures) {
    EXPECT_NEAR(other.figures.at(name), value, 1e-12 * std::abs(value)) << name;
  }
}

// A group that asks before each operation whether it fails.
class AskingGroup final : public runtime::TensorCollective {
 public:
  AskingGroup(runtime::TensorCollective& group, std::function<absl::Status()> ask)
      : group_(group), ask_(std::move(ask)) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  absl::StatusOr<Buffer> Broadcast(Buffer bytes, int root, absl::Time deadline) override {
    TDOCK_RETURN_IF_ERROR(Ask());
    return group_.Broadcast(std::move(bytes), root, deadline);
  }
  absl::StatusOr<int64_t> AllReduceMax(int64_t value, absl::Time deadline) override {
    TDOCK_RETURN_IF_ERROR(Ask());
    return group_.AllReduceMax(value, deadline);
  }
  absl::Status Barrier(absl::Time deadline) override {
    TDOCK_RETURN_IF_ERROR(Ask());
    return group_.Barrier(deadline);
  }
  using TensorCollective::AllReduceSum;
  absl::Status AllReduceSum(std::span<const at::Tensor> tensors, absl::Time deadline) override {
    TDOCK_RETURN_IF_ERROR(Ask());
    return group_.AllReduceSum(tensors, deadline);
  }
  absl::Status ReduceScatterSum(const at::Tensor& parts, const at::Tensor& own, absl::Time deadline) override {
    TDOCK_RETURN_IF_ERROR(Ask());
    return group_.ReduceScatterSum(parts, own, deadline);
  }
  absl::Status AllGather(const at::Tensor& own, const at::Tensor& parts, absl::Time deadline) override {
    TDOCK_RETURN_IF_ERROR(Ask());
    return group_.AllGather(own, parts, deadline);
  }
  absl::StatusOr<std::vector<Buffer>> AllGatherBytes(Buffer bytes, absl::Time deadline) override {
    TDOCK_RETURN_IF_ERROR(Ask());
    return group_.AllGatherBytes(std::move(bytes), deadline);
  }
  void Leave() override { group_.Leave(); }

 private:
  // An error of one rank ends the group.
  absl::Status Ask() {
    const absl::Status status = ask_();
    if (!status.ok()) group_.Leave();
    return status;
  }
  runtime::TensorCollective& group_;
  const std::function<absl::Status()> ask_;
};

class DataParallelTest : public testing::TestWithParam<Zero> {};
INSTANTIATE_TEST_SUITE_P(Zero, DataParallelTest,
                         testing::Values(Zero::kNone, Zero::kOptimizer, Zero::kGradients, Zero::kWeights));

TEST_P(DataParallelTest, ComesToTheWeightsAndFiguresOfOneProcess) {
  const std::map<std::string, std::vector<int>> cases = {
      {"", {1, 2, 4}}, {"adapters", {2}}, {"dropout", {3}}, {"recomputed", {2}}};
  for (const auto& [what, all_ranks] : cases) {
    const Training alone{.what = what, .steps = 2, .mini_batch_size = 5};
    const Trained expected = Train(alone, nullptr);
    for (const int ranks : all_ranks) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, ", what));
      Training training = alone;
      training.ranks = ranks;
      training.zero = GetParam();
      for (const Trained& trained : TrainOnRanks(training)) ExpectNear(expected, trained);
    }
  }
}

TEST_P(DataParallelTest, ARankWithoutAPassTakesPart) {
  const auto two_answers = [](UpdateOptions& options) { options.forward.micro_batch_size = 4; };
  const Trained expected = Train({}, nullptr, nullptr, two_answers);
  runtime::RunOnRanks(3, [&](runtime::TensorCollective& group) {  // of two passes
    ExpectNear(expected, Train({.ranks = 3, .zero = GetParam()}, &group, nullptr, two_answers));
  });
}

TEST_P(DataParallelTest, TheSameRanksComeToTheSameBits) {
  const Training training{.ranks = 3, .zero = GetParam()};
  const std::vector<Trained> first = TrainOnRanks(training), second = TrainOnRanks(training);
  for (size_t rank = 0; rank < first.size(); ++rank) {
    ASSERT_EQ(first[rank].weights.size(), first[0].weights.size());
    for (size_t i = 0; i < first[0].weights.size(); ++i) {
      EXPECT_TRUE(at::equal(first[rank].weights[i], first[0].weights[i])) << "rank " << rank;
      EXPECT_TRUE(at::equal(first[rank].weights[i], second[rank].weights[i])) << "rank " << rank;
    }
  }
}

// What all ranks have saved, as a checkpoint would have it.
State Together(const std::vector<Trained>& ranks) {
  State all;
  for (const auto& [name, text] : ranks.front().state.texts()) all.SetText(name, text);
  for (const Trained& rank : ranks) {
    if (&rank == &ranks.front() || !ranks.front().state.tensors().contains("optimizer/first/0")) {
      EXPECT_EQ(all.Merge(rank.state), absl::OkStatus());
    }
  }
  return all;
}

TEST_P(DataParallelTest, AnyNumberOfRanksGoesOnWithWhatOthersHaveSaved) {
  const Trained expected = Train({.steps = 4}, nullptr);
  Trained state = Train({.steps = 1}, nullptr);
  State saved = std::move(state.state);
  int steps = 1;
  for (const int ranks : {4, 2, 1}) {
    const std::vector<Trained> trained =
        TrainOnRanks({.ranks = ranks, .zero = ranks == 2 ? Zero::kNone : GetParam(), .steps = ++steps}, &saved);
    for (const Trained& rank : trained) ASSERT_EQ(rank.status, absl::OkStatus());
    saved = Together(trained);
    if (ranks > 1) continue;
    ExpectNear(expected.weights, trained[0].weights);
  }
}

// Of ranks that all step everything the first keeps it.
TEST_P(DataParallelTest, TheAverageIsThatOfOneProcessAndOutlivesAnotherNumberOfRanks) {
  for (const char* what : {"", "adapters"}) {
    SCOPED_TRACE(what);
    const auto averages = [](UpdateOptions& options) { options.ema_decay = 0.75; };
    const Trained expected = Train({.what = what, .steps = 3}, nullptr, nullptr, averages);
    State saved = Train({.what = what, .steps = 1}, nullptr, nullptr, averages).state;
    for (const int ranks : {4, 2}) {
      const std::vector<Trained> trained = TrainOnRanks(
          {.ranks = ranks, .zero = GetParam(), .what = what, .steps = ranks == 4 ? 2 : 3}, &saved, averages);
      for (const Trained& rank : trained) ASSERT_EQ(rank.status, absl::OkStatus());
      saved = Together(trained);
      if (ranks == 4) continue;
      for (const Trained& rank : trained) {
        ExpectNear(expected.weights, rank.weights);
        if (GetParam() != Zero::kNone || &rank == &trained.front()) ExpectNear(expected.average, rank.average);
      }
    }
    const Trained alone = Train({.what = what, .steps = 3}, nullptr, &saved, averages);
    ASSERT_EQ(alone.status, absl::OkStatus());
    ExpectNear(expected.average, alone.average);
    EXPECT_FALSE(std::equal(alone.average.begin(), alone.average.end(), alone.weights.begin(), at::equal));
  }
}

TEST_P(DataParallelTest, WhatIsLoadedIsSavedAgain) {
  const Trained alone = Train({.steps = 1}, nullptr);
  const std::vector<Trained> idle = TrainOnRanks({.ranks = 2, .zero = GetParam(), .steps = 1}, &alone.state);
  const State saved = Together(idle);
  for (const auto& [name, tensor] : alone.state.tensors()) {
    const at::Tensor again = at::zeros_like(tensor);
    ASSERT_EQ(saved.CopyPart(name, 0, tensor.numel(), again), absl::OkStatus());
    EXPECT_TRUE(at::equal(again, tensor)) << name;
  }
}

TEST_P(DataParallelTest, ARankThatFailsEndsTheOthers) {
  Mutex mu;
  std::set<std::string> errors;
  runtime::RunOnRanks(2, [&](runtime::TensorCollective& group) {
    const Trained trained = Train({.ranks = 2, .zero = GetParam()}, &group, nullptr, [&](UpdateOptions& options) {
      if (group.rank() == 1) options.publish = [](int64_t) { return absl::DataLossError("a bad disk"); };
    });
    EXPECT_FALSE(trained.status.ok());
    const MutexLock lock(mu);
    errors.insert(absl::StatusCodeToString(trained.status.code()));
  });
  EXPECT_THAT(errors, ElementsAre("DATA_LOSS", "UNAVAILABLE"));
}

// Not that a pass then had no weights, or that the other has left.
TEST_P(DataParallelTest, TheErrorOfAnOperationIsThatOfTheRank) {
  const auto train = [](const Training& training, int failing) {
    int operations = 0;  // of rank 1
    runtime::RunOnRanks(2, [&](runtime::TensorCollective& real) {
      AskingGroup group(real, [&]() -> absl::Status {
        if (real.rank() == 0 || operations++ != failing) return absl::OkStatus();
        return absl::DataLossError("the cable is out");
      });
      const absl::Status status = Train(training, &group).status;
      if (failing < 0) {
        EXPECT_EQ(status, absl::OkStatus());
      } else if (real.rank() == 1) {
        EXPECT_THAT(status, Fails(absl::StatusCode::kDataLoss, {"the cable is out"}));
      } else {
        EXPECT_THAT(status, Fails(absl::StatusCode::kUnavailable, {"rank 1 of 2", "left"}));
      }
    });
    return operations;
  };
  const Training training{.ranks = 2, .zero = GetParam(), .steps = 1};
  const int operations = train(training, -1);
  for (int failing = 0; failing < operations; failing += std::max(operations / 6, 1)) {
    SCOPED_TRACE(absl::StrCat("operation ", failing, " of ", operations));
    train(training, failing);
  }
}

TEST(DataParallel, ARankWithoutAPassHasFewLayersAtATimeAndReleasesThem) {
  model::ModelConfig config = model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/true);
  config.num_layers = 8;
  const at::Tensor tokens = model::RandomTokens(1, 4, config.vocab_size, 1, at::kCPU);
  for (const size_t passes : {1, 0}) {
    runtime::RunOnRanks(2, [&](runtime::TensorCollective& real) {
      model::Decoder decoder = model::TinyDecoder(config, 1, at::kCPU);
      decoder.SetTrainable(true);
      const auto whole = [&decoder] {
        int64_t layers = 0;
        for (size_t layer = 0; layer + 1 < decoder.units(); ++layer) {
          layers += decoder.ParametersOf(layer).front().storage().nbytes() > 0 ? 1 : 0;
        }
        return layers;
      };
      int64_t most = 0;
      // By the thread that also releases them, where there is no pass.
      AskingGroup group(real, [&]() -> absl::Status {
        if (real.rank() == 1) most = std::max(most, whole());
        return absl::OkStatus();
      });
      DataParallel training(decoder, {.group = &group, .zero = Zero::kWeights, .timeout = kPatience});
      EXPECT_EQ(whole(), config.num_layers);
      training.ReleaseWeights();
      EXPECT_EQ(whole(), 0);
      Workers workers(1);
      int computed = 0;
      const auto loss = [&](const model::Decoder& pass, size_t) {
        ++computed;
        return model::FullLogits(pass, tokens).square().mean();
      };
      EXPECT_EQ(training.Gradients(workers, std::vector<int64_t>(passes, 1), loss), absl::OkStatus());
      EXPECT_EQ(computed, real.rank() == 0 ? passes : 0);
      EXPECT_EQ(whole(), 0);
      // The last of the forward pass is the first of the backward pass, for which one more comes.
      EXPECT_LE(most, 3);
      EXPECT_EQ(most > 0, passes > 0 && real.rank() == 1);
    });
  }
}

TEST_P(DataParallelTest, AnInterruptionOfRank0IsOneOfAll) {
  runtime::RunOnRanks(2, [&](runtime::TensorCollective& group) {
    Policy policy{MakeDecoder("")};
    Workers workers(1);
    UpdateOptions options{
        .forward = {.workers = workers, .micro_batch_size = 1}, .optimizer = {}, .schedule = {}, .mini_batch_size = 3};
    options.ranks = {.group = &group, .zero = GetParam(), .timeout = kPatience};
    const auto stage = MakeUpdateStage(policy, MakeSupervisedObjective("train/", 1.0), options);
    const std::unique_ptr<Dock> dock = MakeLocalDock();
    EXPECT_TRUE(
        dock->CreatePartition({.name = "train", .columns = ColumnsNamed({kPrompt, kResponses, kResponseMask})}).ok());
    StageRunner runner(*dock, "train");
    EXPECT_TRUE(runner.Add(*stage).ok());
    EXPECT_TRUE(dock->Put(AnswersOf(1)).ok());
    StepMetrics metrics;
    StageContext context{1, metrics};
    int asked = 0;
    // Rank 1 would stop at once, but is not asked.
    context.check_stop = [&]() -> absl::Status {
      return ++asked == (group.rank() == 0 ? 2 : 1) ? absl::CancelledError("interrupted") : absl::OkStatus();
    };
    EXPECT_TRUE(absl::IsCancelled(runner.Run(*stage, 7, context).status()));
    EXPECT_EQ(policy.version, 2);
    EXPECT_EQ(runner.Run(*stage, 7, context).status(), absl::OkStatus());
    EXPECT_EQ(policy.version, 3);
  });
}

}  // namespace
}  // namespace tdock::trainer
