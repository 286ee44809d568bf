#include "data/loader.h"

#include <array>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "core/base/utf8.h"

namespace tdock::data {
namespace {

constexpr absl::string_view kBegin = "loader1";
constexpr int64_t kLastPosition = int64_t{1} << 62;  // so that counting on does not overflow

}  // namespace

std::string LoaderPosition::ToText() const {
  return absl::StrCat(kBegin, " ", drawn, " ", epoch_samples, " ", counts.samples, " ", counts.bad, " ",
                      counts.incomplete, " ", counts.overlong, " ", counts.truncated, " ", order.high, " ", order.low);
}

absl::StatusOr<LoaderPosition> LoaderPosition::FromText(absl::string_view text) {
  LoaderPosition position;
  LoaderCounts& counts = position.counts;
  const std::array numbers = {&position.drawn,    &position.epoch_samples, &counts.samples,  &counts.bad,
                              &counts.incomplete, &counts.overlong,        &counts.truncated};
  const std::array hashes = {&position.order.high, &position.order.low};
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ' ');
  bool sound = parts.size() == 1 + numbers.size() + hashes.size() && parts[0] == kBegin;
  for (size_t i = 0; sound && i < numbers.size(); ++i) {
    sound = absl::SimpleAtoi(parts[1 + i], numbers[i]) && *numbers[i] >= 0 && *numbers[i] <= kLastPosition;
  }
  for (size_t i = 0; sound && i < hashes.size(); ++i) {
    sound = absl::SimpleAtoi(parts[1 + numbers.size() + i], hashes[i]);
  }
  if (!sound) {
    return absl::InvalidArgumentError(absl::StrCat("\"", EscapeForMessage(text), "\" is not a position of a loader"));
  }
  return position;
}

}  // namespace tdock::data
