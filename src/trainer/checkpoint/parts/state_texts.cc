#include "trainer/checkpoint/parts/state_texts.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/json_text.h"
#include "core/base/utf8.h"

namespace tdock::trainer {
namespace {

constexpr absl::string_view kRankState = "state-rank-";

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ParseStateTexts(absl::string_view json) {
  const absl::StatusOr<nlohmann::json> parsed = ParseJsonObject(json, /*max_depth=*/1);
  if (!parsed.ok()) return parsed.status();
  std::map<std::string, std::string> texts;
  for (const auto& [name, value] : parsed->items()) {
    if (!value.is_string())
      return absl::InvalidArgumentError(absl::StrCat("'", EscapeForMessage(name), "' is not a text"));
    texts[name] = value.get<std::string>();
  }
  return texts;
}

std::string RankStateName(int64_t rank, int64_t ranks) { return absl::StrCat(kRankState, rank, "-of-", ranks); }

absl::StatusOr<int64_t> RanksThatWrote(std::span<const std::string> files) {
  int64_t ranks = 1;
  std::string first;
  for (const std::string& file : files) {
    absl::string_view name = file;
    if (!absl::ConsumePrefix(&name, kRankState)) continue;
    if (!absl::ConsumeSuffix(&name, ".json") && !absl::ConsumeSuffix(&name, ".safetensors")) continue;
    const std::pair<absl::string_view, absl::string_view> numbers = absl::StrSplit(name, absl::MaxSplits("-of-", 1));
    int64_t rank = 0, of = 0;
    if (!absl::SimpleAtoi(numbers.first, &rank) || !absl::SimpleAtoi(numbers.second, &of) || rank < 1 || rank >= of) {
      return absl::InvalidArgumentError(absl::StrCat(EscapeForMessage(file), " is of no rank"));
    }
    if (!first.empty() && of != ranks) {
      return absl::InvalidArgumentError(absl::StrCat("there are parts of different saves: ", EscapeForMessage(first),
                                                     " and ", EscapeForMessage(file)));
    }
    ranks = of;
    first = file;
  }
  return ranks;
}

}  // namespace tdock::trainer
