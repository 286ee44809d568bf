// Whatever two answers are, comparing them reads nothing outside of them and gives the same result both ways, and what
// is in a box is part of the text.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "trainer/reward/exact_number.h"
#include "trainer/reward/math_answer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tdock::reward;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const size_t middle = std::min(text.find('\n'), text.size());
  const std::string a = text.substr(0, middle);
  const std::string b = text.substr(std::min(middle + 1, text.size()));
  if (SameMathAnswer(a, b) != SameMathAnswer(b, a)) std::abort();
  if (!SameMathAnswer(a, a)) std::abort();
  const auto boxed = LastBoxed(text);
  if (boxed && !absl::StrContains(text, *boxed)) std::abort();
  const auto line = LastAnswerLine(text);
  if (line && !absl::StrContains(text, *line)) std::abort();
  const auto number = FinalNumber(text, /*marked_only=*/false);
  if (number && number->empty()) std::abort();
  return 0;
}
