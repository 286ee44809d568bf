#include "dock/compat/mindspeed/samplers.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

namespace tdock::mindspeed {

std::vector<std::vector<size_t>> BalancedSets(std::span<const int64_t> lengths, size_t size) {
  std::vector<size_t> longest_first(lengths.size());
  std::iota(longest_first.begin(), longest_first.end(), size_t{0});
  std::sort(longest_first.begin(), longest_first.end(),
            [&](size_t a, size_t b) { return std::pair(lengths[a], a) > std::pair(lengths[b], b); });
  using Load = std::tuple<int64_t, size_t, size_t>;  // sum, count, set
  std::vector<Load> heap;
  for (size_t set = 0; set < lengths.size() / size; ++set) heap.emplace_back(0, 0, set);
  std::vector<std::vector<size_t>> open(heap.size());
  std::vector<std::vector<size_t>> full;
  for (const size_t position : longest_first) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    auto& [sum, count, set] = heap.back();
    sum += lengths[position];
    open[set].push_back(position);
    if (++count < size) {
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
      continue;
    }
    full.push_back(std::move(open[set]));
    std::sort(full.back().begin(), full.back().end());
    heap.pop_back();
  }
  return full;
}

std::vector<size_t> DrawUniformly(size_t size, size_t count, Rng& rng) {
  std::vector<size_t> positions(size);
  std::iota(positions.begin(), positions.end(), size_t{0});
  for (size_t i = 0; i < count; ++i) std::swap(positions[i], positions[i + rng.Below(size - i)]);
  positions.resize(count);
  return positions;
}

std::vector<size_t> DrawByWeight(std::span<const double> weights, size_t count, Rng& rng) {
  std::vector<std::pair<double, size_t>> keys;
  for (size_t i = 0; i < weights.size(); ++i) keys.emplace_back(-std::log1p(-rng.Uniform()) / weights[i], i);
  std::sort(keys.begin(), keys.end());
  std::vector<size_t> positions;
  for (size_t i = 0; i < count; ++i) positions.push_back(keys[i].second);
  return positions;
}

double WeightNear(double length, double target) { return 1 / (1 + std::exp(-1 / (std::abs(length - target) + 0.001))); }

}  // namespace tdock::mindspeed
