#include "bench/inference/inference_benchmarks.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/inference/served_llama.h"
#include "bench/inference/stream_load.h"
#include "bench/torch/subjects.h"
#include "core/base/env.h"
#include "engine/engine.h"
#include "engine/model_folder.h"
#include "inference/constraints.h"
#include "model/decoder/device.h"
#include "trainer/stages/guard.h"

namespace tdock::bench {
namespace {

using Json = nlohmann::json;

// bench/peers/inference/peer.py asks for the same.
StreamLoad LoadOf(const Settings& settings) {
  StreamLoad load;
  if (settings.quick) load = {.streams = 4, .prompt = 8, .new_tokens = 8};
  load.fields = {{"temperature", 0}, {"ignore_eos", true}};
  return load;
}

std::vector<Detail> DetailsOf(const StreamFigures& figures) {
  return {{"tokens_per_s", figures.tokens_per_s},    {"first_token_p50_ms", figures.first_p50},
          {"first_token_p99_ms", figures.first_p99}, {"next_token_p50_ms", figures.next_p50},
          {"next_token_p99_ms", figures.next_p99},   {"events_per_token", figures.events}};
}

// Streams of a server, in each run with other prompts: nothing of a run is of use to the next.
class StreamRuns {
 public:
  StreamRuns(std::unique_ptr<ServedLlama> served, StreamLoad load)
      : served_(std::move(served)), load_(std::move(load)) {
    load_.port = served_->port();
  }

  const ServedLlama& served() const { return *served_; }
  const StreamLoad& load() const { return load_; }

  absl::StatusOr<StreamFigures> Run(const Json& update = nullptr) {
    ++load_.seed;
    load_.update = update;
    return RunStreamsApart(load_);
  }

 private:
  const std::unique_ptr<ServedLlama> served_;
  StreamLoad load_;
};

absl::StatusOr<std::shared_ptr<StreamRuns>> RunsOf(const Settings& settings, at::ScalarType dtype, StreamLoad load) {
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<ServedLlama> served, ServedLlama::Start(settings, dtype));
  return std::make_shared<StreamRuns>(std::move(served), std::move(load));
}

absl::StatusOr<Prepared> PrepareStreams(const Settings& settings, at::ScalarType dtype, double StreamFigures::*figure) {
  TDOCK_ASSIGN_OR_RETURN(const std::shared_ptr<StreamRuns> runs, RunsOf(settings, dtype, LoadOf(settings)));
  return Prepared{.run = [runs, figure]() -> absl::StatusOr<Figure> {
    TDOCK_ASSIGN_OR_RETURN(const StreamFigures figures, runs->Run());
    return Figure(figures.*figure, DetailsOf(figures));
  }};
}

// An engine that is set up as that of `tdock serve`, in this process.
class EngineAlone {
 public:
  EngineAlone(engine::ModelFolder folder, int threads)
      : folder_(std::move(folder)),
        workers_(ShareSamples(threads, threads)),
        engine_(folder_.decoder, {.end_tokens = folder_.end_tokens,
                                  .max_rows = 256,
                                  .workers = workers_.get(),
                                  .tokenizer = folder_.tokenizer.get()}) {
    // As the server does it: packed once, and what the cache has taken stays.
    model::Decoder packed = folder_.decoder;
    if (packed.batch_invariant()) packed.PackWeights();
    engine_.Serve(std::make_shared<const model::Decoder>(std::move(packed)), 0);
  }

  int64_t vocab_size() const { return folder_.decoder.config().vocab_size; }

  // The prompts differ from those of the streams; their lengths do not. `constrain` as that of engine::Request.
  absl::StatusOr<Figure> TokensPerSecond(Clock& clock, const StreamLoad& load,
                                         decltype(engine::Request::constrain) constrain = {}) {
    std::vector<engine::Request> requests;
    for (int i = 0; i < load.streams; ++i) {
      engine::Request& request = requests.emplace_back();
      request.prompt.tokens = RandomTokens(folder_.decoder, load.prompt, ++seed_);
      request.sampling = {.temperature = 0, .max_new_tokens = load.new_tokens, .ignore_eos = true};
      request.constrain = constrain;
    }
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&] {
                             return engine_.AnswerAll(std::move(requests), [](std::span<engine::Answer> ended) {
                               for (const engine::Answer& answer : ended) TDOCK_RETURN_IF_ERROR(answer.status);
                               return absl::OkStatus();
                             });
                           }));
    return static_cast<double>(load.streams) * static_cast<double>(load.new_tokens) / seconds;
  }

 private:
  const engine::ModelFolder folder_;
  const std::unique_ptr<Workers> workers_;
  engine::Engine engine_;
  uint64_t seed_ = 0;
};

absl::StatusOr<Prepared> PrepareOverhead(const Settings& settings, at::ScalarType dtype) {
  TDOCK_ASSIGN_OR_RETURN(const at::Device device, model::ParseDevice(settings.device));
  TDOCK_ASSIGN_OR_RETURN(const std::shared_ptr<StreamRuns> runs, RunsOf(settings, dtype, LoadOf(settings)));
  TDOCK_ASSIGN_OR_RETURN(engine::ModelFolder folder,
                         engine::LoadModelFolder(Env::Real(), runs->served().folder(), device));
  const auto alone = std::make_shared<EngineAlone>(std::move(folder), settings.threads);
  return Prepared{.run = [runs]() -> absl::StatusOr<Figure> {
                    TDOCK_ASSIGN_OR_RETURN(const StreamFigures figures, runs->Run());
                    return figures.tokens_per_s;
                  },
                  .reference =
                      [runs, alone, &clock = settings.clock] {
                        return trainer::Guarded([&] { return alone->TokensPerSecond(clock, runs->load()); });
                      }};
}

