#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/torch/model_benchmarks.h"
#include "bench/torch/subjects.h"
#include "engine/engine.h"
#include "model/decoder/device.h"
#include "trainer/stages/guard.h"

namespace tdock::bench {
namespace {

// A decoder, and what an engine with it is asked.
struct Rollout {
  model::Decoder decoder;
  std::unique_ptr<Workers> workers;
  std::vector<int32_t> end_tokens = {};
  std::vector<engine::Request> requests = {};
  bool int8_weights = false;

  void Ask(std::vector<int32_t> prompt, int64_t samples, int64_t max_new_tokens) {
    engine::Request& request = requests.emplace_back();
    request.prompt = {.tokens = std::move(prompt), .samples = samples};
    request.sampling = {.max_new_tokens = max_new_tokens, .seed = 1};
  }

  absl::StatusOr<Figure> TokensPerSecond(Clock& clock, engine::EngineOptions options) const {
    size_t tokens = 0;
    const std::unique_ptr<engine::Engine> engine = MakeEngine(options);
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&]() -> absl::Status {
                             TDOCK_ASSIGN_OR_RETURN(tokens, AnswerAll(*engine, requests));
                             return absl::OkStatus();
                           }));
    return static_cast<double>(tokens) / seconds;
  }

  // Tokens of prompts, when each request has one answer of one token.
  absl::StatusOr<Figure> PromptTokensPerSecond(Clock& clock) const {
    int64_t tokens = 0;
    for (const engine::Request& request : requests) tokens += std::ssize(request.prompt.tokens);
    const std::unique_ptr<engine::Engine> engine = MakeEngine(AllPromptsAtOnce());
    engine->Serve(std::make_shared<const model::Decoder>(decoder), 1);
    // The first answer lays out the weights, which then stay.
    TDOCK_RETURN_IF_ERROR(
        engine->Generate(std::vector<engine::Prompt>{{.tokens = {1}}}, {.max_new_tokens = 1}).status());
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&] { return AnswerAll(*engine, requests).status(); }));
    return static_cast<double>(tokens) / seconds;
  }

  // New tokens after each request, of one sample, has its first: without the time to read the prompts.
  absl::StatusOr<Figure> DecodedTokensPerSecond(Clock& clock) const {
    std::vector<engine::Request> timed = requests;
    std::vector<bool> begun_by(timed.size());
    size_t without_token = timed.size(), tokens = 0;
    absl::Time begun;
    for (size_t i = 0; i < timed.size(); ++i) {
      timed[i].on_token = [&, i](int64_t, const engine::NewToken&) {
        if (without_token == 0) ++tokens;
        if (begun_by[i]) return;
        begun_by[i] = true;
        if (--without_token == 0) begun = clock.Now();
      };
    }
    TDOCK_RETURN_IF_ERROR(AnswerAll(*MakeEngine(AllPromptsAtOnce()), std::move(timed)).status());
    return static_cast<double>(tokens) / absl::ToDoubleSeconds(clock.Now() - begun);
  }

 private:
  // All answers then have their first token after the first step.
  engine::EngineOptions AllPromptsAtOnce() const {
    engine::EngineOptions options;
    options.max_step_tokens = 0;
    for (const engine::Request& request : requests) options.max_step_tokens += std::ssize(request.prompt.tokens);
    return options;
  }

  std::unique_ptr<engine::Engine> MakeEngine(engine::EngineOptions options) const {
    options.end_tokens = end_tokens;
    options.workers = workers.get();
    options.int8_weights = int8_weights;
    return std::make_unique<engine::Engine>(decoder, options);
  }

  // The number of new tokens.
  static absl::StatusOr<size_t> AnswerAll(engine::Engine& engine, std::vector<engine::Request> asked) {
    size_t tokens = 0;
    const auto after_step = [&](std::span<engine::Answer> ended) {
      for (const engine::Answer& answer : ended) {
        TDOCK_RETURN_IF_ERROR(answer.status);
        tokens += answer.completion.tokens.size();
      }
      return absl::OkStatus();
    };
    TDOCK_RETURN_IF_ERROR(engine.AnswerAll(std::move(asked), after_step));
    return tokens;
  }
};

TimedRun Timed(std::shared_ptr<const Rollout> rollout, Clock& clock, const engine::EngineOptions& options = {}) {
  return [rollout = std::move(rollout), &clock, options] {
    return trainer::Guarded([&] { return rollout->TokensPerSecond(clock, options); });
  };
}

