#include "model/files/rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

namespace tdock::model {
namespace {

constexpr std::array<std::pair<RopeType, absl::string_view>, 5> kNames = {{{RopeType::kDefault, "default"},
                                                                           {RopeType::kLinear, "linear"},
                                                                           {RopeType::kDynamic, "dynamic"},
                                                                           {RopeType::kLlama3, "llama3"},
                                                                           {RopeType::kYarn, "yarn"}}};

double Llama3(const RopeConfig& config, double original, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < original / config.high_freq_factor) return frequency;
  if (wavelength > original / config.low_freq_factor) return frequency / config.factor;
  const double smooth =
      (original / wavelength - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
  return (1 - smooth) * frequency / config.factor + smooth * frequency;
}

// Which pair makes so many rotations over the original length.
double YarnPair(const RopeConfig& config, int64_t head_dim, double original, double rotations) {
  return static_cast<double>(head_dim) * std::log(original / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(config.theta));
}

void Yarn(const RopeConfig& config, int64_t head_dim, double original, RopeFrequencies* frequencies) {
  double low = YarnPair(config, head_dim, original, config.beta_fast);
  double high = YarnPair(config, head_dim, original, config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies->per_pair.size(); ++i) {
    double& frequency = frequencies->per_pair[i];
    const double interpolated = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequency = interpolated * frequency / config.factor + (1 - interpolated) * frequency;
  }
  const auto warmth = [&](double mscale) {
    return config.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(config.factor) + 1.0;
  };
  if (config.attention_factor) {
    frequencies->scale = *config.attention_factor;
  } else if (config.mscale.value_or(0) != 0 && config.mscale_all_dim.value_or(0) != 0) {
    frequencies->scale = warmth(*config.mscale) / warmth(*config.mscale_all_dim);
  } else {
    frequencies->scale = warmth(1);
  }
}

}  // namespace

absl::string_view Name(RopeType type) {
  for (const auto& [known, name] : kNames) {
    if (known == type) return name;
  }
  return "?";
}

std::optional<RopeType> ParseRopeType(absl::string_view name) {
  for (const auto& [type, known] : kNames) {
    if (known == name) return type;
  }
  return std::nullopt;
}

RopeFrequencies FrequenciesOf(const RopeConfig& config, int64_t head_dim, int64_t max_positions, int64_t length) {
  const auto size = static_cast<double>(head_dim);
  const auto original =
      static_cast<double>(config.original_max_positions > 0 ? config.original_max_positions : max_positions);
  double theta = config.theta;
  if (config.type == RopeType::kDynamic && head_dim > 2) {
    const double stretch = static_cast<double>(std::max(length, max_positions)) / static_cast<double>(max_positions);
    theta *= std::pow(config.factor * stretch - (config.factor - 1), size / (size - 2));
  }
  RopeFrequencies frequencies;
  for (int64_t pair = 0; pair < head_dim / 2; ++pair) {
    double frequency = std::pow(theta, -2.0 * static_cast<double>(pair) / size);
    if (config.type == RopeType::kLinear) frequency /= config.factor;
    if (config.type == RopeType::kLlama3) frequency = Llama3(config, original, frequency);
    frequencies.per_pair.push_back(frequency);
  }
  if (config.type == RopeType::kYarn) Yarn(config, head_dim, original, &frequencies);
  return frequencies;
}

}  // namespace tdock::model