// Answers of a JSON schema beside any others.
absl::StatusOr<Prepared> PrepareGrammar(const Settings& settings, at::ScalarType dtype) {
  TDOCK_ASSIGN_OR_RETURN(const at::Device device, model::ParseDevice(settings.device));
  TDOCK_ASSIGN_OR_RETURN(const std::shared_ptr<LlamaFolder> model, LlamaFolder::Write(settings, dtype));
  TDOCK_ASSIGN_OR_RETURN(engine::ModelFolder folder, engine::LoadModelFolder(Env::Real(), model->path(), device));
  const auto alone = std::make_shared<EngineAlone>(std::move(folder), settings.threads);
  const auto masks = MasksOfLongAnswers(static_cast<size_t>(alone->vocab_size()));
  StreamLoad load = LoadOf(settings);
  if (!settings.quick) load.streams = 16;
  return Prepared{.run =
                      [alone, masks, load, &clock = settings.clock] {
                        return trainer::Guarded([&] {
                          return alone->TokensPerSecond(clock, load, [&](int64_t) {
                            return std::make_unique<inference::GrammarConstraint>(masks);
                          });
                        });
                      },
                  .reference =
                      [alone, load, &clock = settings.clock] {
                        return trainer::Guarded([&] { return alone->TokensPerSecond(clock, load); });
                      }};
}

constexpr int kMaxAttempts = 10;

// The longest time without a token of a stream, from when other weights are asked for: in steps.
absl::StatusOr<Prepared> PrepareUpdate(const Settings& settings, at::ScalarType dtype) {
  StreamLoad load = LoadOf(settings);
  load.new_tokens = 256;
  TDOCK_ASSIGN_OR_RETURN(const std::shared_ptr<StreamRuns> runs, RunsOf(settings, dtype, std::move(load)));
  const Json update = {{"model_path", runs->served().folder()}, {"flush_cache", false}};
  return Prepared{.run = [runs, update, quick = settings.quick]() -> absl::StatusOr<Figure> {
    StreamFigures figures;
    // On a loaded machine, streams may end before the last of them begins: then no step was seen.
    for (int attempt = 0; attempt < kMaxAttempts && figures.step <= 0; ++attempt) {
      TDOCK_ASSIGN_OR_RETURN(figures, runs->Run(update));
    }
    if (figures.step <= 0) {
      return absl::InternalError(absl::StrCat("in ", kMaxAttempts, " runs, streams ended before all had begun: the ",
                                              "machine has too much to do"));
    }
    if (!quick && figures.left < 0) {
      return absl::InternalError(absl::StrCat("a stream ended ", -figures.left,
                                              " ms before the weights were exchanged: the machine has too much to do"));
    }
    return Figure(figures.longest_after / figures.step, {{"longest_before", figures.longest_before / figures.step},
                                                         {"step_ms", figures.step},
                                                         {"update_ms", figures.update}});
  }};
}

}  // namespace

std::vector<Benchmark> InferenceBenchmarks() {
  std::vector<Benchmark> benchmarks;
  const auto add = [&](const std::string& name, const std::string& unit, Better better, const std::string& of,
                       auto prepare) {
    for (const auto& [dtype, suffix] :
         {std::pair(at::kFloat, "/dtype=float32"), std::pair(at::kBFloat16, "/dtype=bfloat16")}) {
      benchmarks.push_back({.name = name + suffix,
                            .unit = unit,
                            .better = better,
                            .of = of,
                            .prepare = [prepare, dtype = dtype](const Settings& settings) {
                              return trainer::Guarded([&] { return prepare(settings, dtype); });
                            }});
    }
  };
  const auto add_streams = [&](const std::string& name, const std::string& unit, Better better,
                               double StreamFigures::*figure) {
    add(name, unit, better, "",
        [figure](const Settings& settings, at::ScalarType dtype) { return PrepareStreams(settings, dtype, figure); });
  };
  add_streams("serve/throughput", "tokens/s", Better::kHigher, &StreamFigures::tokens_per_s);
  add_streams("serve/first_token/p50", "ms", Better::kLower, &StreamFigures::first_p50);
  add_streams("serve/first_token/p99", "ms", Better::kLower, &StreamFigures::first_p99);
  add_streams("serve/next_token/p99", "ms", Better::kLower, &StreamFigures::next_p99);
  add("serve/overhead", "tokens/s", Better::kHigher, "the engine alone", PrepareOverhead);
  add("serve/grammar/tokens", "tokens/s", Better::kHigher, "answers without a grammar", PrepareGrammar);
  add("serve/update_weights", "steps", Better::kLower, "", PrepareUpdate);
  for (Benchmark& benchmark : GrammarBenchmarks()) benchmarks.push_back(std::move(benchmark));
  return benchmarks;
}

}  // namespace tdock::bench
