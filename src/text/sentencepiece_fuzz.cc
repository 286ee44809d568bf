// Whatever a sentencepiece model is, checking it reads nothing outside of it, and what passes is safe to use.
#include <cstdint>
#include <cstdlib>

#include "core/base/testing/hostile_text.h"
#include "text/sentencepiece_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tdock::text;
  const auto tokenizer =
      SentencePieceTokenizer::Create(absl::string_view(reinterpret_cast<const char*>(data), size), {}, {});
  tdock::CheckMessage(tokenizer.status());
  if (!tokenizer.ok()) return 0;
  const auto encoding =
      (*tokenizer)->EncodeWithRanges("ab a \u00e9\n\u3000 12 \xFF", {.spelled = SpelledSpecial::kParse});
  if (encoding.ok() && !(*tokenizer)->Decode(encoding->ids).ok()) std::abort();
  return 0;
}
