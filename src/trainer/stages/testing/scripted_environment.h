// For tests: an environment that does what a function says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "trainer/environment/environment.h"

namespace tdock::trainer {

class ScriptedEnvironment final : public environment::Environment {
 public:
  using What = absl::StatusOr<environment::Event::What>;
  // An episode: what it began with, and what has come since: the model's messages, or what an agent was given.
  struct Script {
    uint64_t seed = 0;
    int64_t attempt = 0;  // of episodes with this row and seed that were begun before
    environment::EpisodeRow row = {};
    std::vector<std::string> messages = {};
    std::vector<text::Turn> turns = {};
    std::vector<environment::Generated> generated = {};
    std::vector<absl::Status> refused = {};  // requests of an agent
    bool concluded = false;
  };
  struct Options {
    Description description = {};
    // Calls of Wait() that an event lets pass, by how many came before it.
    std::function<int64_t(int64_t)> delay = [](int64_t) { return 0; };
    bool last_first = false;  // of the events that come together
  };
  using Says = std::function<What(const Script&)>;

  explicit ScriptedEnvironment(Says says) : ScriptedEnvironment(std::move(says), Options()) {}
  ScriptedEnvironment(Says says, Options options) : says_(std::move(says)), options_(std::move(options)) {}

  const std::string& name() const override { return name_; }
  absl::StatusOr<Description> Start() override { return options_.description; }
  void Reset(environment::EpisodeId episode, uint64_t seed, const environment::EpisodeRow& row) override {
    Script& script = scripts_[episode];
    script.seed = seed;
    script.row = row;
    script.attempt = begun_[{seed, row.prompt, row.truth}]++;
    Say(episode);
  }
  void Step(environment::EpisodeId episode, const text::Turn& message) override {
    scripts_.at(episode).messages.push_back(message.content);
    scripts_.at(episode).turns.push_back(message);
    Say(episode);
  }
  void Conclude(environment::EpisodeId episode) override {
    scripts_.at(episode).concluded = true;
    Say(episode);
  }
  void Answer(environment::EpisodeId episode, int64_t /*request*/,
              const absl::StatusOr<environment::Generated>& generated) override {
    Script& script = scripts_.at(episode);
    if (generated.ok()) {
      script.generated.push_back(*generated);
    } else {
      script.refused.push_back(generated.status());
    }
    Say(episode);
  }
  void End(environment::EpisodeId episode) override {
    ended.insert(episode);
    scripts_.erase(episode);
    std::erase_if(coming_, [episode](const auto& event) { return event.second.episode == episode; });
  }
  absl::StatusOr<std::vector<environment::Event>> Wait(absl::Time /*deadline*/) override {
    std::vector<environment::Event> come;
    for (auto event = coming_.begin(); event != coming_.end();) {
      if (event->first-- > 0) {
        ++event;
      } else {
        come.push_back(std::move(event->second));
        event = coming_.erase(event);
      }
    }
    if (come.empty()) return absl::DeadlineExceededError("nothing has come");
    if (options_.last_first) std::reverse(come.begin(), come.end());
    return come;
  }

  std::set<environment::EpisodeId> ended;  // that were given up

 private:
  void Say(environment::EpisodeId episode) {
    coming_.emplace_back(options_.delay(said_++),
                         environment::Event{.episode = episode, .what = says_(scripts_.at(episode))});
  }

  const std::string name_ = "script";
  const Says says_;
  const Options options_;
  std::map<environment::EpisodeId, Script> scripts_;
  std::map<std::tuple<uint64_t, std::string, std::string>, int64_t> begun_;
  std::vector<std::pair<int64_t, environment::Event>> coming_;
  int64_t said_ = 0;
};

}  // namespace tdock::trainer
