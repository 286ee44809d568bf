// Whole steps of GRPO in several processes, as `tdock launch` starts them.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "bench/runtime/runtime_benchmarks.h"
#include "core/base/child_process.h"
#include "core/base/env.h"
#include "core/base/json_text.h"
#include "core/base/rng.h"

namespace tdock::bench {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kRunTime = absl::Minutes(20);

enum class Roles { kShared, kApart };

// That of bench/peers/grpo_step.
struct Size {
  int tokens, hidden, ffn, layers, heads, kv_heads;
  int prompts, samples, prompt_tokens, new_tokens;
};
constexpr Size kFull = {8192, 512, 1536, 8, 8, 4, 4, 8, 48, 128};
constexpr Size kQuick = {64, 32, 48, 2, 4, 2, 2, 4, 12, 8};

// One of many characters, each of which is a token.
std::string Character(int number) {
  const int code = 0x4E00 + number;
  return {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3F)),
          static_cast<char>(0x80 | (code & 0x3F))};
}

// Runs of two steps, in a folder that is gone afterwards, of whose second the figures are.
class StepRuns {
 public:
  StepRuns(const Settings& settings, Roles roles)
      : size_(settings.quick ? kQuick : kFull),
        roles_(roles),
        processes_(roles == Roles::kShared ? 2 : 3),
        threads_(settings.threads),
        folder_(absl::StrCat(std::filesystem::temp_directory_path().string(), "/tdock-bench-step-", ::getpid(), "-",
                             processes_)) {}
  ~StepRuns() { std::filesystem::remove_all(folder_); }
  StepRuns(const StepRuns&) = delete;
  StepRuns& operator=(const StepRuns&) = delete;

  absl::Status SetUp() {
    std::filesystem::create_directories(folder_);
    Rng rng(1);
    std::string lines;
    for (int i = 0; i < 64; ++i) {
      std::string prompt;
      for (int c = 0; c < size_.prompt_tokens; ++c) prompt += Character(static_cast<int>(rng.Below(Characters())));
      absl::StrAppend(&lines, JsonText(Json{{"prompt", prompt}}), "\n");
    }
    TDOCK_RETURN_IF_ERROR(WriteFileAtomically(Env::Real(), JoinPath(folder_, "train.jsonl"), lines));
    return WriteFileAtomically(Env::Real(), JoinPath(folder_, "run.yaml"), JsonText(Config()));
  }

  // The share of the step in which no model computes, in percent. Of a stage that several ranks carry out, the mean of
  // theirs counts as the model's time: that one waits for another is outside.
  absl::StatusOr<Figure> Run() {
    TDOCK_ASSIGN_OR_RETURN(const Json step, LastStep());
    double in_models = 0;
    for (const auto& [key, value] : step.items()) {
      if (!absl::StartsWith(key, "timing_model_s/")) continue;
      const std::string stage = key.substr(key.find('/') + 1);
      const bool divided = roles_ == Roles::kShared && stage != "actor";
      in_models += value.get<double>() / (divided ? processes_ : 1);
    }
    const auto seconds = step.at("timing_s/step").get<double>();
    if (in_models <= 0 || in_models > seconds) {
      return absl::InternalError(absl::StrCat("the models compute ", in_models, " s of a step of ", seconds, " s"));
    }
    return Figure(100 * (1 - in_models / seconds), {{"step_s", seconds}, {"outside_s", seconds - in_models}});
  }

 private:
  uint64_t Characters() const { return static_cast<uint64_t>(size_.tokens - 2); }  // beside padding and end of text

