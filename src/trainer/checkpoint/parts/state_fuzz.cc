// Any bytes as the texts of a state, and, in lines, the names of its files and of the parts of a tensor: what is
// planned to be copied is in the parts, and is each number once.
//
//   {"step": "7"} ‖ state-rank-1-of-2.json \n 4 x[0/10] \n 6 x[4/10]        ‖: a zero byte; 4: how many numbers
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "core/base/testing/hostile_text.h"
#include "trainer/checkpoint/parts/state_texts.h"
#include "trainer/checkpoint/parts/tensor_parts.h"

namespace tdock::trainer {
namespace {

constexpr int64_t kMost = INT64_MAX;

void Check(bool holds) {
  if (!holds) std::abort();
}

void CheckPlan(const std::vector<TensorPart>& parts, int64_t begin, int64_t size, int64_t total) {
  const auto plan = PlanCopies("x", parts, begin, size, total);
  CheckMessage(plan.status());
  if (!plan.ok()) return;
  int64_t next = 0;
  for (const PartCopy& copy : *plan) {
    Check(copy.part < parts.size() && copy.size > 0 && copy.to == next && copy.size <= size - next);
    const TensorPart& part = parts[copy.part];
    Check(copy.from >= 0 && copy.size <= part.size - copy.from && part.begin + copy.from == begin + copy.to);
    next += copy.size;
  }
  Check(next == size);
}

// Of a tensor of so many numbers.
void ReadParts(const std::vector<std::string>& lines, int64_t total) {
  std::vector<TensorPart> parts;
  for (const std::string& line : lines) {
    const std::pair<std::string, std::string> named = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    int64_t size = 0;
    if (!absl::SimpleAtoi(named.first, &size) || size < 0) continue;
    const auto part = ParsePart(named.second, "x", total, size);
    CheckMessage(part.status());
    if (!part.ok()) continue;
    Check(part->begin >= 0 && part->size <= total - part->begin);
    Check(PartName("x", part->begin, total) == part->name);
    parts.push_back(*part);
  }
  for (const int64_t begin : {int64_t{0}, total / 3, total}) {
    for (const int64_t size : {int64_t{0}, (total - begin) / 2, total - begin}) CheckPlan(parts, begin, size, total);
  }
}

}  // namespace
}  // namespace tdock::trainer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tdock::trainer;
  const std::string input(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(input.find('\0'), input.size());
  tdock::CheckMessage(ParseStateTexts(input.substr(0, cut)).status());
  if (cut == input.size()) return 0;
  const std::vector<std::string> lines = absl::StrSplit(input.substr(cut + 1), '\n');
  const auto ranks = RanksThatWrote(lines);
  tdock::CheckMessage(ranks.status());
  Check(!ranks.ok() || *ranks >= 1);
  for (const int64_t total : {int64_t{0}, int64_t{10}, kMost}) ReadParts(lines, total);
  return 0;
}
