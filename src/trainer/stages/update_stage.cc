#include "trainer/stages/update_stage.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "trainer/stages/columns.h"

namespace tdock::trainer {
namespace {

// The positions of the rows in an order that follows from the seed and what the rows are, not from when they came.
std::vector<int64_t> ShuffledByIdentity(const Rows& rows, uint64_t seed) {
  std::vector<int64_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  const auto group = [&](int64_t i) { return rows.groups()[static_cast<size_t>(i)]; };
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return std::pair(group(a), rows.ids()[static_cast<size_t>(a)]) <
           std::pair(group(b), rows.ids()[static_cast<size_t>(b)]);
  });
  std::vector<std::pair<uint64_t, int64_t>> keys;
  uint64_t number_in_group = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    number_in_group = i > 0 && group(order[i]) == group(order[i - 1]) ? number_in_group + 1 : 0;
    keys.emplace_back(DeriveSeed(DeriveSeed(seed, group(order[i])), number_in_group), order[i]);
  }
  std::sort(keys.begin(), keys.end());
  for (size_t i = 0; i < order.size(); ++i) order[i] = keys[i].second;
  return order;
}

// The columns of a mini-batch, as flat vectors over its response tokens, on the policy's device.
struct MiniBatch {
  std::vector<Sequence> samples;  // those of one prompt next to each other, so that they share it
  TokenBatch tokens;              // without what the policy computes
  size_t all_tokens = 0;          // of prompts, too
};

class UpdateStage final : public Stage {
 public:
  UpdateStage(Policy& policy, std::shared_ptr<const Objective> objective, const UpdateOptions& options)
      : consumer_{.name = "actor", .reads = {kPrompt, kResponses, kResponseMask}},
        policy_(policy),
        objective_(std::move(objective)),
        options_(options),
        optimizer_(policy.decoder.trainable(), options.optimizer) {
    for (const std::string& column : objective_->columns()) consumer_.reads.push_back(column);
  }

  const ConsumerOptions& consumer() const override { return consumer_; }
  bool uses_policy() const override { return true; }

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    const std::vector<int64_t> order = ShuffledByIdentity(rows, options_.seed);
    const size_t size = options_.mini_batch_size > 0 ? static_cast<size_t>(options_.mini_batch_size) : order.size();
    for (size_t begin = 0; begin < order.size(); begin += size) {
      TDOCK_RETURN_IF_ERROR(Step(rows, std::span(order).subspan(begin, std::min(size, order.size() - begin)), context));
    }
    return StageOutput();
  }

 private:
  absl::StatusOr<MiniBatch> Read(const Rows& rows, std::span<const int64_t> chosen) const {
    std::vector<int64_t> order(chosen.begin(), chosen.end());
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return rows.groups()[static_cast<size_t>(a)] < rows.groups()[static_cast<size_t>(b)];
    });
    MiniBatch batch;
    TDOCK_ASSIGN_OR_RETURN(batch.samples, SequencesOf(rows, order));
    for (const Sequence& sample : batch.samples) batch.all_tokens += sample.prompt.size() + sample.response.size();
    const auto read = [&](const std::string& name, at::Tensor& target) -> absl::Status {
      TDOCK_ASSIGN_OR_RETURN(const at::Tensor values, TokenColumn(rows, order, name, batch.samples));
      target = values.to(policy_.decoder.device());
      return absl::OkStatus();
    };
    TDOCK_RETURN_IF_ERROR(read(kResponseMask, batch.tokens.mask));
    for (const std::string& name : objective_->columns()) {
      TokenBatch::Values& column = batch.tokens.columns[name];
      TDOCK_RETURN_IF_ERROR(read(name, column.values));
      column.fresh = true;
      for (const int64_t row : order) {
        TDOCK_ASSIGN_OR_RETURN(const int64_t version, rows.WeightsVersion(static_cast<size_t>(row), name));
        column.fresh = column.fresh && version == policy_.version;
      }
    }
    return batch;
  }

  absl::Status Step(const Rows& rows, std::span<const int64_t> chosen, StageContext& context) {
    TDOCK_ASSIGN_OR_RETURN(MiniBatch batch, Read(rows, chosen));
    batch.tokens.token_count = (batch.tokens.mask != 0).sum().item<double>();
    if (batch.tokens.token_count == 0) return absl::InvalidArgumentError("every token of the mini-batch is masked");
    const std::vector<MicroBatch> micro_batches =
        CutMicroBatches(batch.samples, options_.forward, policy_.decoder.device());
    std::vector<StepMetrics> metrics(micro_batches.size());
    Backward(policy_.decoder, options_.forward.workers, micro_batches.size(),
             [&](size_t i) { return Loss(batch, micro_batches[i], metrics[i]); });
    for (const StepMetrics& of_micro_batch : metrics) context.metrics.Add(of_micro_batch);
    const double lr = options_.lr * options_.schedule.Factor(context.step - 1);
    const double grad_norm = optimizer_.Step(lr);
    const bool skipped = !std::isfinite(grad_norm);
    context.metrics.Sum(options_.name + "/optimizer_steps", skipped ? 0 : 1);
    context.metrics.Sum(options_.name + "/skipped_steps", skipped ? 1 : 0);
    context.metrics.Sum("perf/total_num_tokens", static_cast<double>(batch.all_tokens));
    if (skipped) return CountSkipped(grad_norm);
    skipped_in_a_row_ = 0;
    ++policy_.version;
    context.metrics.Mean(options_.name + "/grad_norm", grad_norm);
    context.metrics.Mean(options_.name + "/lr", lr);
    return options_.publish(policy_.version);
  }

  absl::Status CountSkipped(double grad_norm) {
    if (++skipped_in_a_row_ <= options_.max_skipped_steps) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(
        "the norm of the gradients is ", grad_norm, ", for ", skipped_in_a_row_,
        " optimizer steps in a row, which were skipped (", options_.optim_key, ".max_skipped_steps is ",
        options_.max_skipped_steps, "); a lower learning rate (", options_.optim_key, ".lr) may keep it finite"));
  }

  at::Tensor Loss(const MiniBatch& batch, const MicroBatch& micro, StepMetrics& metrics) const {
    const auto part = [&](const at::Tensor& all) { return all.narrow(0, micro.first_token, micro.tokens); };
    TokenBatch tokens;
    tokens.mask = part(batch.tokens.mask);
    tokens.token_count = batch.tokens.token_count;
    for (const auto& [name, column] : batch.tokens.columns) tokens.columns[name] = {part(column.values), column.fresh};
    const Layout layout = MakeLayout(micro.samples, options_.forward.max_row_tokens, policy_.decoder.device());
    tokens.log_probs = ResponseLogProbs(policy_.decoder, layout, options_.forward.temperature,
                                        objective_->wants_entropy() ? &tokens.entropy : nullptr);
    return objective_->Loss(tokens, metrics);
  }

  ConsumerOptions consumer_;
  Policy& policy_;
  const std::shared_ptr<const Objective> objective_;
  const UpdateOptions options_;
  AdamW optimizer_;
  int64_t skipped_in_a_row_ = 0;
};

}  // namespace

std::unique_ptr<Stage> MakeUpdateStage(Policy& policy, std::shared_ptr<const Objective> objective,
                                       const UpdateOptions& options) {
  return std::make_unique<UpdateStage>(policy, std::move(objective), options);
}

}  // namespace tdock::trainer
