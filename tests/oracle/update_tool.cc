// For the oracle tests: one step of training, or its loss and gradients.
//
// usage: tdock_update MODEL OUT [--adapters FOLDER] [--reference MODEL] [--dtype float64] < batch.json > figures.json
//
// Standard input is {"objective": …, "group_size": 2, "rows": [{"group": 0, "prompt": […], "responses": […],
// "response_mask": […]}, …]}, and optionally "max_tokens" (of a micro-batch) and "max_row_tokens" (of what is packed
// together). Objectives:
//
//   sft
//   grpo    rows have "reward"; "kl_coef", "clip_low" and "clip_high"
//   rloo    the same; the KL is part of the reward, and what is clipped is the ratio of whole answers
//   dpo     groups are pairs, the chosen answer first; "beta", "label_smoothing", "loss_type", "average_log_prob"
//   reward  the same pairs, for a MODEL with a value head; "centre_coef", and with "use_margin" rows have "margin"
//
// The old log-probabilities are those of MODEL unless the rows have "old_log_probs", and the reference's those of
// --reference.
//
// The stages are those that training runs. With "optimizer", {"lr", "beta1", "beta2", "eps", "weight_decay",
// "clip_grad"}, OUT gets the weights after a step, in which "epochs" (1) updates are made with all rows. Without, it
// gets the gradients, as a checkpoint whose weights they are, or with --adapters as adapters. Standard output is
// {"metrics": {…}}, with "advantages" of grpo and rloo, one for each row.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/env.h"
#include "core/base/status.h"
#include "model/decoder/adapter_files.h"
#include "model/decoder/checkpoint.h"
#include "nlohmann/json.hpp"
#include "tdock/local_dock.h"
#include "trainer/stages/actor_objective.h"
#include "trainer/stages/advantage_stage.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/preference_objective.h"
#include "trainer/stages/stages.h"
#include "trainer/stages/supervised_objective.h"
#include "trainer/stages/update_stage.h"

namespace tdock::trainer {
namespace {

using Json = nlohmann::json;

struct Options {
  std::string model, out, adapters, reference;
  bool in_float64 = false;
};

absl::StatusOr<Policy> Load(const std::string& folder, bool in_float64) {
  const at::ScalarType type = in_float64 ? at::kDouble : at::kFloat;
  TDOCK_ASSIGN_OR_RETURN(model::Decoder decoder, model::LoadCheckpoint(Env::Real(), folder, at::kCPU, {.dtype = type}));
  decoder.SetComputeType(type);
  return Policy{std::move(decoder)};
}

// The rows of the batch in a dock, and the stages that make what the actor reads of them.
class Update {
 public:
  explicit Update(const Json& given) : given_(given), rows_(given.at("rows")), dock_(MakeLocalDock()) {}

  bool is(const char* objective) const { return given_.at("objective") == objective; }
  bool learns_from_rewards() const { return is("grpo") || is("rloo"); }
  bool has_reference() const { return learns_from_rewards() || is("dpo"); }
  bool has_old_log_probs() const { return rows_[0].contains("old_log_probs"); }

  absl::Status Put() {
    PartitionOptions partition{.name = "train",
                               .columns = ColumnsNamed({kPrompt, kResponses, kResponseMask}),
                               .group_size = given_.at("group_size")};
    if (learns_from_rewards()) {
      partition.columns = ColumnsNamed(
          {kPrompt, kResponses, kResponseMask, kRolloutLogProbs, kRewards, kRefLogProb, kOldLogProbs, kAdvantages});
    } else if (is("dpo")) {
      partition.columns = ColumnsNamed({kPrompt, kResponses, kResponseMask, kRefLogProb});
    } else if (is("reward")) {
      partition.columns = ColumnsNamed({kPrompt, kResponses, kResponseMask, kMargin});
    }
    TDOCK_RETURN_IF_ERROR(dock_->CreatePartition(partition));
    // Keeps the rows until their advantages were read.
    TDOCK_RETURN_IF_ERROR(dock_->RegisterConsumer("train", {.name = "reader", .reads = {kPrompt}}));
    PutRequest request{.partition = "train"};
    for (const Json& row : rows_) request.groups.push_back(row.at("group"));
    TDOCK_RETURN_IF_ERROR(Add<int32_t>(kPrompt, request));
    TDOCK_RETURN_IF_ERROR(Add<int32_t>(kResponses, request));
    TDOCK_RETURN_IF_ERROR(Add<uint8_t>(kResponseMask, request));
    if (learns_from_rewards()) {
      TDOCK_RETURN_IF_ERROR(AddNumbers("reward", kRewards, request));
      // Only figures need them.
      std::vector<std::vector<float>> rollout;
      for (const Json& row : rows_) rollout.emplace_back(row.at(kResponses).size());
      TDOCK_RETURN_IF_ERROR(request.batch.Add(kRolloutLogProbs, Column::FromRows(rollout)));
      if (has_old_log_probs()) TDOCK_RETURN_IF_ERROR(Add<float>(kOldLogProbs, request));
    } else if (is("reward")) {
      TDOCK_RETURN_IF_ERROR(AddNumbers("margin", kMargin, request));
    }
    TDOCK_ASSIGN_OR_RETURN(const PutResult put, dock_->Put(request));
    ids_ = put.rows;
    return absl::OkStatus();
  }

