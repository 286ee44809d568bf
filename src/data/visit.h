// Looks at the samples of a source, one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "data/adapter.h"
#include "data/encode.h"
#include "data/loader.h"
#include "data/source.h"

namespace tdock::data {

// Calls `visit` with each sample, or what there is instead of it, until it returns false; `threads` load ahead, and
// `visit` runs on the thread that calls. Returns how many of each kind there were; an overlong prompt counts as such
// where it is an error, too. Errors are those of the source that are not about a record.
absl::StatusOr<LoaderCounts> VisitSamples(
    const Source<EncodedSample>& source, int threads,
    const std::function<bool(const absl::StatusOr<OrSkip<EncodedSample>>&)>& visit);

// All indexes below `size`: blocks of neighbours, which cost little to read, in a random order, always the same. The
// first of them are from everywhere.
std::vector<int64_t> SpreadIndexes(int64_t size);

// FailedPrecondition for records of which none yields a sample: how many are too long, lack something or cannot be
// read, and which keys of the configuration decide it.
absl::Status NoSampleError(const EncodingRules& rules, Phase phase, const LoaderCounts& counts);

}  // namespace tdock::data
