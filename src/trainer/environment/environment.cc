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

}  // namespace tdock::environment