absl::StatusOr<Prepared> PrepareArithmetic(const Settings& settings) {
  TDOCK_ASSIGN_OR_RETURN(const at::Device device, model::ParseDevice(settings.device));
  TDOCK_ASSIGN_OR_RETURN(Arithmetic arithmetic, MakeArithmetic(device));
  const int64_t prompts = settings.quick ? 16 : 128;
  auto rollout = std::make_shared<Rollout>(Rollout{.decoder = std::move(arithmetic.decoder),
                                                   .workers = ShareSamples(settings.threads, prompts),
                                                   .end_tokens = {arithmetic.tokenizer->eos_id().value()}});
  for (int64_t i = 0; i < prompts; ++i) rollout->Ask(arithmetic.problems[static_cast<size_t>(i)].prompt, 8, 8);
  return Prepared{.run = Timed(std::move(rollout), settings.clock)};
}

model::Decoder MakeLlama(const at::Device& device, at::ScalarType dtype, bool /*quick*/) {
  return MakeLlama95m(device, dtype);
}

// A model that decodes.
struct Model {
  model::Decoder (*make)(const at::Device& device, at::ScalarType dtype, bool quick) = MakeLlama;
  at::ScalarType dtype = at::kFloat;
  bool int8_weights = false;
};

// No token ends an answer: all have the full length.
absl::StatusOr<std::shared_ptr<Rollout>> LlamaRollout(const Settings& settings, int64_t answers,
                                                      const Model& model = {}) {
  TDOCK_ASSIGN_OR_RETURN(const at::Device device, model::ParseDevice(settings.device));
  return std::make_shared<Rollout>(Rollout{.decoder = model.make(device, model.dtype, settings.quick),
                                           .workers = ShareSamples(settings.threads, answers),
                                           .int8_weights = model.int8_weights});
}

// The most likely tokens, as bench/peers/generate chooses them.
absl::StatusOr<std::shared_ptr<Rollout>> GreedyRollout(const Settings& settings, const Model& model, int64_t requests,
                                                       int64_t prompt, int64_t new_tokens) {
  TDOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Rollout> rollout, LlamaRollout(settings, settings.threads, model));
  for (int64_t i = 0; i < requests; ++i) {
    rollout->Ask(RandomTokens(rollout->decoder, prompt, static_cast<uint64_t>(i)), 1, new_tokens);
    rollout->requests.back().sampling.temperature = 0;
  }
  return rollout;
}

// bench/peers/generate/shapes.py has the same lengths.
absl::StatusOr<Prepared> PrepareBatch(const Settings& settings, const Model& model, int64_t batch) {
  const int64_t prompt = settings.quick ? 8 : batch == 1 ? 32 : 128, new_tokens = settings.quick ? 4 : 128;
  TDOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Rollout> rollout,
                         GreedyRollout(settings, model, batch, prompt, new_tokens));
  return Prepared{.run = [rollout, &clock = settings.clock] {
    return trainer::Guarded([&] { return rollout->DecodedTokensPerSecond(clock); });
  }};
}

absl::StatusOr<TimedRun> TimedPrefill(const Settings& settings, at::ScalarType dtype,
                                      std::optional<int64_t> prompt_log_probs) {
  const int64_t prompt = settings.quick ? 16 : 512;
  TDOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Rollout> rollout,
                         GreedyRollout(settings, {.dtype = dtype}, 1, prompt, 1));
  rollout->requests.back().prompt_log_probs = prompt_log_probs;
  return [rollout, &clock = settings.clock] {
    return trainer::Guarded([&] { return rollout->PromptTokensPerSecond(clock); });
  };
}

absl::StatusOr<Prepared> PreparePrefill(const Settings& settings, at::ScalarType dtype) {
  TDOCK_ASSIGN_OR_RETURN(TimedRun run, TimedPrefill(settings, dtype, std::nullopt));
  return Prepared{.run = std::move(run)};
}

// The reference reads the same prompt for its answer alone.
absl::StatusOr<Prepared> PreparePromptLogProbs(const Settings& settings, at::ScalarType dtype) {
  TDOCK_ASSIGN_OR_RETURN(TimedRun run, TimedPrefill(settings, dtype, 0));
  TDOCK_ASSIGN_OR_RETURN(TimedRun reference, TimedPrefill(settings, dtype, std::nullopt));
  return Prepared{.run = std::move(run), .reference = std::move(reference)};
}

