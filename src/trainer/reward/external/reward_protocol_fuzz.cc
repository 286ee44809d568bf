// Whatever a program says, it is understood or refused with a reason, and no score is other than finite.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "trainer/reward/external/protocol.h"
#include "trainer/reward/external/words.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tdock::reward;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const absl::Status hello = CheckHello(text);
  if (!hello.ok() && hello.message().empty()) std::abort();
  const auto scores = ParseScoresLine(text, 7);
  if (!scores.ok()) {
    if (scores.status().message().empty()) std::abort();
  } else {
    for (const ScoredSample& sample : *scores) {
      if (!sample.score.ok()) continue;
      if (sample.score->score && !std::isfinite(*sample.score->score)) std::abort();
      for (const auto& [name, value] : sample.score->parts) {
        if (!std::isfinite(value)) std::abort();
      }
    }
  }
  const auto words = SplitWords(text);
  if (words.ok() && (words->empty() || words->front().empty())) std::abort();
  return 0;
}
