#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/torch/model_benchmarks.h"
#include "bench/torch/peak_memory.h"
#include "bench/torch/subjects.h"
#include "bench/torch/update_run.h"
#include "core/base/process_memory.h"
#include "model/decoder/device.h"
#include "trainer/loop/recipe.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/guard.h"
#include "trainer/stages/supervised_objective.h"
#include "trainer/stages/update_stage.h"

namespace tdock::bench {
namespace {

constexpr double kGibibyte = 1024.0 * 1024.0 * 1024.0;

// One step of the SFT recipe over texts of these lengths, of which a quarter is the prompt: forward and backward pass,
// clipping, AdamW.
class SftStep {
 public:
  SftStep(model::Decoder decoder, const Settings& settings) : policy_{std::move(decoder)} {
    workers_ = ShareSamples(settings.threads, settings.threads);
    policy_.decoder.SetTrainable(true);
  }

  absl::Status SetUp(Clock& clock, const std::vector<int64_t>& lengths) {
    std::vector<std::vector<int32_t>> prompts, responses;
    std::vector<std::vector<uint8_t>> masks;
    UpdateRun::Samples samples;
    for (size_t i = 0; i < lengths.size(); ++i) {
      const int64_t prompt = lengths[i] / 4;
      Problem problem = RandomProblem(policy_.decoder, prompt, lengths[i] - prompt, i, i);
      masks.emplace_back(problem.answer.size(), uint8_t{1});
      prompts.push_back(std::move(problem.prompt));
      responses.push_back(std::move(problem.answer));
      samples.groups.push_back(i);
      samples.tokens += lengths[i];
    }
    TDOCK_RETURN_IF_ERROR(samples.batch.Add(trainer::kPrompt, Column::FromRows(prompts)));
    TDOCK_RETURN_IF_ERROR(samples.batch.Add(trainer::kResponses, Column::FromRows(responses)));
    TDOCK_RETURN_IF_ERROR(samples.batch.Add(trainer::kResponseMask, Column::FromRows(masks)));
    const trainer::ForwardOptions forward = {.workers = *workers_,
                                             .max_row_tokens = trainer::MaxRowTokens(policy_.decoder.config())};
    // A small learning rate: every run sees about the same weights.
    std::unique_ptr<trainer::Stage> stage = trainer::MakeUpdateStage(
        policy_, trainer::MakeSupervisedObjective(),
        {.forward = forward, .optimizer = {}, .lr = 1e-6, .schedule = {}, .max_skipped_steps = 0});
    TDOCK_ASSIGN_OR_RETURN(
        run_, UpdateRun::Create(clock, std::move(stage),
                                trainer::ColumnsNamed({trainer::kPrompt, trainer::kResponses, trainer::kResponseMask}),
                                std::move(samples)));
    return absl::OkStatus();
  }

  absl::StatusOr<Figure> TokensPerSecond() {
    return trainer::Guarded([&]() -> absl::StatusOr<Figure> { return run_->TokensPerSecond(); });
  }

  absl::StatusOr<Figure> TokensPerSecondAndPeak() {
    return trainer::Guarded([&]() -> absl::StatusOr<Figure> {
      TDOCK_RETURN_IF_ERROR(RestartPeakMemory().status());
      TDOCK_ASSIGN_OR_RETURN(const double tokens, run_->TokensPerSecond());
      TDOCK_ASSIGN_OR_RETURN(const int64_t peak, PeakResidentMemory(Env::Real()));
      return Figure(tokens, {{"peak_rss_gib", static_cast<double>(peak) / kGibibyte}});
    });
  }

 private:
  trainer::Policy policy_;
  std::unique_ptr<Workers> workers_;
  std::unique_ptr<UpdateRun> run_;
};

std::vector<int64_t> LengthsOf(bool mixed, bool quick) {
  const int64_t divisor = quick ? 8 : 1, rows = quick ? 4 : 16;
  if (!mixed) return std::vector<int64_t>(static_cast<size_t>(rows / 2), 256 / divisor);
  return MixedLengths(rows, 32 / divisor, 512 / divisor);
}

// All weights of the Llama of 95 million, in float32; `compute` is the dtype of activations and products.
absl::StatusOr<std::shared_ptr<SftStep>> FullStep(at::ScalarType compute, bool mixed, const Settings& settings) {
  TDOCK_ASSIGN_OR_RETURN(const at::Device device, model::ParseDevice(settings.device));
  model::Decoder decoder = MakeLlama95m(device);
  decoder.SetComputeType(compute);
  auto step = std::make_shared<SftStep>(std::move(decoder), settings);
  TDOCK_RETURN_IF_ERROR(step->SetUp(settings.clock, LengthsOf(mixed, settings.quick)));
  return step;
}

absl::StatusOr<Prepared> PrepareFloat32(bool mixed, const Settings& settings) {
  TDOCK_ASSIGN_OR_RETURN(const auto step, FullStep(at::kFloat, mixed, settings));
  return Prepared{.run = [step] { return step->TokensPerSecond(); }};
}

absl::StatusOr<Prepared> PrepareBFloat16(bool mixed, const Settings& settings) {
  TDOCK_ASSIGN_OR_RETURN(const auto step, FullStep(at::kBFloat16, mixed, settings));
  Prepared prepared{.run = [step] { return step->TokensPerSecond(); }};
  TDOCK_ASSIGN_OR_RETURN(const auto full, FullStep(at::kFloat, mixed, settings));
  prepared.reference = [full] { return full->TokensPerSecond(); };
  return prepared;
}

// Adapters of rank 16 for all linear layers of a Llama with a billion weights in bfloat16; 1,024 tokens in four texts.
absl::StatusOr<Prepared> PrepareAdapters(const Settings& settings) {
  TDOCK_ASSIGN_OR_RETURN(const at::Device device, model::ParseDevice(settings.device));
  model::Decoder decoder = settings.quick ? MakeLlama95m(device) : MakeLlama1b(device);
  decoder.SetComputeType(at::kBFloat16);
  TDOCK_RETURN_IF_ERROR(decoder.AddAdapters({.rank = 16, .alpha = 16}, /*seed=*/1));
  const auto step = std::make_shared<SftStep>(std::move(decoder), settings);
  TDOCK_RETURN_IF_ERROR(step->SetUp(settings.clock, std::vector<int64_t>(4, settings.quick ? 32 : 256)));
  return Prepared{.run = [step] { return step->TokensPerSecondAndPeak(); }};
}

}  // namespace

std::vector<Benchmark> SftBenchmarks() {
  std::vector<Benchmark> benchmarks;
  const auto add = [&](const std::string& name, const std::string& of, auto prepare) {
    benchmarks.push_back(
        {.name = name,
         .unit = "tokens/s",
         .better = Better::kHigher,
         .of = of,
         .prepare = [prepare](const Settings& s) { return trainer::Guarded([&] { return prepare(s); }); }});
  };
  for (const bool mixed : {false, true}) {
    const std::string lengths = mixed ? "/lengths=mixed" : "/lengths=full";
    add(absl::StrCat("sft_step/dtype=float32", lengths), "",
        [mixed](const Settings& settings) { return PrepareFloat32(mixed, settings); });
    add(absl::StrCat("sft_step/dtype=bfloat16", lengths), "float32",
        [mixed](const Settings& settings) { return PrepareBFloat16(mixed, settings); });
  }
  add("lora_step/params=1b", "", PrepareAdapters);
  return benchmarks;
}

}  // namespace tdock::bench
