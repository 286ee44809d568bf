// For tests: runs of recipes on files and models that are small.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "nlohmann/json.hpp"
#include "trainer/loop/train.h"
#include "trainer/recipes/recipes.h"

namespace tdock::trainer {

inline std::string NewFolder() {
  std::string path = testing::TempDir() + "/run_test_XXXXXX";
  return ::mkdtemp(path.data());
}

// Two digits, to be answered in reverse: prompts "37>" and answers "73". Every fifth is held out.
inline std::string Reversals(bool held_out) {
  std::string lines;
  for (int i = 0; i < 100; ++i) {
    if ((i % 5 == 4) != held_out) continue;
    const std::string digits = absl::StrFormat("%02d", i);
    absl::StrAppend(&lines, R"({"prompt": ")", digits, R"(>", "answer": ")", digits.substr(1), digits.substr(0, 1),
                    "\"}\n");
  }
  return lines;
}

// Preferences to the same prompts: answers of large digits are better than those of small ones.
inline std::string DigitPreferences(bool held_out) {
  std::string lines;
  for (int i = 0; i < 100; ++i) {
    if ((i % 5 == 4) != held_out) continue;
    const int a = (i * 7 + 3) % 5, b = (i / 5) % 5;
    absl::StrAppend(
        &lines, absl::StrFormat(R"({"prompt": "%02d>", "chosen": "%d%d", "rejected": "%d%d"})", i, 5 + a, 5 + b, b, a),
        "\n");
  }
  return lines;
}

// A dock of a test that a run is given as one that others have, too.
class LentDock final : public dock::SharedDock {
 public:
  explicit LentDock(Dock& dock) : dock_(dock) {}
  static OpenSharedDock Of(Dock& dock) {
    return [&dock](const dock::SharedDockOptions&) -> absl::StatusOr<std::unique_ptr<dock::SharedDock>> {
      return std::make_unique<LentDock>(dock);
    };
  }
  Dock& dock() override { return dock_; }
  std::string address() const override { return "unix:/lent.sock"; }
  std::vector<std::string> warnings() const override { return {"it is only lent"}; }

 private:
  Dock& dock_;
};

// A run in a folder of its own, whose files it makes: train.jsonl, val.jsonl, and run/ for the run.
class SmallRun {
 public:
  // A tiny model with random weights, unless `overrides` name one; three steps.
  explicit SmallRun(const std::string& recipe, const std::vector<std::string>& overrides = {}) : folder_(NewFolder()) {
    const auto data = recipe == "rm" || recipe == "dpo" ? DigitPreferences : Reversals;
    EXPECT_EQ(WriteFileAtomically(Env::Real(), folder_ + "/train.jsonl", data(false)), absl::OkStatus());
    EXPECT_EQ(WriteFileAtomically(Env::Real(), folder_ + "/val.jsonl", data(true)), absl::OkStatus());
    overrides_ = {absl::StrCat("data.train_files=", folder_, "/train.jsonl"),
                  absl::StrCat("data.val_files=", folder_, "/val.jsonl"), absl::StrCat("trainer.run_dir=", run_dir()),
                  "trainer.total_training_steps=3", "threads=2"};
    const auto given = [&](absl::string_view key) {
      return std::any_of(overrides.begin(), overrides.end(),
                         [&](const std::string& o) { return absl::StartsWith(o, key); });
    };
    if (!given("model.path=")) {
      for (const char* size : {"model.alphabet=0123456789>", "model.hidden_size=32", "model.intermediate_size=48",
                               "model.num_hidden_layers=2"}) {
        overrides_.push_back(size);
      }
    }
    if (recipe == "sft") overrides_.push_back("data.max_response_length=5");
    if (recipe == "grpo" || recipe == "ppo" || recipe == "dapo") {
      for (const char* more : {"data.train_batch_size=8", "data.max_prompt_length=8", "data.max_response_length=5",
                               "rollout.n=4", "actor.ppo_mini_batch_size=4", "actor.optim.lr=4e-4"}) {
        overrides_.push_back(more);
      }
      if (recipe == "grpo") overrides_.push_back("actor.kl_loss_coef=0.001");  // so that it has all stages
    } else {
      for (const char* more : {"data.train_batch_size=16", "data.max_length=12", "optim.lr=1e-3"}) {
        overrides_.push_back(more);
      }
    }
    overrides_.insert(overrides_.end(), overrides.begin(), overrides.end());
    EXPECT_EQ(WriteFileAtomically(Env::Real(), config_path(), absl::StrCat("recipe: ", recipe, "\n")),
              absl::OkStatus());
  }

