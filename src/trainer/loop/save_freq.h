// How often a run is saved.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tdock::trainer {

// At most one of the two is not 0; neither: never.
struct SaveFreq {
  int64_t steps = 0;
  absl::Duration time = {};

  bool never() const { return steps == 0 && time == absl::ZeroDuration(); }
};

// "50", steps; "30min", "90s", "1h30m"; "0", "-1" or nothing: never. InvalidArgument shows the forms.
absl::StatusOr<SaveFreq> ParseSaveFreq(absl::string_view text);

}  // namespace tdock::trainer
