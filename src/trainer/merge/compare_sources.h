// What differs between two models, wherever their weights are.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "tdock/dtype.h"
#include "trainer/merge/weight_source.h"

namespace tdock::trainer {

// Texts, one for each difference, none if there is none: of config.json (its dtype, and which version wrote it, aside)
// and of the tokenizer's files that both have; weights that only one has; and the first weight that differs, as
// FirstDifference() says. With `dtype`, weights are compared once they are converted to it. `progress` is called with
// the name of each weight. Two weights are in memory at a time.
absl::StatusOr<std::vector<std::string>> CompareSources(Env& env, const WeightSource& one, const WeightSource& other,
                                                        std::optional<DType> dtype,
                                                        const std::function<void(const std::string&)>& progress);

}  // namespace tdock::trainer
