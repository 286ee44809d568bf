#include "trainer/stages/stages.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "model/files/flops.h"
#include "model/tensor_torch/convert.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/model_time.h"

namespace tdock::trainer {
namespace {

class StageOf : public Stage {
 public:
  explicit StageOf(ConsumerOptions consumer) : consumer_(std::move(consumer)) {}
  const ConsumerOptions& consumer() const final { return consumer_; }

 private:
  const ConsumerOptions consumer_;
};

std::vector<int64_t> ResponseLengths(std::span<const Sequence> samples) {
  std::vector<int64_t> lengths;
  for (const Sequence& sample : samples) lengths.push_back(static_cast<int64_t>(sample.response.size()));
  return lengths;
}

class LogProbStage final : public StageOf {
 public:
  LogProbStage(const std::string& name, const std::string& column, const Policy& policy, const ForwardOptions& forward)
      : StageOf({.name = name, .reads = {kPrompt, kResponses}, .writes = {column}, .unit = Unit::kGroup}),
        policy_(policy),
        forward_(forward) {}

  // A reference model stays as it was loaded.
  bool uses_policy() const override { return !policy_.decoder.trainable().empty(); }
  Together together() const override { return TogetherIn(policy_.decoder); }

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    TDOCK_ASSIGN_OR_RETURN(const std::vector<Sequence> samples, SequencesOf(rows));
    context.metrics.Sum(absl::StrCat("perf/flops/", consumer().name), ForwardFlops(policy_.decoder.config(), samples));
    // The versions of the weights that are trained say nothing of a reference model.
    StageOutput output{.columns = {}, .weights_version = uses_policy() ? policy_.version : kNoWeightsVersion};
    at::Tensor log_probs;
    {
      const ModelTime timed(consumer().name, context.metrics);
      log_probs = LogProbs(policy_.decoder, samples, forward_).to(at::kFloat);
    }
    TDOCK_RETURN_IF_ERROR(output.columns.Add(consumer().writes[0], RaggedColumn(log_probs, ResponseLengths(samples))));
    return output;
  }

 private:
  const Policy& policy_;
  const ForwardOptions forward_;
};

class ValueStage final : public StageOf {
 public:
  ValueStage(const std::string& name, const std::string& column, const Policy& critic, const ForwardOptions& forward)
      : StageOf({.name = name, .reads = {kPrompt, kResponses}, .writes = {column}}),
        critic_(critic),
        forward_(forward) {}

  bool uses_policy() const override { return !critic_.decoder.trainable().empty(); }
  Together together() const override { return TogetherIn(critic_.decoder); }

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    TDOCK_ASSIGN_OR_RETURN(const std::vector<Sequence> samples, SequencesOf(rows));
    context.metrics.Sum(absl::StrCat("perf/flops/", consumer().name), ForwardFlops(critic_.decoder.config(), samples));
    at::Tensor values;
    {
      const ModelTime timed(consumer().name, context.metrics);
      values = Values(critic_.decoder, samples, forward_, Scored::kValuesBefore).to(at::kCPU, at::kFloat);
    }
    const at::Tensor whole = values.contiguous();
    context.metrics.Distribution("critic/values", {whole.const_data_ptr<float>(), static_cast<size_t>(whole.numel())});
    StageOutput output;
    TDOCK_RETURN_IF_ERROR(output.columns.Add(consumer().writes[0], RaggedColumn(whole, ResponseLengths(samples))));
    return output;
  }

 private:
  const Policy& critic_;
  const ForwardOptions forward_;
};

}  // namespace

std::unique_ptr<Stage> MakeValueStage(const std::string& name, const std::string& column, const Policy& critic,
                                      const ForwardOptions& forward) {
  return std::make_unique<ValueStage>(name, column, critic, forward);
}

std::unique_ptr<Stage> MakeLogProbStage(const std::string& name, const std::string& column, const Policy& policy,
                                        const ForwardOptions& forward) {
  return std::make_unique<LogProbStage>(name, column, policy, forward);
}

absl::StatusOr<std::string> ResponseText(const text::Tokenizer& tokenizer, std::span<const int32_t> response,
                                         bool finished) {
  if (finished && !response.empty()) response = response.first(response.size() - 1);
  return tokenizer.Decode(response, text::SpecialTokens::kKeep);
}

}  // namespace tdock::trainer
