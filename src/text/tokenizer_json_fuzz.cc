// Whatever a tokenizer.json is, reading it ends, and the tokenizer that it may describe reads nothing outside of a
// text.
#include <cstdint>
#include <cstdlib>

#include "core/base/json_text.h"
#include "text/json_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tdock::text::JsonTokenizer;
  if (size > 8192) return 0;  // patterns and replacements of such a size can take long by right
  const auto json = tdock::ParseJsonObject(absl::string_view(reinterpret_cast<const char*>(data), size), 32);
  if (!json.ok()) return 0;
  const auto tokenizer = JsonTokenizer::Create(*json, {}, {});
  if (!tokenizer.ok()) return 0;
  const absl::string_view text = "hello ab <s> \u00e9\u0301\n  12 \xFF'S";
  const auto encoding =
      (*tokenizer)
          ->EncodeWithRanges(text, {.spelled = tdock::text::SpelledSpecial::kParse, .add_special_tokens = true});
  if (!encoding.ok()) return 0;
  if (encoding->ids.size() != encoding->ranges.size() || !(*tokenizer)->Decode(encoding->ids).ok()) std::abort();
  return 0;
}
