#include "text/reply_border.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::text {
namespace {

// The ranges of `marked` in [begin, end), as places in that part behind `shift` more bytes.
std::vector<TextRange> RangesIn(const MarkedText& marked, size_t begin, size_t end, size_t shift) {
  std::vector<TextRange> ranges;
  auto range = std::upper_bound(marked.as_text.begin(), marked.as_text.end(), begin,
                                [](size_t at, const TextRange& plain) { return at < plain.end; });
  for (; range != marked.as_text.end() && range->begin < end; ++range) {
    ranges.push_back({std::max(range->begin, begin) - begin + shift, std::min(range->end, end) - begin + shift});
  }
  return ranges;
}

// The tokens of `before` and the part of the text, whose ranges are places in the whole text; those of `before` are
// [begin, begin).
absl::StatusOr<Encoding> EncodeJoined(const Tokenizer& tokenizer, absl::string_view before, const MarkedText& marked,
                                      size_t begin, size_t end, const EncodeLimits& limits) {
  const std::vector<TextRange> as_text = RangesIn(marked, begin, end, before.size());
  const EncodeOptions options{
      .spelled = SpelledSpecial::kParse, .as_text = as_text, .max_tokens = limits.max_tokens, .stop = limits.stop};
  TDOCK_ASSIGN_OR_RETURN(Encoding encoding, tokenizer.EncodeWithRanges(
                                                absl::StrCat(before, marked.text.substr(begin, end - begin)), options));
  const auto moved = [&](size_t place) { return begin + std::max(place, before.size()) - before.size(); };
  for (TextRange& range : encoding.ranges) range = {moved(range.begin), moved(range.end)};
  return encoding;
}

void DropFirst(Encoding& encoding, size_t count) {
  const auto n = static_cast<std::ptrdiff_t>(count);
  encoding.ids.erase(encoding.ids.begin(), encoding.ids.begin() + n);
  encoding.ranges.erase(encoding.ranges.begin(), encoding.ranges.begin() + n);
}

// Whether `ids` say something else after `prompt_ids` than by themselves, as where a text is begun with a space that
// decoding only drops from the first token.
bool SaysOtherwiseAfter(const Tokenizer& tokenizer, std::span<const int32_t> prompt_ids, std::span<const int32_t> ids) {
  std::vector<int32_t> both(prompt_ids.begin(), prompt_ids.end());
  both.insert(both.end(), ids.begin(), ids.end());
  const auto joined = tokenizer.Decode(both, SpecialTokens::kKeep);
  const auto before = tokenizer.Decode(prompt_ids, SpecialTokens::kKeep);
  const auto after = tokenizer.Decode(ids, SpecialTokens::kKeep);
  return !joined.ok() || !before.ok() || !after.ok() || *joined != *before + *after;
}

// Where no token may reach back across the border.
absl::StatusOr<Encoding> EncodeAlone(const Tokenizer& tokenizer, std::span<const int32_t> before,
                                     const MarkedText& marked, size_t border, size_t end, const EncodeLimits& limits) {
  TDOCK_ASSIGN_OR_RETURN(Encoding alone, EncodeJoined(tokenizer, "", marked, border, end, limits));
  if (!SaysOtherwiseAfter(tokenizer, before, alone.ids)) return alone;
  // Then a character stands for what is before, one that no token joins to the part.
  for (const absl::string_view letter : {"\n", ".", "1", "a"}) {
    const std::vector<TextRange> as_text = RangesIn(marked, border, end, letter.size());
    const auto both =
        tokenizer.EncodeWithRanges(absl::StrCat(letter, marked.text.substr(border, end - border)),
                                   {.spelled = SpelledSpecial::kParse, .as_text = as_text, .stop = limits.stop});
    if (!both.ok() && !absl::IsInvalidArgument(both.status())) return both.status();
    if (!both.ok()) continue;
    const auto first = std::find_if(both->ranges.begin(), both->ranges.end(),
                                    [&](const TextRange& range) { return range.end > letter.size(); });
    if (first != both->ranges.end() && first->begin < letter.size()) continue;
    absl::StatusOr<Encoding> behind = EncodeJoined(tokenizer, letter, marked, border, end, {.stop = limits.stop});
    if (!behind.ok()) continue;
    DropFirst(*behind, static_cast<size_t>(first - both->ranges.begin()));
    return behind;
  }
  return alone;
}

}  // namespace

absl::StatusOr<Encoding> EncodePart(const Tokenizer& tokenizer, absl::string_view special, const MarkedText& marked,
                                    size_t begin, size_t end, const EncodeLimits& limits) {
  if (!special.empty() && begin < end) {
    const bool limited = limits.max_tokens < std::numeric_limits<size_t>::max();
    absl::StatusOr<Encoding> both =
        EncodeJoined(tokenizer, special, marked, begin, end, {limits.max_tokens + (limited ? 1 : 0), limits.stop});
    if (!both.ok() && !absl::IsInvalidArgument(both.status())) return both;
    if (both.ok() && !both->ids.empty() && tokenizer.IdToToken(both->ids.front()) == special) {
      DropFirst(*both, 1);
      return both;
    }
  }
  return EncodeJoined(tokenizer, "", marked, begin, end, limits);
}

absl::StatusOr<Encoding> EncodeBehind(const Tokenizer& tokenizer, absl::string_view special, const MarkedText& marked,
                                      size_t begin, std::span<const int32_t> before, size_t border, size_t end,
                                      const EncodeLimits& limits) {
  const size_t count = before.size();
  const size_t max_of_both =
      limits.max_tokens + std::min(count, std::numeric_limits<size_t>::max() - limits.max_tokens);
  absl::StatusOr<Encoding> both = EncodePart(tokenizer, special, marked, begin, end, {max_of_both, limits.stop});
  // The tokens before may be fewer than those of their text.
  if (!both.ok() && !absl::IsOutOfRange(both.status())) return both;
  const bool parts = both.ok() && both->ids.size() >= count &&
                     std::equal(before.begin(), before.end(), both->ids.begin()) &&
                     (count == both->ids.size() || both->ranges[count].begin >= border);
  if (!parts) return EncodeAlone(tokenizer, before, marked, border, end, limits);
  DropFirst(*both, count);
  return both;
}

}  // namespace tdock::text
