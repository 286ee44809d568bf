// How a consumer's sampler chooses among the units that it could take: rows, or groups by their leaders.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "dock/table/takeable.h"
#include "tdock/options.h"
#include "tdock/sampler.h"

namespace tdock::dock {

struct Offer {
  const Takeable& takeable;  // at least `min` units
  int64_t min, max;
  uint64_t seed;
  // Describes a unit.
  absl::FunctionRef<Candidate(RowId)> candidate;
};

// Stateless, but for custom ones.
class UnitSampler {
 public:
  virtual ~UnitSampler() = default;
  // The chosen units, `min` to `max` of them. Internal if a custom sampler fails.
  virtual absl::StatusOr<std::vector<RowId>> Choose(const Offer& offer) const = 0;
};

using CustomSamplers = std::map<std::string, std::shared_ptr<CustomSampler>>;

// `samplers` has the one that the options name.
std::shared_ptr<const UnitSampler> SamplerFor(const ConsumerOptions& options, const CustomSamplers& samplers);

}  // namespace tdock::dock
