#include "trainer/environment/environment.h"

#include <algorithm>

namespace tdock::environment {

void AddRewards(const Rewards& more, Rewards& sum) {
  for (const auto& [name, value] : more) {
    const auto same = [&name = name](const auto& reward) { return reward.first == name; };
    if (const auto found = std::find_if(sum.begin(), sum.end(), same); found != sum.end()) {
      found->second += value;
    } else {
      sum.emplace_back(name, value);
    }
  }
}

bool IsLast(const Event& event) {
  if (!event.what.ok() || std::holds_alternative<AgentOutput>(*event.what)) return true;
  const auto* observation = std::get_if<Observation>(&*event.what);
  return observation != nullptr && (observation->done || observation->truncated);
}

void Truncate(Event& event) {
  if (IsLast(event)) return;
  if (auto* observation = std::get_if<Observation>(&*event.what)) observation->truncated = true;
}

}  // namespace tdock::environment
