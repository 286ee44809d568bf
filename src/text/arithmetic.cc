#include "text/arithmetic.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/rng.h"
#include "core/base/status.h"

namespace tdock::text {
namespace {

constexpr int kOperands = 100;
constexpr size_t kTestProblems = 1000;
constexpr size_t kValidationProblems = 256;

}  // namespace

Problem AdditionProblem(int x, int y) {
  TDOCK_CHECK(x >= 0 && x < kOperands && y >= 0 && y < kOperands, "operands have two digits");
  std::string answer = absl::StrCat(x + y);
  std::reverse(answer.begin(), answer.end());
  return {.prompt = absl::StrFormat("%02d+%02d=", x, y), .answer = std::move(answer)};
}

// Each unordered pair goes, in shuffled order, to the first set that has room for its two problems (one if x = y).
// The counts come out exact: a set takes a single problem whenever it has room, so if one of the two even-sized sets
// missed its last problem, it would hold an odd number of the singles, of which there are 100 and which all lie in it
// and in the sets before it, full and even themselves.
AdditionSplit SplitAddition(uint64_t seed) {
  std::vector<std::pair<int, int>> pairs;
  for (int x = 0; x < kOperands; ++x) {
    for (int y = x; y < kOperands; ++y) pairs.emplace_back(x, y);
  }
  Rng rng(seed);
  rng.Shuffle(std::span(pairs));

  AdditionSplit split;
  for (const auto& [x, y] : pairs) {
    const size_t problems = x == y ? 1 : 2;
    PromptSet* set = &split.train;
    if (split.test.size() + problems <= kTestProblems) {
      set = &split.test;
    } else if (split.validation.size() + problems <= kValidationProblems) {
      set = &split.validation;
    }
    set->push_back(AdditionProblem(x, y));
    if (x != y) set->push_back(AdditionProblem(y, x));
  }
  for (PromptSet* set : {&split.train, &split.validation, &split.test}) rng.Shuffle(std::span(*set));
  return split;
}

}  // namespace tdock::text
