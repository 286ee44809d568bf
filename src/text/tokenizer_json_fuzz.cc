// Whatever a tokenizer.json is, reading it ends, and the tokenizer that it may describe reads nothing outside of a
// text, makes nothing much longer of it, and ends where it is stopped.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "absl/status/status.h"
#include "core/base/json_text.h"
#include "core/base/testing/hostile_text.h"
#include "text/encode_budget.h"
#include "text/json_tokenizer.h"
#include "text/post_processor.h"

namespace tdock::text {
namespace {

void TryLimits(const JsonTokenizer& tokenizer, absl::string_view text, const std::vector<int32_t>& ids) {
  const size_t bytes = text.size() + 2;  // once it is UTF-8
  // One for each byte of what is made of the text, and one for each added token that it spells.
  if (ids.size() > (EncodeBudget::kMaxGrowth + 1) * bytes + EncodeBudget::kMoreBytes) std::abort();
  if (tokenizer.max_token_bytes() && text.size() > ids.size() * *tokenizer.max_token_bytes()) std::abort();
  for (const size_t most : {size_t{0}, size_t{1}, ids.size() / 2, ids.size()}) {
    const auto limited = tokenizer.Encode(text, {.spelled = SpelledSpecial::kParse, .max_tokens = most});
    if (ids.size() <= most ? !limited.ok() || *limited != ids : !absl::IsOutOfRange(limited.status())) std::abort();
  }
  const auto stopped = tokenizer.Encode(
      text, {.spelled = SpelledSpecial::kParse, .stop = [] { return absl::CancelledError("enough"); }});
  if (stopped.status() != absl::CancelledError("enough")) std::abort();
}

void TryDecoding(const JsonTokenizer& tokenizer, const std::vector<int32_t>& ids) {
  size_t spelled = ids.size();  // at most a space between two
  for (const int32_t id : ids) spelled += tokenizer.IdToToken(id)->size();
  const auto decoded = tokenizer.Decode(ids, SpecialTokens::kKeep);
  // A token that is normalised is decoded as that.
  const size_t most =
      EncodeBudget::kMaxGrowth * (EncodeBudget::kMaxGrowth * spelled + EncodeBudget::kMoreBytes * ids.size());
  if (!decoded.ok() || decoded->size() > most) std::abort();
}

}  // namespace
}  // namespace tdock::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tdock::text;
  if (size > 8192) return 0;  // patterns and replacements of such a size can take long by right
  const auto json = tdock::ParseJsonObject(absl::string_view(reinterpret_cast<const char*>(data), size), 32);
  tdock::CheckMessage(json.status());
  if (!json.ok()) return 0;
  const auto tokenizer = JsonTokenizer::Create(*json, {}, {});
  tdock::CheckMessage(tokenizer.status());
  if (!tokenizer.ok()) return 0;
  const absl::string_view text = "hello ab <s> \u00e9\u0301\n  12 \xFF'S";
  const auto encoding =
      (*tokenizer)->EncodeWithRanges(text, {.spelled = SpelledSpecial::kParse, .add_special_tokens = true});
  tdock::CheckMessage(encoding.status());
  if (!encoding.ok()) return 0;
  if (encoding->ids.size() != encoding->ranges.size() || !(*tokenizer)->Decode(encoding->ids).ok()) std::abort();
  TryDecoding(**tokenizer, encoding->ids);
  const auto plain = (*tokenizer)->Encode(text, {.spelled = SpelledSpecial::kParse});
  if (!plain.ok()) std::abort();
  TryLimits(**tokenizer, text, *plain);
  return 0;
}