  // One that another process has made.
  struct Made {
    std::string folder;
    std::vector<std::string> overrides;
  };
  explicit SmallRun(Made made) : folder_(std::move(made.folder)), overrides_(std::move(made.overrides)) {}
  Made made() const { return {folder_, overrides_}; }

  const std::string& folder() const { return folder_; }
  std::string config_path() const { return folder_ + "/run.yaml"; }
  std::string run_dir() const { return folder_ + "/run"; }
  std::string File(const std::string& name) const { return *Env::Real().ReadFile(run_dir() + "/" + name); }

  struct Outside {
    Env& env = Env::Real();
    reward::Reward* reward = nullptr;
    const std::atomic<bool>* stop = nullptr;
    OpenSharedDock open_shared_dock = nullptr;
    Clock& clock = Clock::Real();
    std::atomic<bool>* save = nullptr;
    std::vector<std::string> allow_changed = {};
    std::vector<std::string> overrides = {};
    // In place of the recipe; and of a dock that is the run's alone. Null: those that there are.
    std::function<std::unique_ptr<Recipe>(std::unique_ptr<Recipe>)> wrap = nullptr;
    std::function<std::unique_ptr<Dock>(Clock&)> make_dock = nullptr;
    std::function<void(const absl::Status&)> give_up = nullptr;
  };
  absl::StatusOr<RunResult> Train(const Outside& outside) {
    std::vector<std::string> overrides = overrides_;
    overrides.insert(overrides.end(), outside.overrides.begin(), outside.overrides.end());
    TDOCK_ASSIGN_OR_RETURN(auto recipe, LoadRecipe(Env::Real(), config_path(), overrides));
    if (outside.wrap != nullptr) recipe = outside.wrap(std::move(recipe));
    Progress progress({.write = [](absl::string_view) {}, .columns = [] { return 0; }}, outside.clock);
    RunContext context{outside.env, outside.clock, progress, outside.stop};
    context.save = outside.save;
    context.allow_changed = outside.allow_changed;
    context.open_shared_dock = outside.open_shared_dock;
    if (outside.make_dock != nullptr) context.make_dock = outside.make_dock;
    if (outside.give_up != nullptr) context.give_up = outside.give_up;
    context.log = [this](const std::string& line) {
      const std::lock_guard lock(log_mu_);
      log_.push_back(line);
    };
    TDOCK_ASSIGN_OR_RETURN(const auto run, PrepareRun(*recipe, context, outside.reward));
    return run->Train();
  }
  absl::StatusOr<RunResult> Train() { return Train(Outside()); }

  const std::vector<std::string>& log() const { return log_; }

  std::vector<nlohmann::json> Metrics() const {
    std::vector<nlohmann::json> records;
    for (absl::string_view line : absl::StrSplit(File("metrics.jsonl"), '\n', absl::SkipEmpty())) {
      records.push_back(nlohmann::json::parse(line));
    }
    return records;
  }
  // Without what was measured of time and memory.
  std::vector<nlohmann::json> ReproducibleMetrics() const {
    std::vector<nlohmann::json> records = Metrics();
    for (nlohmann::json& record : records) {
      for (auto it = record.begin(); it != record.end();) {
        bool timed = it.key().starts_with("timing_");
        for (const char* measured : {"perf/throughput", "perf/time_per_step", "perf/mfu/", "perf/cpu_memory_used_gb"}) {
          timed = timed || it.key().starts_with(measured);
        }
        it = timed ? record.erase(it) : std::next(it);
      }
    }
    return records;
  }

 private:
  const std::string folder_;
  std::vector<std::string> overrides_;
  std::mutex log_mu_;
  std::vector<std::string> log_;
};

// The folder of a model that a run with these has trained.
inline std::string TrainedModel(const std::string& recipe, const std::vector<std::string>& overrides) {
  SmallRun run(recipe, overrides);
  const auto result = run.Train();
  EXPECT_TRUE(result.ok()) << result.status();
  return run.run_dir() + "/checkpoint";
}

// One that has learnt to answer a little, and one that knows which answers are better.
inline const std::string& AnsweringModel() {
  static const std::string* const folder =
      new std::string(TrainedModel("sft", {"trainer.total_training_steps=20", "optim.lr=3e-3"}));
  return *folder;
}
inline const std::string& ScoringModel() {
  static const std::string* const folder = new std::string(
      TrainedModel("rm", {"model.path=" + AnsweringModel(), "trainer.total_training_steps=60", "optim.lr=3e-3"}));
  return *folder;
}

}  // namespace tdock::trainer
