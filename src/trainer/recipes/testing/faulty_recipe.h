// For tests: a recipe whose stages fail at random.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "trainer/loop/recipe.h"
#include "trainer/recipes/testing/hang_clock.h"

namespace tdock::trainer {

// Decides what goes wrong. Thread-safe, but for happened() and hung(), which are read after the run.
class Faults {
 public:
  enum class Place { kNowhere, kBefore, kInside, kAfter };
  enum class Kind { kError, kException, kStop, kRequeue, kHang };
  struct Fault {
    Place place = Place::kNowhere;
    Kind kind = Kind::kError;
  };

  // One in `every` calls of a stage goes wrong; 0: none. With `hangs`, the first of them does not come back.
  Faults(uint32_t seed, int every, bool hangs = false) : random_(seed), every_(every), hangs_(hangs) {}

  // The first call of this stage does not come back, either.
  void HangIn(const std::string& stage) { hangs_in_ = stage; }

  // Of a call of this stage.
  Fault Next(const std::string& stage) {
    const std::lock_guard lock(mu_);
    if (stage == hangs_in_) {
      hangs_in_.clear();
      return {Place::kBefore, Kind::kHang};
    }
    if (every_ == 0 || BelowLocked(every_) != 0) return {};
    if (next_.empty()) {  // each comes once before any comes twice
      for (const Place place : {Place::kBefore, Place::kInside, Place::kAfter}) {
        for (const Kind kind : {Kind::kError, Kind::kException, Kind::kStop, Kind::kRequeue})
          next_.push_back({place, kind});
        if (hangs_) next_.push_back({place, Kind::kHang});
      }
      std::shuffle(next_.begin(), next_.end(), random_);
      const auto hang = std::find_if(next_.begin(), next_.end(), [](const Fault& f) { return f.kind == Kind::kHang; });
      if (hang != next_.end()) std::swap(*hang, next_.back());
    }
    const Fault fault = next_.back();
    next_.pop_back();
    calls_left_ = BelowLocked(4);
    return fault;
  }
  int Below(int limit) {
    const std::lock_guard lock(mu_);
    return BelowLocked(limit);
  }
  // Whether an inside fault is due, which is asked at each place where the stage can notice one.
  bool DueInside() { return calls_left_-- == 0; }
  bool WasDue() const { return calls_left_ < 0; }

  // Fails, or asks the run to stop, or hangs until the run is given up; those are no errors yet.
  absl::Status Happen(const Fault& fault, const std::string& stage) {
    static constexpr const char* kPlaces[] = {"nowhere", "before", "inside", "after"};
    const std::string name = absl::StrCat(kPlaces[static_cast<int>(fault.place)], " ", stage);
    if (fault.kind == Kind::kHang) {
      {
        const std::lock_guard lock(mu_);
        ++happened_["hang " + name];
        hung_.insert(stage);
      }
      EXPECT_TRUE(clock_->Hang()) << name << ": it hangs, and is not given up";
      return absl::OkStatus();
    }
    const std::lock_guard lock(mu_);
    if (fault.kind == Kind::kStop) {
      ++happened_["stop " + name];
      stop_ = true;
      return absl::OkStatus();
    }
    const bool throws = fault.kind == Kind::kException && fault.place != Place::kInside;
    ++happened_[absl::StrCat(throws ? "exception " : "error ", name)];
    const std::string message = absl::StrCat("the test fails it ", name);
    if (throws) throw std::runtime_error(message);
    return absl::UnavailableError(message);
  }
  void CountRequeue(const std::string& stage) {
    const std::lock_guard lock(mu_);
    ++happened_["requeue after " + stage];
  }
  // For another stage.
  void PutBack(const Fault& fault) {
    const std::lock_guard lock(mu_);
    next_.insert(next_.begin(), fault);
  }

  // How often what happened: "error before rollout".
  const std::map<std::string, int>& happened() const { return happened_; }
  std::atomic<bool>& stop() { return stop_; }
  // Of a run by this clock, which lets go of stages that hang once the run is given up.
  void BeginRun(HangClock& clock) {
    clock_ = &clock;
    clock.Begin();
    stop_ = false;
    hung_.clear();
  }
  // The stages that have hung since then.
  const std::set<std::string>& hung() const { return hung_; }

 private:
  int BelowLocked(int limit) { return std::uniform_int_distribution(0, limit - 1)(random_); }