  absl::Status Run(std::span<const std::unique_ptr<Stage>> stages) {
    StageRunner runner(*dock_, "train");
    for (const auto& stage : stages) TDOCK_RETURN_IF_ERROR(runner.Add(*stage));
    StageContext context{1, metrics_};
    for (const auto& stage : stages) {
      const auto per_unit = stage->consumer().unit == Unit::kGroup ? given_.at("group_size").get<int64_t>() : 1;
      TDOCK_RETURN_IF_ERROR(runner.Run(*stage, static_cast<int64_t>(rows_.size()) / per_unit, context).status());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Json> Figures() {
    Json figures = {{"metrics", metrics_.Values()}};
    if (!learns_from_rewards()) return figures;
    TDOCK_ASSIGN_OR_RETURN(const Rows rows,
                           dock_->Fetch({.partition = "train", .rows = ids_, .columns = {kAdvantages}}));
    for (size_t i = 0; i < rows.size(); ++i) {
      TDOCK_ASSIGN_OR_RETURN(const auto values, rows.Get<float>(i, kAdvantages));
      figures["advantages"].push_back(*std::max_element(
          values.begin(), values.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));  // masked: 0
    }
    return figures;
  }

 private:
  template <typename T>
  absl::Status Add(const char* name, PutRequest& request) {
    std::vector<std::vector<T>> values;
    for (const Json& row : rows_) values.push_back(row.at(name).get<std::vector<T>>());
    return request.batch.Add(name, Column::FromRows(values));
  }

  absl::Status AddNumbers(const char* key, const char* column, PutRequest& request) {
    std::vector<float> numbers;
    for (const Json& row : rows_) numbers.push_back(row.at(key));
    return request.batch.Add(column, Column::FromValues(numbers));
  }

  const Json& given_;
  const Json& rows_;
  const std::unique_ptr<Dock> dock_;
  std::vector<RowId> ids_;
  StepMetrics metrics_;
};

// The objective, after the stages that make what it reads.
class Stages {
 public:
  Stages(const Json& given, const ForwardOptions& forward) : given_(given), forward_(forward) {}

  absl::StatusOr<std::vector<std::unique_ptr<Stage>>> Make(const Update& update, Policy& policy, const Options& options,
                                                           const UpdateOptions& training) {
    std::vector<std::unique_ptr<Stage>> stages;
    if (update.has_reference()) {
      TDOCK_ASSIGN_OR_RETURN(Policy loaded, Load(options.reference, options.in_float64));
      reference_.emplace(std::move(loaded));
      stages.push_back(MakeLogProbStage("ref", kRefLogProb, *reference_, forward_));
    }
    if (update.learns_from_rewards()) {
      if (!update.has_old_log_probs()) {
        stages.push_back(MakeLogProbStage("old_log_prob", kOldLogProbs, policy, forward_));
      }
      stages.push_back(MakeAdvantageStage(Advantages(update)));
    }
    stages.push_back(MakeUpdateStage(policy, MakeObjective(update), training));
    return stages;
  }

 private:
  AdvantageOptions Advantages(const Update& update) const {
    AdvantageOptions options;
    if (update.is("rloo")) {
      options.estimator = AdvantageEstimator::kRloo;
      options.kl = algo::KlRewardOptions{.coef = given_.at("kl_coef")};
    }
    return options;
  }

  std::shared_ptr<const Objective> MakeObjective(const Update& update) const {
    if (update.is("sft")) return MakeSupervisedObjective();
    if (update.is("dpo")) {
      const std::string type = given_.at("loss_type");
      return MakeDpoObjective({.loss = {.beta = given_.at("beta"),
                                        .label_smoothing = given_.at("label_smoothing"),
                                        .kind = type == "ipo"      ? algo::DpoKind::kIpo
                                                : type == "robust" ? algo::DpoKind::kRobust
                                                                   : algo::DpoKind::kSigmoid},
                               .average = given_.at("average_log_prob")});
    }
    if (update.is("reward")) {
      return MakeRewardObjective(
          {.bradley_terry = {.centre_coef = given_.at("centre_coef")}, .margins = given_.at("use_margin")});
    }
    algo::ActorLossOptions loss{.clip_low = given_.at("clip_low"), .clip_high = given_.at("clip_high")};
    if (update.is("rloo")) {
      loss.kind = algo::PolicyLossKind::kSequenceClip;
      loss.reduction.how = algo::Aggregation::kSeqMeanTokenMean;
    } else {
      loss.kl_coef = given_.at("kl_coef");
    }
    return MakeActorObjective({.loss = loss});
  }

  const Json& given_;
  const ForwardOptions forward_;
  std::optional<Policy> reference_;
};

// AdamW without moments takes a step of lr·g/(|g| + eps), which for a huge eps is the gradient times lr/eps. The factor
// lets the gradient survive beside the weight that the step is added to.
constexpr double kEps = 1e8;
constexpr double kFactor = 1024;

UpdateOptions Training(const Json& given, const ForwardOptions& forward) {
  const auto optimizer = given.find("optimizer");
  if (optimizer == given.end()) {
    return {.forward = forward,
            .optimizer = {.beta1 = 0, .beta2 = 0, .eps = kEps, .weight_decay = 0, .clip_grad = 0},
            .lr = kFactor * kEps,
            .schedule = {}};
  }
  return {.forward = forward,
          .optimizer = {.beta1 = optimizer->at("beta1"),
                        .beta2 = optimizer->at("beta2"),
                        .eps = optimizer->at("eps"),
                        .weight_decay = optimizer->at("weight_decay"),
                        .clip_grad = optimizer->at("clip_grad")},
          .lr = optimizer->at("lr"),
          .schedule = {},
          .epochs = given.value("epochs", int64_t{1})};
}

absl::Status RunUpdate(const Options& options) {
  at::NoGradGuard no_grad;
  at::set_num_threads(1);
  const Json given = Json::parse(std::cin);
  Update update(given);
  TDOCK_RETURN_IF_ERROR(update.Put());

  TDOCK_ASSIGN_OR_RETURN(Policy policy, Load(options.model, options.in_float64));
  if (!options.adapters.empty()) {
    TDOCK_RETURN_IF_ERROR(model::LoadAdapters(Env::Real(), options.adapters, &policy.decoder));
  }
  policy.decoder.SetTrainable(true);
  Workers workers(2);
  const ForwardOptions forward{.workers = workers,
                               .max_tokens = given.value("max_tokens", int64_t{0}),
                               .max_row_tokens = given.value("max_row_tokens", int64_t{64})};
  Stages made(given, forward);
  TDOCK_ASSIGN_OR_RETURN(const auto stages, made.Make(update, policy, options, Training(given, forward)));
  const std::vector<at::Tensor> trained = policy.decoder.trainable();
  std::vector<at::Tensor> before;
  for (const at::Tensor& parameter : trained) before.push_back(parameter.detach().clone());
  TDOCK_RETURN_IF_ERROR(update.Run(stages));
  if (!given.contains("optimizer")) {
    for (size_t i = 0; i < trained.size(); ++i) trained[i].copy_((before[i] - trained[i]) / kFactor);
  }

  TDOCK_ASSIGN_OR_RETURN(const Json figures, update.Figures());
  std::cout << figures.dump() << "\n";
  return options.adapters.empty() ? model::SaveCheckpoint(Env::Real(), options.out, policy.decoder)
                                  : model::SaveAdapters(Env::Real(), options.out, policy.decoder, options.model);
}

}  // namespace
}  // namespace tdock::trainer

int main(int argc, char** argv) {
  tdock::trainer::Options options;
  CLI::App app("One step of training, or its loss and gradients.");
  app.add_option("model", options.model)->required();
  app.add_option("out", options.out)->required();
  app.add_option("--adapters", options.adapters);
  app.add_option("--reference", options.reference);
  std::string dtype = "float32";
  app.add_option("--dtype", dtype)->check(CLI::IsMember({"float32", "float64"}));
  CLI11_PARSE(app, argc, argv);
  options.in_float64 = dtype == "float64";
  try {
    const absl::Status status = tdock::trainer::RunUpdate(options);
    if (!status.ok()) std::cerr << status.message() << "\n";
    return status.ok() ? 0 : 2;
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
