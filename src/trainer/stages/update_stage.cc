#include "trainer/stages/update_stage.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "data/mini_dataset.h"
#include "model/decoder/finite_numbers.h"
#include "model/files/flops.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/data_parallel.h"
#include "trainer/stages/model_time.h"
#include "trainer/stages/supervised_objective.h"
#include "trainer/stages/weight_average.h"

namespace tdock::trainer {
namespace {

// The positions of the rows, by their groups and then their numbers.
std::vector<int64_t> InOrder(const Rows& rows) {
  std::vector<int64_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](int64_t i) {
    return std::pair(rows.groups()[static_cast<size_t>(i)], rows.ids()[static_cast<size_t>(i)]);
  };
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return key(a) < key(b); });
  return order;
}

// The positions of the rows in an order that follows from the seed and what the rows are, not from when they came.
// `whole_groups`: those of a group stay next to each other, in their order.
std::vector<int64_t> ShuffledByIdentity(const Rows& rows, uint64_t seed, bool whole_groups) {
  const std::vector<int64_t> order = InOrder(rows);
  const auto group = [&](size_t i) { return rows.groups()[static_cast<size_t>(order[i])]; };
  std::vector<std::pair<uint64_t, size_t>> keys;
  uint64_t number_in_group = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    number_in_group = i > 0 && !whole_groups && group(i) == group(i - 1) ? number_in_group + 1 : 0;
    keys.emplace_back(DeriveSeed(DeriveSeed(seed, group(i)), number_in_group), i);
  }
  std::sort(keys.begin(), keys.end());
  std::vector<int64_t> shuffled;
  for (const auto& [key, i] : keys) shuffled.push_back(order[i]);
  return shuffled;
}

using MiniBatches = std::vector<std::vector<int64_t>>;  // the positions of their rows

