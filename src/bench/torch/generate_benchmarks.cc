#include <memory>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/torch/model_benchmarks.h"
#include "bench/torch/subjects.h"
#include "engine/engine.h"
#include "model/decoder/device.h"
#include "trainer/stages/guard.h"

namespace tdock::bench {
namespace {

// A decoder, its engine, and what it is asked.
struct Rollout {
  model::Decoder decoder;
  std::unique_ptr<Workers> workers;
  std::vector<int32_t> end_tokens;
  std::vector<engine::Prompt> prompts;
  int64_t max_new_tokens;

  absl::StatusOr<double> TokensPerSecond(Clock& clock) const {
    engine::Engine engine(decoder, {.end_tokens = end_tokens, .workers = workers.get()});
    size_t tokens = 0;
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&]() -> absl::Status {
                             TDOCK_ASSIGN_OR_RETURN(
                                 const std::vector<engine::Completion> completions,
                                 engine.Generate(prompts, {.max_new_tokens = max_new_tokens, .seed = 1}));
                             for (const engine::Completion& c : completions) tokens += c.tokens.size();
                             return absl::OkStatus();
                           }));
    return static_cast<double>(tokens) / seconds;
  }
};

Prepared Timed(std::shared_ptr<const Rollout> rollout, Clock& clock) {
  return {.run = [rollout = std::move(rollout), &clock] {
    return trainer::Guarded([&] { return rollout->TokensPerSecond(clock); });
  }};
}

absl::StatusOr<Prepared> PrepareRollout(const Settings& settings) {
  TDOCK_ASSIGN_OR_RETURN(const at::Device device, model::ParseDevice(settings.device));
  TDOCK_ASSIGN_OR_RETURN(Arithmetic arithmetic, MakeArithmetic(device));
  const int64_t prompts = settings.quick ? 16 : 128;
  auto rollout = std::make_shared<Rollout>(Rollout{.decoder = std::move(arithmetic.decoder),
                                                   .workers = ShareSamples(settings.threads, prompts),
                                                   .end_tokens = {arithmetic.tokenizer->eos_id().value()},
                                                   .prompts = {},
                                                   .max_new_tokens = 8});
  for (int64_t i = 0; i < prompts; ++i) {
    rollout->prompts.push_back({arithmetic.problems[static_cast<size_t>(i)].prompt, 8});
  }
  return Timed(std::move(rollout), settings.clock);
}

absl::StatusOr<Prepared> PrepareLlama(const Settings& settings, int64_t batch) {
  TDOCK_ASSIGN_OR_RETURN(const at::Device device, model::ParseDevice(settings.device));
  // No token ends an answer: all have the full length.
  auto rollout = std::make_shared<Rollout>(Rollout{.decoder = MakeLlama95m(device),
                                                   .workers = ShareSamples(settings.threads, batch),
                                                   .end_tokens = {},
                                                   .prompts = {},
                                                   .max_new_tokens = settings.quick ? 2 : 32});
  for (int64_t i = 0; i < batch; ++i) {
    rollout->prompts.push_back({RandomTokens(rollout->decoder, 32, static_cast<uint64_t>(i)), 1});
  }
  return Timed(std::move(rollout), settings.clock);
}

}  // namespace

std::vector<Benchmark> GenerateBenchmarks() {
  std::vector<Benchmark> benchmarks;
  const auto add = [&](const std::string& name, auto prepare) {
    benchmarks.push_back(
        {.name = name, .unit = "tokens/s", .better = Better::kHigher, .prepare = [prepare](const Settings& settings) {
           return trainer::Guarded([&] { return prepare(settings); });
         }});
  };
  add("generate/arithmetic", PrepareRollout);
  for (int64_t batch : {1, 8}) {
    add(absl::StrCat("generate/llama95m/batch=", batch),
        [batch](const Settings& settings) { return PrepareLlama(settings, batch); });
  }
  return benchmarks;
}

}  // namespace tdock::bench