  std::mutex mu_;
  std::mt19937 random_;
  const int every_;
  const bool hangs_;
  std::vector<Fault> next_;
  std::atomic<int> calls_left_ = 0;
  std::atomic<bool> stop_ = false;
  std::map<std::string, int> happened_;
  HangClock* clock_ = nullptr;
  std::set<std::string> hung_;
  std::string hangs_in_;
};

class FaultyStage final : public Stage {
 public:
  FaultyStage(std::unique_ptr<Stage> stage, Faults& faults) : stage_(std::move(stage)), faults_(faults) {}

  const ConsumerOptions& consumer() const override { return stage_->consumer(); }
  bool uses_policy() const override { return stage_->uses_policy(); }
  Together together() const override { return stage_->together(); }
  bool trains() const override { return stage_->trains(); }
  Stateful* average() override { return stage_->average(); }
  absl::Status SwapAverage() override { return stage_->SwapAverage(); }
  absl::Status Report(const Rows& written, StepMetrics& metrics) const override {
    return stage_->Report(written, metrics);
  }
  void Save(State& state) const override { stage_->Save(state); }
  absl::Status Load(const State& state) override { return stage_->Load(state); }

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    const std::string& name = consumer().name;
    const Faults::Fault fault = faults_.Next(name);
    if (fault.place == Faults::Place::kBefore) TDOCK_RETURN_IF_ERROR(faults_.Happen(fault, name));
    const auto check_stop = context.check_stop;
    const auto publish = context.publish;
    const absl::Cleanup restore = [&] {
      context.check_stop = check_stop;
      context.publish = publish;
    };
    if (fault.place == Faults::Place::kInside) {
      context.check_stop = [&]() -> absl::Status {
        if (faults_.DueInside()) TDOCK_RETURN_IF_ERROR(faults_.Happen(fault, name));
        return check_stop();
      };
      context.publish = [&](std::span<const size_t> indexes, Batch columns, int64_t weights_version) -> absl::Status {
        TDOCK_RETURN_IF_ERROR(publish(indexes, std::move(columns), weights_version));
        return faults_.DueInside() ? faults_.Happen(fault, name) : absl::OkStatus();
      };
    }
    const int64_t published = context.published;
    TDOCK_ASSIGN_OR_RETURN(StageOutput output, stage_->Run(rows, context));
    if (fault.place == Faults::Place::kNowhere || fault.place == Faults::Place::kBefore) return output;
    if (fault.place == Faults::Place::kInside) {
      if (!faults_.WasDue()) TDOCK_RETURN_IF_ERROR(faults_.Happen({Faults::Place::kAfter, fault.kind}, name));
    } else if (fault.kind != Faults::Kind::kRequeue) {
      TDOCK_RETURN_IF_ERROR(faults_.Happen(fault, name));
    } else if (!consumer().writes.empty() && context.published == published && name != "rollout") {
      // What answers are sampled of depends on how often they were asked for; all else is computed again as it was.
      const std::set<GroupId> groups(rows.groups().begin(), rows.groups().end());
      for (const GroupId group : groups) {
        if (faults_.Below(2) == 0) output.requeued.push_back(group);
      }
      faults_.CountRequeue(name);
    } else {
      faults_.PutBack(fault);
    }
    return output;
  }

 private:
  const std::unique_ptr<Stage> stage_;
  Faults& faults_;
};

// Another recipe, whose stages fail. Whatever a recipe says beside its plan is passed on.
class FaultyRecipe : public Recipe {
 public:
  FaultyRecipe(std::unique_ptr<Recipe> recipe, Faults& faults) : recipe_(std::move(recipe)), faults_(faults) {}

  RunConfig& config() override { return recipe_->config(); }
  void Bind(config::Spec& spec) override { recipe_->Bind(spec); }
  data::Phase phase() const override { return recipe_->phase(); }
  int64_t samples_per_prompt() const override { return recipe_->samples_per_prompt(); }
  model::Head head() const override { return recipe_->head(); }
  std::vector<ModelRole> models() const override { return recipe_->models(); }
  int64_t longest_tokens() const override { return recipe_->longest_tokens(); }
  std::string longest_keys() const override { return recipe_->longest_keys(); }
  StepShape shape() const override { return recipe_->shape(); }
  std::optional<data::DataConfig> ptx_data() const override { return recipe_->ptx_data(); }

  absl::StatusOr<Plan> MakePlan(const RunParts& parts) override {
    TDOCK_ASSIGN_OR_RETURN(Plan plan, recipe_->MakePlan(parts));
    for (auto& stage : plan.stages) stage = std::make_unique<FaultyStage>(std::move(stage), faults_);
    return plan;
  }

 private:
  const std::unique_ptr<Recipe> recipe_;
  Faults& faults_;
};

}  // namespace tdock::trainer