MiniBatches Cut(const std::vector<int64_t>& order, size_t size) {
  MiniBatches batches;
  for (size_t begin = 0; begin < order.size(); begin += size) {
    const size_t end = std::min(order.size(), begin + size);
    batches.emplace_back(order.begin() + static_cast<std::ptrdiff_t>(begin),
                         order.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return batches;
}

// See UpdateOptions::generation_groups.
absl::StatusOr<MiniBatches> GeneratedTogether(const Rows& rows, int64_t groups, int64_t size) {
  std::map<int64_t, std::vector<int64_t>> generated;  // by the number of the batch
  int64_t number = -1;                                // of the group
  GroupId last = kNoGroup;
  for (const int64_t i : InOrder(rows)) {
    const GroupId group = rows.groups()[static_cast<size_t>(i)];
    if (number < 0 || group != last) ++number;
    last = group;
    generated[number / groups].push_back(i);
  }
  data::MiniDataset<int64_t> gathered(static_cast<int64_t>(generated.size()), size);
  for (auto& [of_batch, batch] : generated) {
    TDOCK_ASSIGN_OR_RETURN(std::optional<MiniBatches> all, gathered.Add(std::move(batch)));
    if (all) return *std::move(all);
  }
  return MiniBatches();
}

// The columns of a mini-batch, as flat vectors over its response tokens, on the policy's device.
struct MiniBatch {
  std::vector<Sequence> samples;  // those of one prompt next to each other, so that they share it
  TokenBatch tokens;              // without what the policy computes
};

std::vector<ParameterGroup> GroupsOf(const model::Decoder& decoder, const UpdateOptions& options) {
  const auto factor = [&](double lr) { return lr > 0 ? lr / options.lr : 1.0; };
  return {{decoder.trainable(model::ParameterKind::kBody)},
          {decoder.trainable(model::ParameterKind::kAdapter), factor(options.lora_lr)},
          {decoder.trainable(model::ParameterKind::kHead), factor(options.head_lr)}};
}

class UpdateStage final : public Stage {
 public:
  UpdateStage(Policy& policy, std::shared_ptr<const Objective> objective, const UpdateOptions& options)
      : consumer_{.name = options.consumer,
                  .reads = {kPrompt, kResponses, kResponseMask},
                  .unit = objective->samples_together() > 1 ? Unit::kGroup : Unit::kRow},
        policy_(policy),
        objective_(std::move(objective)),
        options_(options),
        ptx_objective_(MakeSupervisedObjective(options.name + "/ptx_", options.ptx_coef)),
        parallel_(options.ranks.group == nullptr ? nullptr
                                                 : std::make_unique<DataParallel>(policy.decoder, options.ranks)),
        optimizer_(PartsOf(GroupsOf(policy.decoder, options)), options.optimizer) {
    if (policy.decoder.compute_type() == at::kHalf) loss_scale_.emplace(options.loss_scale);
    if (options.ema_decay > 0 && (IsFirst() || has_shards())) {
      average_.emplace(PartsOf({{policy.decoder.trainable()}}), options.ema_decay);
    }
    for (const std::string& column : objective_->columns()) consumer_.reads.push_back(column);
  }

  const ConsumerOptions& consumer() const override { return consumer_; }
  bool uses_policy() const override { return true; }
  bool trains() const override { return true; }
  bool has_shards() const override { return parallel_ != nullptr && parallel_->has_shards(); }
  bool splits_weights() const override { return parallel_ != nullptr && parallel_->splits_weights(); }
  absl::Status GatherWeights() override { return parallel_ == nullptr ? absl::OkStatus() : parallel_->GatherWeights(); }
  Stateful* average() override { return average_.has_value() ? &*average_ : nullptr; }
  absl::Status SwapAverage() override {
    const auto swap = [this] {
      if (average_.has_value()) average_->Swap();
    };
    if (parallel_ != nullptr) return parallel_->ChangeParts(swap);
    swap();
    return absl::OkStatus();
  }

  void Save(State& state) const override {
    state.SetInteger("policy_version", policy_.version);
    state.SetInteger("mini_batches_done", mini_batches_done_);
    state.SetInteger("skipped_in_a_row", skipped_in_a_row_);
    state.Set("optimizer", optimizer_);
    if (loss_scale_.has_value()) state.Set("loss_scale", *loss_scale_);
    if (options_.ptx != nullptr) state.Set("ptx", *options_.ptx);
    if (splits_weights()) {
      for (const ParameterPart& part : PartsOf({{policy_.decoder.trainable()}})) {
        if (part.weights.numel() > 0) state.SetPart(WeightName(part.position), part.begin, part.total, part.weights);
      }
    } else if (options_.saves_weights && IsFirst()) {
      for (const auto& [name, weight] : NamedTrained()) state.SetTensor(name, weight);
    }
  }

  absl::Status Load(const State& state) override {
    TDOCK_ASSIGN_OR_RETURN(policy_.version, state.Integer("policy_version"));
    TDOCK_ASSIGN_OR_RETURN(mini_batches_done_, state.Integer("mini_batches_done"));
    TDOCK_ASSIGN_OR_RETURN(skipped_in_a_row_, state.Integer("skipped_in_a_row"));
    TDOCK_RETURN_IF_ERROR(state.Get("optimizer", optimizer_));
    if (loss_scale_.has_value()) TDOCK_RETURN_IF_ERROR(state.Get("loss_scale", *loss_scale_));
    // Ranks that had a part of the weights each have saved them here, whatever these are.
    if (options_.saves_weights || HasWeights(state)) {
      for (const auto& [name, weight] : NamedTrained()) {
        TDOCK_RETURN_IF_ERROR(state.CopyPart(name, 0, weight.numel(), weight));
        TDOCK_RETURN_IF_ERROR(Annotate(model::CheckFinite(weight, {.shape = weight.sizes()}, weight.scalar_type()),
                                       absl::StrCat("the saved weight '", name, "'")));
      }
    }
    if (parallel_ != nullptr) parallel_->TakeWeights();
    return options_.ptx != nullptr ? state.Get("ptx", *options_.ptx) : absl::OkStatus();
  }

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    if (parallel_ == nullptr) return Train(rows, context);
    parallel_->ReleaseWeights();
    try {
      absl::StatusOr<StageOutput> output = Train(rows, context);
      // All ranks have agreed on an interruption; the others wait for one that has failed.
      if (!output.ok() && !absl::IsCancelled(output.status())) parallel_->Leave();
      return output;
    } catch (...) {
      parallel_->Leave();
      throw;
    }
  }

 private:
  // What is passed through the policy, and towards what.
  struct Task {
    const MiniBatch& batch;
    const Objective& objective;
    ForwardOptions forward;
    std::vector<MicroBatch> micro_batches;
  };

  absl::StatusOr<StageOutput> Train(const Rows& rows, StageContext& context) {
    if (mini_batches_done_ == 0 && !options_.saves_weights) {
      TDOCK_RETURN_IF_ERROR(ReportTokens(rows, context.metrics));
    }
    if (context.step < options_.first_step) return StageOutput();
    // Random choices in a mini-batch follow from the step and its number in the step.
    uint64_t seed = DeriveSeed(options_.seed, static_cast<uint64_t>(context.step));
    int64_t number = 0;
    for (int64_t epoch = 0; epoch < options_.epochs; ++epoch) {
      TDOCK_ASSIGN_OR_RETURN(const MiniBatches batches, BatchesOf(rows, epoch, context.step));
      for (const std::vector<int64_t>& chosen : batches) {
        ++seed;
        if (++number <= mini_batches_done_) continue;
        if (number > 1) TDOCK_RETURN_IF_ERROR(CheckStop(context));
        context.progress();
        TDOCK_ASSIGN_OR_RETURN(const bool goes_on, Step(rows, chosen, seed, context));
        mini_batches_done_ = goes_on ? number : 0;
        if (!goes_on) return StageOutput();
      }
    }
    mini_batches_done_ = 0;
    return StageOutput();
  }

  absl::Status CheckStop(const StageContext& context) {
    const absl::Status status = context.check_stop();
    return parallel_ == nullptr ? status : parallel_->AsRank0(status);
  }

  std::vector<ParameterPart> PartsOf(const std::vector<ParameterGroup>& groups) const {
    return parallel_ == nullptr ? WholeParts(groups) : parallel_->Parts(groups);
  }

  // The mini-batches of an epoch.
  absl::StatusOr<MiniBatches> BatchesOf(const Rows& rows, int64_t epoch, int64_t step) const {
    const auto most = static_cast<int64_t>(rows.size());
    const int64_t size = options_.mini_batch_size > 0 ? std::min(options_.mini_batch_size, most) : most;
    const uint64_t seed = epoch == 0 ? options_.seed : DeriveSeed(options_.seed, static_cast<uint64_t>(epoch));
    if (options_.generation_groups == 0) {
      return Cut(ShuffledByIdentity(rows, seed, objective_->samples_together() > 1), static_cast<size_t>(size));
    }
    TDOCK_ASSIGN_OR_RETURN(MiniBatches batches, GeneratedTogether(rows, options_.generation_groups, size));
    if (epoch > 0) Rng(DeriveSeed(seed, static_cast<uint64_t>(step))).Shuffle(std::span(batches));
    return batches;
  }

  static std::string WeightName(size_t position) { return absl::StrCat("weights/", position); }
  static bool HasWeights(const State& state) {
    const auto first = state.tensors().lower_bound("weights/");
    return first != state.tensors().end() && absl::StartsWith(first->first, "weights/");
  }
  // Of ranks that have the same.
  bool IsFirst() const { return parallel_ == nullptr || options_.ranks.group->rank() == 0; }

  // What changes with a step, where it is a part of the state.
  std::vector<std::pair<std::string, at::Tensor>> NamedTrained() const {
    std::vector<std::pair<std::string, at::Tensor>> named;
    for (const at::Tensor& weight : policy_.decoder.trainable()) {
      named.emplace_back(WeightName(named.size()), weight.detach());
    }
    return named;
  }

  static absl::Status ReportTokens(const Rows& rows, StepMetrics& metrics) {
    TDOCK_ASSIGN_OR_RETURN(const std::vector<Sequence> samples, SequencesOf(rows));
    for (const Sequence& sample : samples) {
      metrics.Sum("perf/total_num_tokens", static_cast<double>(sample.prompt.size() + sample.response.size()));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<MiniBatch> Read(const Rows& rows, std::span<const int64_t> chosen) const {
    std::vector<int64_t> order(chosen.begin(), chosen.end());
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return rows.groups()[static_cast<size_t>(a)] < rows.groups()[static_cast<size_t>(b)];
    });
    MiniBatch batch;
    TDOCK_ASSIGN_OR_RETURN(batch.samples, SequencesOf(rows, order));
    const auto read = [&](const std::string& name, at::Tensor& target) -> absl::Status {
      TDOCK_ASSIGN_OR_RETURN(const at::Tensor values, TokenColumn(rows, order, name, batch.samples));
      target = values.to(policy_.decoder.device());
      return absl::OkStatus();
    };
    at::Tensor mask;
    TDOCK_RETURN_IF_ERROR(read(kResponseMask, mask));
    std::vector<int64_t> lengths;
    for (const Sequence& sample : batch.samples) lengths.push_back(static_cast<int64_t>(sample.response.size()));
    batch.tokens.tokens = algo::MakeTokens(mask, lengths);
    batch.tokens.counts = algo::CountsOf(batch.tokens.tokens);
    for (const std::string& name : objective_->columns()) {
      TokenBatch::Values& column = batch.tokens.columns[name];
      TDOCK_RETURN_IF_ERROR(read(name, column.values));
      column.fresh = !policy_.decoder.drops();
      for (const int64_t row : order) {
        TDOCK_ASSIGN_OR_RETURN(const int64_t version, rows.WeightsVersion(static_cast<size_t>(row), name));
        column.fresh = column.fresh && version == policy_.version;
      }
    }
    return batch;
  }

  // One optimizer step. False if nothing more is to be trained on.
  absl::StatusOr<bool> Step(const Rows& rows, std::span<const int64_t> chosen, uint64_t seed, StageContext& context) {
    TDOCK_ASSIGN_OR_RETURN(MiniBatch batch, Read(rows, chosen));
    if (batch.tokens.counts.tokens == 0) return absl::InvalidArgumentError("every token of the mini-batch is masked");
    objective_->Prepare(batch.tokens, seed, context.metrics);
    std::vector<Task> tasks;
    AddTask(batch, *objective_, options_.forward, tasks);
    std::vector<GivenAnswer> answers;
    MiniBatch given;
    if (options_.ptx_coef > 0) {
      TDOCK_ASSIGN_OR_RETURN(answers, options_.ptx->Next());
      TDOCK_ASSIGN_OR_RETURN(given, Given(answers));
      ForwardOptions forward = options_.forward;
      forward.temperature = 1;
      AddTask(given, *ptx_objective_, forward, tasks);
      ReportWork(given.samples, context.metrics);
    }
    StepMetrics together;
    {
      const ModelTime timed(consumer_.name, context.metrics);
      TDOCK_RETURN_IF_ERROR(Gradients(tasks, seed, together));
    }
    context.metrics.Add(together);
    ReportWork(batch.samples, context.metrics);
    if (options_.target_kl > 0) {
      const std::map<std::string, double> figures = together.Values();
      const auto kl = figures.find("actor/ppo_kl");
      if (kl == figures.end()) {
        return absl::InvalidArgumentError("target_kl is set, but the objective does not report actor/ppo_kl");
      }
      if (StopsAt(kl->second, context.metrics)) return false;
    }
    TDOCK_RETURN_IF_ERROR(Apply(context));
    return true;
  }

  // Whether a step ends here, with the gradients dropped.
  bool StopsAt(double kl, StepMetrics& metrics) {
    const bool stops = kl > options_.target_kl;
    metrics.Sum(options_.name + "/early_stops", stops ? 1 : 0);
    for (const char* none : {"/optimizer_steps", "/skipped_steps"}) metrics.Sum(options_.name + none, 0);
    if (!stops) return false;
    optimizer_.DropGradients();
    return true;
  }

  // Takes the optimizer's step with the gradients that there are.
  absl::Status Apply(StageContext& context) {
    const double scale = loss_scale_.has_value() ? loss_scale_->value() : 1.0;
    const double schedule = options_.schedule.Factor(context.step - options_.first_step);
    double grad_norm = 0;
    {
      const ModelTime timed(consumer_.name, context.metrics);
      TDOCK_ASSIGN_OR_RETURN(grad_norm, StepOptimizer(options_.lr * schedule, scale));
    }
    const bool finite = std::isfinite(grad_norm);
    // With a scale that can be halved, that may have been the reason.
    const bool overflowed = !finite && loss_scale_.has_value() && loss_scale_->BackOff();
    context.metrics.Sum(options_.name + "/optimizer_steps", finite ? 1 : 0);
    context.metrics.Sum(options_.name + "/skipped_steps", finite || overflowed ? 0 : 1);
    if (loss_scale_.has_value()) {
      context.metrics.Sum(options_.name + "/overflow_steps", overflowed ? 1 : 0);
      context.metrics.Mean(options_.name + "/loss_scale", scale);
      if (finite) loss_scale_->Grow();
    }
    if (overflowed) return absl::OkStatus();
    if (!finite) return CountSkipped(grad_norm);
    skipped_in_a_row_ = 0;
    ++policy_.version;
    if (average_.has_value()) average_->Update();
    context.metrics.Mean(options_.name + "/grad_norm", grad_norm);
    context.metrics.Mean(options_.name + "/lr", options_.lr * schedule);
    if (options_.lora_lr > 0) context.metrics.Mean(options_.name + "/lora_lr", options_.lora_lr * schedule);
    if (options_.head_lr > 0) context.metrics.Mean(options_.name + "/head_lr", options_.head_lr * schedule);
    return options_.publish(policy_.version);
  }

  // Returns the norm of the gradients.
  absl::StatusOr<double> StepOptimizer(double lr, double loss_scale) {
    if (parallel_ == nullptr) return optimizer_.Step(lr, loss_scale);
    TDOCK_ASSIGN_OR_RETURN(const double squares, parallel_->SumOfParts(optimizer_.SquaredNorm(loss_scale)));
    const double norm = std::sqrt(squares);
    optimizer_.StepWithNorm(norm, lr, loss_scale);
    TDOCK_RETURN_IF_ERROR(parallel_->ShareWeights());
    return norm;
  }

  // A backward pass takes twice the operations of a forward pass.
  void ReportWork(std::span<const Sequence> samples, StepMetrics& metrics) const {
    const model::ModelConfig& config = policy_.decoder.config();
    const bool recomputed = policy_.decoder.recomputed() == model::Recomputed::kLayers;
    double as_deepspeed = 0;
    for (const Sequence& sample : samples) {
      const auto tokens = static_cast<int64_t>(sample.prompt.size() + sample.response.size());
      as_deepspeed += model::DeepSpeedChatFlops(config, tokens, recomputed);
    }
    metrics.Sum(absl::StrCat("perf/flops/", consumer_.name), 3 * ForwardFlops(config, samples));
    metrics.Sum(absl::StrCat("perf/deepspeed_chat_flops/", consumer_.name), as_deepspeed);
  }

  absl::Status CountSkipped(double grad_norm) {
    if (++skipped_in_a_row_ <= options_.max_skipped_steps) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(
        "the norm of the gradients is ", grad_norm, ", for ", skipped_in_a_row_,
        " optimizer steps in a row, which were skipped (", options_.optim_key, ".max_skipped_steps is ",
        options_.max_skipped_steps, "); a lower learning rate (", options_.optim_key, ".lr) may keep it finite",
        loss_scale_.has_value() ? ", and model.compute_dtype: bfloat16 has the range of float32" : ""));
  }

  absl::StatusOr<MiniBatch> Given(const std::vector<GivenAnswer>& answers) const {
    MiniBatch batch;
    std::vector<int64_t> lengths;
    std::vector<uint8_t> mask;
    for (const GivenAnswer& answer : answers) {
      batch.samples.push_back({answer.prompt, answer.response});
      lengths.push_back(static_cast<int64_t>(answer.response.size()));
      mask.insert(mask.end(), answer.mask.begin(), answer.mask.end());
    }
    batch.tokens.tokens = algo::MakeTokens(at::tensor(mask, at::kByte).to(policy_.decoder.device()), lengths);
    batch.tokens.counts = algo::CountsOf(batch.tokens.tokens);
    if (batch.tokens.counts.tokens > 0) return batch;
    return absl::InvalidArgumentError("the loss counts no token of the answers beside the mini-batch (ptx)");
  }

  void AddTask(const MiniBatch& batch, const Objective& objective, const ForwardOptions& forward,
               std::vector<Task>& tasks) const {
    ForwardOptions cut = forward;
    cut.together = objective.samples_together();
    tasks.push_back({batch, objective, forward, CutMicroBatches(batch.samples, cut, policy_.decoder.device())});
  }

  // Gives the parameters, or this rank's parts of them, the gradients of the sum of all tasks' losses.
  // `seed` is that of what they drop.
  absl::Status Gradients(const std::vector<Task>& tasks, uint64_t seed, StepMetrics& figures) {
    std::vector<std::pair<const Task*, const MicroBatch*>> passes;
    for (const Task& task : tasks) {
      for (const MicroBatch& micro : task.micro_batches) passes.emplace_back(&task, &micro);
    }
    std::vector<StepMetrics> metrics(passes.size());
    const PassLoss loss_of = [&](const model::Decoder& pass, size_t i) {
      const at::Tensor loss = Loss(pass, *passes[i].first, *passes[i].second, DeriveSeed(seed, i), metrics[i]);
      return loss_scale_.has_value() ? loss * loss_scale_->value() : loss;
    };
    if (parallel_ == nullptr) {
      Backward(policy_.decoder, options_.forward.workers, passes.size(), loss_of);
    } else {
      std::vector<int64_t> costs;
      for (const auto& [task, micro] : passes) costs.push_back(TokensOf(micro->samples));
      TDOCK_RETURN_IF_ERROR(parallel_->Gradients(options_.forward.workers, costs, loss_of));
    }
    for (const StepMetrics& of_pass : metrics) figures.Add(of_pass);
    return parallel_ == nullptr ? absl::OkStatus() : parallel_->AddUp(figures);
  }

  at::Tensor Loss(const model::Decoder& pass, const Task& task, const MicroBatch& micro, uint64_t seed,
                  StepMetrics& metrics) const {
    const Scored scored = task.objective.scored();
    Layout layout = MakeLayout(micro.samples, task.forward.max_row_tokens, policy_.decoder.device(), scored,
                               task.forward.max_shared_row_tokens);
    if (policy_.decoder.drops()) layout.batch.dropout_seed = seed;
    TokenBatch part = PartOf(task.batch.tokens, micro);
    if (scored == Scored::kLogProbs) {
      const ResponseFigures figures = ScoreResponses(pass, layout, task.forward.temperature, task.objective.entropy());
      part.log_probs = figures.log_probs;
      part.entropy = figures.entropy;
    } else {
      part.values = ScoreValues(pass, layout);
    }
    return task.objective.Loss(part, metrics);
  }

  ConsumerOptions consumer_;
  Policy& policy_;
  const std::shared_ptr<const Objective> objective_;
  const UpdateOptions options_;
  const std::shared_ptr<const Objective> ptx_objective_;
  const std::unique_ptr<DataParallel> parallel_;  // null: this process trains alone
  AdamW optimizer_;
  std::optional<LossScale> loss_scale_;   // in float16
  std::optional<WeightAverage> average_;  // of what this rank steps; of ranks that all step everything at the first
  int64_t skipped_in_a_row_ = 0;
  int64_t mini_batches_done_ = 0;  // of the rows that it is run on, if it was cancelled among them
};

}  // namespace

std::unique_ptr<Stage> MakeUpdateStage(Policy& policy, std::shared_ptr<const Objective> objective,
                                       const UpdateOptions& options) {
  return std::make_unique<UpdateStage>(policy, std::move(objective), options);
}

}  // namespace tdock::trainer
