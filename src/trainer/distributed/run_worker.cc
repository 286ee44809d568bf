#include "trainer/distributed/run_worker.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "runtime/dispatch/method_table.h"
#include "trainer/stages/guard.h"

namespace tdock::trainer {
namespace {

using runtime::Value;

constexpr absl::Duration kReceivingTime = absl::Minutes(10);
constexpr absl::Duration kBetweenSigns = absl::Milliseconds(200);

}  // namespace

RunWorker::RunWorker(Recipe& recipe, RunInputs inputs, const Options& options)
    : recipe_(recipe),
      config_(recipe.config()),
      inputs_(std::move(inputs)),
      options_(options),
      workers_(static_cast<int>(config_.threads), [] { at::init_num_threads(); }),
      policy_{std::move(*inputs_.decoder)},
      models_(std::move(inputs_.models)),
      serves_(Streams(config_) && RunsTogether(config_)),
      receiver_(options.dock, absl::StrCat("rank-", options.rank)) {}

absl::Status RunWorker::Prepare() {
  policy_.decoder.SetTrainable(true);
  for (auto& [name, model] : models_) model.policy.decoder.SetTrainable(model.role.trained);
  TDOCK_ASSIGN_OR_RETURN(
      plan_, recipe_.MakePlan({.tokenizer = *inputs_.tokenizer,
                               .policy = policy_,
                               .models = models_,
                               .reward = *inputs_.reward,
                               .workers = workers_,
                               .end_tokens = inputs_.end_tokens,
                               .validation = {},
                               .chat_template = inputs_.chat_template ? &*inputs_.chat_template : nullptr,
                               .ptx = inputs_.ptx.train.get(),
                               .total_steps = options_.total_steps,
                               .max_row_tokens = MaxRowTokens(policy_.decoder.config()),
                               .rounding_seed = SeedFor(config_, SeedPurpose::kRounding),
                               .publish = [](int64_t) { return absl::OkStatus(); },
                               .log = options_.log,
                               .ema_decay = config_.trainer.ema_decay,
                               .served = serves_ ? &served_ : nullptr,
                               .ranks = [this](const std::string& role) { return options_.training.Of(role); },
                               .check_stop = [this] { return options_.session.status(); }}));
  // Those of other ranks are gone with what they hold.
  std::erase_if(plan_.stages, [this](const std::unique_ptr<Stage>& stage) {
    const std::vector<int> ranks = RanksOf(*stage, options_.roles);
    return std::find(ranks.begin(), ranks.end(), options_.rank) == ranks.end();
  });
  std::vector<std::string> names;
  for (const auto& stage : plan_.stages) names.push_back(stage->consumer().name);
  options_.log(names.empty() ? "carries out no stage: with these roles, the run needs fewer processes"
                             : absl::StrCat("carries out ", absl::StrJoin(names, ", ")));
  stages_ = std::make_unique<WorkerStages>(plan_.stages, options_.dock, options_.env);
  training_ = std::make_unique<WorkerTraining>(
      WorkerTraining::Options{.env = options_.env,
                              .dock = options_.dock,
                              .policy = policy_,
                              .models = models_,
                              .groups = options_.training,
                              .check_stop = [this] { return options_.session.status(); },
                              .progress = [this](const std::string& stage) { ShowProgress(stage); },
                              .on_weights = [this] { ServeOwnWeights(); }},
      plan_.stages);
  return absl::OkStatus();
}

void RunWorker::ShowProgress(const std::string& stage) {
  const absl::Time now = absl::Now();
  {
    const MutexLock lock(mu_);
    absl::Time& shown = shown_.try_emplace(stage, absl::InfinitePast()).first->second;
    if (now < shown + kBetweenSigns) return;
    shown = now;
  }
  options_.session.Notify("progress", stage);
}

absl::Status RunWorker::UpdateWeights(int64_t version) {
  whole_ = false;
  const absl::StatusOr<WeightsSent> received = receiver_.Receive(policy_.decoder, version, absl::Now() + kReceivingTime,
                                                                 [this] { return options_.session.status(); });
  TDOCK_RETURN_IF_ERROR(received.status());
  policy_.version = version;
  // What is sampled with while the next version arrives.
  if (serves_) served_.Publish(std::make_shared<const model::Decoder>(policy_.decoder.Clone()), version);
  whole_ = true;
  return absl::OkStatus();
}

// What answers are sampled with while this process goes on training.
void RunWorker::ServeOwnWeights() {
  const auto samples = [](const std::unique_ptr<Stage>& stage) { return stage->consumer().name == "rollout"; };
  if (!serves_ || std::none_of(plan_.stages.begin(), plan_.stages.end(), samples)) return;
  // Of all weights: those beside adapters may be gone while it trains, too.
  served_.Publish(std::make_shared<const model::Decoder>(policy_.decoder.Clone()), policy_.version);
}

absl::Status RunWorker::AddMethods(runtime::MethodTable& methods) {
  const auto run = [this](const Value& call) -> absl::StatusOr<Value> {
    return Guarded([&]() -> absl::StatusOr<Value> {
      TDOCK_ASSIGN_OR_RETURN(const StageShare share, ShareIn(call));
      const bool has_copy = serves_ && share.stage == "rollout";
      if (!whole_ && !has_copy) {
        return absl::FailedPreconditionError("the weights of this process are torn: their update failed");
      }
      const WorkerStages::Signs signs{.check_stop = [this] { return options_.session.status(); },
                                      .progress = [this, &share] { ShowProgress(share.stage); }};
      TDOCK_ASSIGN_OR_RETURN(const ShareResult result, stages_->Run(share, signs));
      return ToValue(result);
    });
  };
  TDOCK_RETURN_IF_ERROR(training_->AddTo(methods));
  for (const auto& stage : plan_.stages) {
    if (stage->trains()) continue;
    TDOCK_RETURN_IF_ERROR(methods.Serve(*MethodOf(stage->consumer().name), run));
  }
  const auto update = [this](const Value& version) -> absl::StatusOr<Value> {
    const absl::StatusOr<int64_t> number = version.Get<int64_t>();
    if (!number.ok()) return number.status();
    const absl::Status updated = Guarded([&] { return UpdateWeights(*number); });
    return updated.ok() ? absl::StatusOr<Value>(Value()) : updated;
  };
  TDOCK_RETURN_IF_ERROR(methods.Serve(kUpdateWeights, update));
  return methods.Serve(kInterrupt, [this](const Value& argument) -> absl::StatusOr<Value> {
    TDOCK_ASSIGN_OR_RETURN(const std::string stage, argument.Get<std::string>());
    stages_->Interrupt(stage);
    return Value();
  });
}

absl::Status RunWorker::Serve() {
  runtime::MethodTable methods;
  TDOCK_RETURN_IF_ERROR(AddMethods(methods));
  return options_.session.Serve(methods);
}

}  // namespace tdock::trainer