  Json Config() const {
    std::string alphabet;
    for (uint64_t c = 0; c < Characters(); ++c) alphabet += Character(static_cast<int>(c));
    Json config = {{"recipe", "grpo"},
                   {"threads", roles_ == Roles::kShared ? std::max(threads_ / processes_, 1) : threads_},
                   {"model",
                    {{"alphabet", alphabet},
                     {"hidden_size", size_.hidden},
                     {"intermediate_size", size_.ffn},
                     {"num_hidden_layers", size_.layers},
                     {"num_attention_heads", size_.heads},
                     {"num_key_value_heads", size_.kv_heads},
                     {"max_position_embeddings", 2 * (size_.prompt_tokens + size_.new_tokens)},
                     {"tie_word_embeddings", false}}},
                   {"data",
                    {{"train_files", {JoinPath(folder_, "train.jsonl")}},
                     {"train_batch_size", size_.prompts},
                     {"max_prompt_length", size_.prompt_tokens},
                     {"max_response_length", size_.new_tokens}}},
                   {"rollout", {{"n", size_.samples}, {"ignore_eos", true}}},
                   {"actor", {{"ppo_mini_batch_size", size_.prompts}, {"kl_loss_coef", 0.04}, {"kl_loss_type", "k3"}}},
                   {"reward", {{"length", {{"weight", 1}, {"soft_limit", 0}, {"hard_limit", 12 * size_.new_tokens}}}}},
                   {"trainer",
                    {{"total_training_steps", 2},
                     {"val_before_train", false},
                     {"save_freq", "0"},
                     {"executor", "sequential"},
                     {"peak_flops", 1e12}}}};
    if (roles_ == Roles::kApart) {
      config["resources"] = {{"pools", {"actor=1", "rollout=1", "ref=1"}}, {"roles", {"rollout=rollout", "ref=ref"}}};
    }
    return config;
  }

  absl::StatusOr<Json> LastStep() {
    const std::string run_dir = JoinPath(folder_, "run"), log = JoinPath(folder_, "log");
    std::filesystem::remove_all(run_dir);
    // The shell becomes the program, so that it is what is killed in the end.
    TDOCK_ASSIGN_OR_RETURN(
        const auto launch,
        ChildProcess::Start({"/bin/sh", "-c", "exec \"$@\" > \"$0\" 2>&1", log, FolderOfThisProgram() + "/tdock",
                             "launch", "--nproc", absl::StrCat(processes_), JoinPath(folder_, "run.yaml"),
                             absl::StrCat("trainer.run_dir=", run_dir)}));
    TDOCK_ASSIGN_OR_RETURN(const int code, launch->Wait(kRunTime));
    if (code != 0) {
      return absl::InternalError(absl::StrCat("tdock launch ended with code ", code, ": ", EndOf(log)));
    }
    TDOCK_ASSIGN_OR_RETURN(const std::string text, Env::Real().ReadFile(JoinPath(run_dir, "metrics.jsonl")));
    const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
    const Json step = lines.empty() ? Json() : ReadJson(lines.back());
    if (!step.is_object() || step.value("step", 0) != 2 || !step.contains("timing_s/step") ||
        step.value("response_length/min", 0.0) != size_.new_tokens) {
      return absl::InternalError(absl::StrCat("the run did other work: ", lines.empty() ? "none" : lines.back()));
    }
    return step;
  }

  static std::string EndOf(const std::string& log) {
    constexpr size_t kMost = 2000;
    const absl::StatusOr<std::string> text = Env::Real().ReadFile(log);
    if (!text.ok()) return text.status().ToString();
    return text->size() <= kMost ? *text : text->substr(text->size() - kMost);
  }

  const Size size_;
  const Roles roles_;
  const int processes_, threads_;
  const std::string folder_;
};

Benchmark StepBenchmark(std::string name, Roles roles) {
  return {.name = std::move(name),
          .unit = "% outside",
          .prepare = [roles](const Settings& settings) -> absl::StatusOr<Prepared> {
            const auto runs = std::make_shared<StepRuns>(settings, roles);
            TDOCK_RETURN_IF_ERROR(runs->SetUp());
            return Prepared{.run = [runs] { return runs->Run(); }};
          }};
}

}  // namespace

std::vector<Benchmark> GrpoStepBenchmarks() {
  return {StepBenchmark("runtime/grpo_step", Roles::kShared),
          StepBenchmark("runtime/grpo_step/roles=apart", Roles::kApart)};
}

}  // namespace tdock::bench
