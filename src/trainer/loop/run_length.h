// How long a run is.
#pragma once

#include <cstdint>
#include <string>

#include "data/loader.h"
#include "trainer/loop/run_context.h"
#include "trainer/loop/sections.h"

namespace tdock::trainer {

// The order of the training data, and how often they are gone through. `context` must outlive the loader.
data::LoaderOptions LoaderOptionsFor(const RunConfig& config, const RunContext& context);

// Steps of training on `samples` samples. Where the data or a filter of groups leave samples out, too many.
int64_t TotalSteps(const RunConfig& config, int64_t samples);

// Why a run whose data give no further batch ends after `step`: "all 200 steps", "the end of epoch 3".
std::string EndingAfter(const RunConfig& config, int64_t step);

}  // namespace tdock::trainer
