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

using CustomSamplers = std::map<std::string, std::shared_ptr<CustomSampler>>;

// The units that the consumer's sampler chooses, `min` to `max` of them. Internal if a custom sampler fails. `samplers`
// has the one that the options name.
absl::StatusOr<std::vector<RowId>> ChooseUnits(const ConsumerOptions& options, const CustomSamplers& samplers,
                                               const Offer& offer);

}  // namespace tdock::dock
