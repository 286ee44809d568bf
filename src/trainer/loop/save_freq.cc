#include "trainer/loop/save_freq.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"

namespace tdock::trainer {

absl::StatusOr<SaveFreq> ParseSaveFreq(absl::string_view text) {
  SaveFreq freq;
  if (text.empty() || text == "-1") return freq;
  if (absl::SimpleAtoi(text, &freq.steps) && freq.steps >= 0) return freq;
  freq.steps = 0;
  std::string spelt(text);
  if (absl::EndsWith(spelt, "min")) spelt.resize(spelt.size() - 2);
  if (absl::ParseDuration(spelt, &freq.time) && freq.time >= absl::Seconds(1) && freq.time < absl::Hours(24 * 365)) {
    return freq;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", EscapeForMessage(text),
      "' is neither a number of steps, such as 50, nor a time of a second at least, such as 30min or 1h30m"));
}

}  // namespace tdock::trainer
