#include "trainer/loop/run_stages.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "trainer/loop/feed.h"
#include "trainer/loop/run_length.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/weight_average.h"

namespace tdock::trainer {
namespace {

constexpr char kAhead[] = "loop/ahead";

// Of a stage that reads answers, and for which it does not matter which of them it is given together.
void BalanceLengths(const Stage& stage, ConsumerOptions& consumer) {
  const std::vector<std::string>& reads = consumer.reads;
  if (stage.together() == Together::kResult || std::find(reads.begin(), reads.end(), kResponses) == reads.end()) return;
  consumer.sampler = Sampler::kLengthBalanced;
  consumer.length_column = kResponses;
}

}  // namespace

RunStages::RunStages(const Parts& parts)
    : parts_(parts),
      config_(parts.recipe.config()),
      streams_(Streams(config_)),
      runner_(parts.partition.dock(), parts.partition.name()),
      feeder_(*parts.inputs.data.train, LoaderOptionsFor(config_, parts.context)),
      watch_({.clock = parts.context.clock,
              .patience = RunsTogether(config_) ? absl::Seconds(config_.trainer.executor.stage_timeout)
                                                : absl::InfiniteDuration(),
              .give_up = parts.context.give_up,
              .grace = GraceOf(config_.trainer.executor)}) {}

RunParts RunStages::PartsOfPlan() {
  const RunInputs& inputs = parts_.inputs;
  Policy& policy = parts_.models.policy;
  return {.tokenizer = *inputs.tokenizer,
          .policy = policy,
          .models = parts_.models.others,
          .reward = parts_.reward,
          .workers = parts_.workers,
          .end_tokens = inputs.end_tokens,
          .validation = inputs.validation,
          .chat_template = inputs.chat_template ? &*inputs.chat_template : nullptr,
          .ptx = inputs.ptx.train.get(),
          .total_steps = parts_.total_steps,
          .max_row_tokens = MaxRowTokens(policy.decoder.config()),
          .rounding_seed = SeedFor(config_, SeedPurpose::kRounding),
          .publish = [this](int64_t version) { return OnNewWeights(version); },
          .log = parts_.context.log,
          .ema_decay = config_.trainer.ema_decay,
          .served = streams_ && RunsTogether(config_) ? &served_ : nullptr,
          .ranks = parts_.context.training_ranks,
          .check_stop = [this] { return CheckStop(); }};
}

absl::Status RunStages::Make(const std::function<absl::Status(const PartitionOptions&)>& make_partition) {
  parts_.models.BeginTraining();
  TDOCK_ASSIGN_OR_RETURN(plan_, parts_.recipe.MakePlan(PartsOfPlan()));
  TDOCK_RETURN_IF_ERROR(parts_.partition.CheckExternal(plan_.stages));
  SetFeeder();
  if (parts_.recipe.phase() == data::Phase::kPrompt) {
    for (const std::string& kept : config_.data.columns.keep) plan_.columns.push_back({kept, ColumnType::Bytes()});
  }
  const int64_t group_size = parts_.recipe.samples_per_prompt();
  TDOCK_RETURN_IF_ERROR(
      make_partition({.columns = plan_.columns, .group_size = group_size, .retain_for = RetainedFor()}));
  if (plan_.gathering.has_value()) {
    gather_.emplace(*plan_.gathering, parts_.partition.dock(), parts_.partition.name(), plan_.columns, group_size,
                    plan_.stages);
    TDOCK_RETURN_IF_ERROR(make_partition(gather_->options()));
    TDOCK_RETURN_IF_ERROR(gather_->Register());
  }
  TDOCK_RETURN_IF_ERROR(RegisterStages());
  TDOCK_RETURN_IF_ERROR(AttachRemote());
  stage_run_.emplace(StageRun{.partition = parts_.partition,
                              .runner = runner_,
                              .stages = plan_.stages,
                              .group_size = group_size,
                              .section = config_.trainer.executor,
                              .meter = parts_.meter,
                              .timeline = parts_.timeline,
                              .watch = watch_,
                              .context = parts_.context});
  return absl::OkStatus();
}

void RunStages::SetFeeder() {
  feeder_.SetOptions({.samples_per_prompt = parts_.recipe.samples_per_prompt(),
                      .makes_groups = plan_.feeds_groups,
                      .columns = plan_.feed,
                      .report = [this](Feeder::Samples samples, StepMetrics& metrics) {
                        ReportLengths(parts_.recipe.phase(), samples, config_.data.max_prompt_length, metrics);
                      }});
}

absl::Status RunStages::AttachRemote() {
  RemoteStages* const remote = parts_.context.remote;
  if (remote == nullptr) return absl::OkStatus();
  runner_.SetRemote(remote);
  if (gather_.has_value()) gather_->SetRemote(remote);
  StagesOfRun run{.stages = plan_.stages,
                  .policy = parts_.models.policy,
                  .trained = {{"actor", &parts_.models.policy}},
                  .serves = streams_ && RunsTogether(config_),
                  .total_steps = parts_.total_steps};
  for (const auto& [name, model] : parts_.models.others) {
    if (model.role.trained) run.trained[name] = &model.policy;
  }
  return remote->Attach(run);
}

absl::Status RunStages::RegisterStages() {
  for (size_t i = gather_.has_value() ? plan_.gathering->stages : 0; i < plan_.stages.size(); ++i) {
    const bool last = i + 1 == plan_.stages.size();
    const bool begins_step = streams_ && i == StreamedStages(plan_.stages);
    TDOCK_RETURN_IF_ERROR(
        runner_.Add(*plan_.stages[i], last && parts_.partition.outlives_run(), [&](ConsumerOptions& consumer) {
          if (streams_) AddNeedsOfStep(plan_.stages, i, consumer.reads);
          if (begins_step) BeginStep(consumer);
          if (config_.trainer.executor.balance_batch) BalanceLengths(*plan_.stages[i], consumer);
        }));
  }
  return absl::OkStatus();
}

// Rows stay until every stage is done with them; first the last one, which says what was trained on.
std::vector<std::string> RunStages::RetainedFor() const {
  std::vector<std::string> names;
  for (size_t i = plan_.stages.size(); i-- > (plan_.gathering.has_value() ? plan_.gathering->stages : 0);) {
    names.push_back(plan_.stages[i]->consumer().name);
  }
  return names;
}

// How the first stage of a step takes what was answered ahead.
void RunStages::BeginStep(ConsumerOptions& consumer) const {
  consumer.unit = Unit::kGroup;
  if (config_.async.max_version_lag >= 0) consumer.max_version_lag = config_.async.max_version_lag;
  consumer.stale = config_.async.stale;
}

std::vector<ExplainedStage> RunStages::Explained() const {
  std::vector<ExplainedStage> stages;
  for (size_t i = 0; i < plan_.stages.size(); ++i) {
    const bool gathers = gather_.has_value() && i < plan_.gathering->stages;
    stages.push_back({.name = plan_.stages[i]->consumer().name,
                      .partition = gathers ? gather_->partition() : parts_.partition.name(),
                      .external = parts_.partition.IsExternal(*plan_.stages[i])});
  }
  return stages;
}

bool RunStages::SplitsPolicy() const {
  return std::any_of(plan_.stages.begin(), plan_.stages.end(), [this](const std::unique_ptr<Stage>& stage) {
    return stage->splits_weights() && !parts_.models.others.contains(stage->consumer().name);  // as a critic
  });
}

absl::Status RunStages::OnNewWeights(int64_t version) {
  Dock& dock = parts_.partition.dock();
  if (gather_.has_value()) TDOCK_RETURN_IF_ERROR(dock.PublishWeights(gather_->partition(), version));
  return dock.PublishWeights(parts_.partition.name(), version);
}

// Gives the rollout the weights as they are.
absl::Status RunStages::ServeWeights() {
  if (!RunsTogether(config_)) return absl::OkStatus();  // answers are sampled with the policy itself
  const Policy& policy = parts_.models.policy;
  if (parts_.context.remote != nullptr) {
    TDOCK_RETURN_IF_ERROR(parts_.context.remote->PrepareWeights());
    TDOCK_RETURN_IF_ERROR(parts_.context.remote->Serve(policy.decoder, policy.version));
  }
  // Where ranks train together, those beside adapters may be gone meanwhile, too.
  const bool alone = parts_.context.remote == nullptr;
  served_.Publish(std::make_shared<const model::Decoder>(alone ? policy.decoder.Snapshot() : policy.decoder.Clone()),
                  policy.version);
  return absl::OkStatus();
}

Stage* RunStages::Averaging() const {
  const auto found = std::find_if(plan_.stages.begin(), plan_.stages.end(),
                                  [](const std::unique_ptr<Stage>& stage) { return stage->average() != nullptr; });
  return found == plan_.stages.end() ? nullptr : found->get();
}

absl::Status RunStages::SwapAverage() {
  Stage* const stage = Averaging();
  if (stage == nullptr) return absl::OkStatus();
  RemoteStages* const remote = parts_.context.remote;
  return remote != nullptr && remote->Carries(*stage) ? remote->SwapAverage(*stage) : stage->SwapAverage();
}

void RunStages::Begin(int64_t steps) {
  const bool is_trained = is_open_ && next_ == plan_.stages.size();  // the open step, of what is to be carried out
  if (!streams_) return;
  const int64_t groups = config_.data.train_batch_size;
  const int64_t most = config_.trainer.total_training_steps;
  streaming_.emplace(*stage_run_, feeder_,
                     Streaming::Options{.step_groups = groups,
                                        .batch_groups = DrawnAtOnce(config_),
                                        .most_groups = (1 + std::max<int64_t>(config_.async.steps_ahead, 1)) * groups,
                                        .limited = most > 0,
                                        .steps = most - steps - (is_trained ? 1 : 0),
                                        .on_threads = RunsTogether(config_),
                                        .serve_weights = [this] { return ServeWeights(); }});
}

absl::StatusOr<bool> RunStages::HasMore() {
  return streaming_.has_value() ? streaming_->HasMore() : feeder_.ReadAhead();
}

absl::Status RunStages::OpenStep(int64_t step, StepMetrics& metrics) {
  CloseStep();
  if (step > 0 && !gather_.has_value() && !streaming_.has_value()) {
    TDOCK_RETURN_IF_ERROR(feeder_.Feed(parts_.partition.dock(), parts_.partition.name(), metrics).status());
  }
  is_open_ = true;
  return absl::OkStatus();
}

void RunStages::CloseStep() {
  is_open_ = false;
  has_trained_ = false;
  next_ = 0;
}

// For what takes long. What a dock of others holds is not saved: what has changed the weights is finished.
absl::Status RunStages::CheckStop() const { return CanBeSaved() ? parts_.context.CheckStop() : absl::OkStatus(); }

absl::Status RunStages::RunStep(int64_t step, StepMetrics& metrics) {
  StageContext context{step, metrics};
  context.check_stop = [this] { return CheckStop(); };
  const BeginStage begin = [this](Stage& stage) {
    if (stage.trains()) has_trained_ = true;
    return CheckStop();
  };
  if (next_ == plan_.stages.size()) {
    // A step that was stopped after it had trained, before it was over.
  } else if (streaming_.has_value()) {
    if (!streaming_->started()) TDOCK_RETURN_IF_ERROR(streaming_->Start());
    TDOCK_RETURN_IF_ERROR(streaming_->RunStep(context));
  } else {
    if (gather_.has_value() && next_ == 0) TDOCK_RETURN_IF_ERROR(GatherRows(context));
    TDOCK_RETURN_IF_ERROR(RunsTogether(config_) ? RunTogether(*stage_run_, next_, context, begin)
                                                : RunInTurn(*stage_run_, next_, context, begin));
  }
  next_ = plan_.stages.size();
  ReportData(metrics);
  return ReportDock(metrics);
}

// Carries out the stages of the plan that come in rounds; the others get what those give.
absl::Status RunStages::GatherRows(StageContext& context) {
  const auto feed = [&] { return FeedRound(context.metrics); };
  context.progress = [this] { watch_.Progress(); };
  TDOCK_RETURN_IF_ERROR(gather_->Run(context, parts_.meter, watch_, feed).status());
  next_ = plan_.gathering->stages;
  return absl::OkStatus();
}

// The prompts of a round of gathering.
absl::StatusOr<int64_t> RunStages::FeedRound(StepMetrics& metrics) {
  const absl::StatusOr<bool> more = feeder_.ReadAhead();
  if (!more.ok()) return Annotate(more.status(), "reading the training data");
  if (!*more) return 0;
  TDOCK_ASSIGN_OR_RETURN(const PutResult fed, feeder_.Feed(parts_.partition.dock(), gather_->partition(), metrics));
  return std::ssize(fed.rows);
}

// How far the run has got in its data, and what of them was left out.
void RunStages::ReportData(StepMetrics& metrics) {
  data::LoaderPosition fed;
  WhileNotFeeding([&] {
    fed = feeder_.position();
    return absl::OkStatus();
  }).IgnoreError();
  metrics.Mean("training/epoch", static_cast<double>(fed.drawn / parts_.inputs.data.train->size()));
  metrics.Mean("data/overlong", static_cast<double>(fed.counts.overlong));
  metrics.Mean("data/truncated", static_cast<double>(fed.counts.truncated));
  metrics.Mean("data/incomplete", static_cast<double>(fed.counts.incomplete + fed.counts.bad));
}

// The contents of the dock after the step, and the progress of each stage.
absl::Status RunStages::ReportDock(StepMetrics& metrics) {
  std::vector<std::string> partitions = {parts_.partition.name()};
  if (gather_.has_value()) partitions.push_back(gather_->partition());
  int64_t rows = 0, held_bytes = 0;
  for (const std::string& partition : partitions) {
    TDOCK_ASSIGN_OR_RETURN(const PartitionStatus status, parts_.partition.dock().GetStatus(partition));
    rows += status.rows;
    held_bytes += status.held_bytes;
    for (const NamedConsumerStatus& consumer : status.consumers) {
      metrics.Mean("dock/completed/" + consumer.name, static_cast<double>(consumer.status.completed));
    }
  }
  // Means, because a step that was stopped while it was validated accounts for itself again.
  metrics.Mean("dock/rows", static_cast<double>(rows));
  metrics.Mean("dock/held_bytes", static_cast<double>(held_bytes));
  return absl::OkStatus();
}

absl::Status RunStages::WhileNotFeeding(const std::function<absl::Status()>& body) {
  return streaming_.has_value() ? streaming_->WhileNotFeeding(body) : body();
}

void RunStages::Save(State& state) const {
  state.Set("loop", feeder_);
  if (streams_) {
    const auto status = parts_.partition.dock().GetStatus(parts_.partition.name());
    state.SetInteger(kAhead, status.ok() ? status->rows : 0);
  }
  for (const auto& stage : plan_.stages) state.Set(absl::StrCat("stages/", stage->consumer().name), *stage);
  if (Stage* const stage = Averaging()) state.Set(kAverage, *stage->average());
  if (!is_open_) return;
  state.SetInteger("step/stage", static_cast<int64_t>(next_));
  if (gather_.has_value()) state.Set("step/gather", *gather_);
}

absl::Status RunStages::Load(const State& state) {
  for (const auto& stage : plan_.stages) {
    TDOCK_RETURN_IF_ERROR(state.Get(absl::StrCat("stages/", stage->consumer().name), *stage));
  }
  if (Stage* const stage = Averaging()) TDOCK_RETURN_IF_ERROR(state.Get(kAverage, *stage->average()));
  TDOCK_RETURN_IF_ERROR(state.Get("loop", feeder_));
  CloseStep();
  if (!state.texts().contains("step/stage")) return absl::OkStatus();
  TDOCK_ASSIGN_OR_RETURN(const int64_t stage, state.Integer("step/stage"));
  if (stage < 0 || std::cmp_greater(stage, plan_.stages.size())) {
    return absl::InvalidArgumentError(absl::StrCat("step/stage is ", stage, ", of ", plan_.stages.size(), " stages"));
  }
  is_open_ = true;
  next_ = static_cast<size_t>(stage);
  return gather_.has_value() ? state.Get("step/gather", *gather_) : absl::OkStatus();
}

absl::StatusOr<int64_t> RunStages::AheadIn(const State& state) {
  if (!state.texts().contains(kAhead)) return 0;
  return state.Integer(kAhead);
}

}  // namespace tdock::trainer