// The reference multiplies by libtorch.
absl::StatusOr<Prepared> PrepareInvariant(const Settings& settings) {
  if (settings.device != "cpu") return absl::InvalidArgumentError("batch-invariant mode is for the CPU");
  const int64_t prompt = settings.quick ? 8 : 128, new_tokens = settings.quick ? 4 : 64;
  std::vector<TimedRun> runs;
  for (const bool invariant : {true, false}) {
    TDOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Rollout> rollout, GreedyRollout(settings, {}, 16, prompt, new_tokens));
    rollout->decoder.SetBatchInvariant(invariant);
    runs.emplace_back([rollout, &clock = settings.clock] {
      return trainer::Guarded([&] { return rollout->DecodedTokensPerSecond(clock); });
    });
  }
  return Prepared{.run = runs[0], .reference = runs[1]};
}

// Lengths are uniform, in an order without a pattern, and each batch has long and short ones.
absl::StatusOr<Prepared> PrepareMixed(const Settings& settings) {
  const int64_t requests = settings.quick ? 8 : 64, shortest = settings.quick ? 2 : 16,
                longest = settings.quick ? 8 : 256;
  TDOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Rollout> rollout, LlamaRollout(settings, requests));
  for (int64_t i = 0; i < requests; ++i) {
    const int64_t place = i * 37 % requests;
    rollout->Ask(RandomTokens(rollout->decoder, 32, static_cast<uint64_t>(i)), 1,
                 shortest + (longest - shortest) * place / (requests - 1));
  }
  engine::EngineOptions options, held;
  options.max_rows = held.max_rows = settings.quick ? 2 : 8;
  held.one_batch_at_a_time = true;
  return Prepared{.run = Timed(rollout, settings.clock, options), .reference = Timed(rollout, settings.clock, held)};
}

// The reference answers as many prompts of the same length, which differ from one another.
absl::StatusOr<Prepared> PrepareSamples(const Settings& settings, int64_t prompts, int64_t samples) {
  const int64_t length = settings.quick ? 32 : 256, answer = settings.quick ? 2 : 32;
  TDOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Rollout> shared, LlamaRollout(settings, prompts * samples));
  TDOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Rollout> separate, LlamaRollout(settings, prompts * samples));
  for (int64_t i = 0; i < prompts * samples; ++i) {
    std::vector<int32_t> prompt = RandomTokens(shared->decoder, length, static_cast<uint64_t>(i));
    if (i < prompts) shared->Ask(prompt, samples, answer);
    separate->Ask(std::move(prompt), 1, answer);
  }
  return Prepared{.run = Timed(shared, settings.clock), .reference = Timed(separate, settings.clock)};
}

}  // namespace

std::vector<Benchmark> GenerateBenchmarks() {
  std::vector<Benchmark> benchmarks;
  const auto add = [&](const std::string& name, const std::string& of, auto prepare) {
    benchmarks.push_back({.name = name,
                          .unit = "tokens/s",
                          .better = Better::kHigher,
                          .of = of,
                          .prepare = [prepare](const Settings& settings) {
                            return trainer::Guarded([&] { return prepare(settings); });
                          }});
  };
  add("generate/arithmetic", "", PrepareArithmetic);
  const auto add_batches = [&](const std::string& group, const Model& model, const std::string& suffix) {
    for (const int64_t batch : {1, 16, 64}) {
      add(absl::StrCat(group, "/batch=", batch, suffix), "",
          [model, batch](const Settings& settings) { return PrepareBatch(settings, model, batch); });
    }
  };
  for (const auto& [group, make] :
       {std::pair{"generate", &MakeLlama}, {"generate/smollm2", &MakeSmolLm2}, {"generate/qwen3", &MakeQwen3}}) {
    add_batches(group, {.make = make, .dtype = at::kFloat}, "/dtype=float32");
    add_batches(group, {.make = make, .dtype = at::kBFloat16}, "/dtype=bfloat16");
    add_batches(group, {.make = make, .dtype = at::kBFloat16, .int8_weights = true}, "/dtype=int8");
  }
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::string suffix = dtype == at::kFloat ? "/dtype=float32" : "/dtype=bfloat16";
    add(absl::StrCat("prefill/tokens=512", suffix), "",
        [dtype](const Settings& settings) { return PreparePrefill(settings, dtype); });
    add(absl::StrCat("prefill/log_probs", suffix), "the prompt without its log-probabilities",
        [dtype](const Settings& settings) { return PreparePromptLogProbs(settings, dtype); });
  }
  add("generate/invariant", "libtorch's products", PrepareInvariant);
  add("generate/mixed", "one batch at a time", PrepareMixed);
  add("generate/prompts=8/samples=8", "64 prompts",
      [](const Settings& settings) { return PrepareSamples(settings, 8, 8); });
  return benchmarks;
}

}  // namespace tdock::bench
