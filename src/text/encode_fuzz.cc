// Whatever a text is, encoding it reads nothing outside of it, ranges are characters of it, it comes back from its ids,
// a stream of them gives the same text, and a limit on tokens is kept to the token.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/utf8.h"
#include "text/json_tokenizer.h"
#include "text/testing/small_tokenizers.h"

namespace tdock::text {
namespace {

std::string Streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  const auto stream = tokenizer.MakeStreamDecoder(SpecialTokens::kKeep);
  std::string text;
  for (const int32_t id : ids) {
    text += stream->Push(id).value();
    if (FindInvalidUtf8(text)) std::abort();
  }
  return text + stream->Finish();
}

void TryText(const Tokenizer& tokenizer, const std::string& text, bool comes_back) {
  const std::string repaired = ReplaceInvalidUtf8(text);
  const Encoding encoding = tokenizer.EncodeWithRanges(text, {.spelled = SpelledSpecial::kParse}).value();
  for (const TextRange range : encoding.ranges) {
    const bool inside = range.begin <= range.end && range.end <= repaired.size();
    if (!inside || FindInvalidUtf8(repaired.substr(range.begin, range.end - range.begin))) std::abort();
  }
  const std::string decoded = tokenizer.Decode(encoding.ids, SpecialTokens::kKeep).value();
  if (decoded != Streamed(tokenizer, encoding.ids) || (comes_back && decoded != repaired)) std::abort();
  const size_t count = encoding.ids.size();
  if (text.size() > count * tokenizer.max_token_bytes().value()) std::abort();
  if (!tokenizer.Encode(text, {.spelled = SpelledSpecial::kParse, .max_tokens = count}).ok()) std::abort();
  if (count == 0) return;
  const auto fewer = tokenizer.Encode(text, {.spelled = SpelledSpecial::kParse, .max_tokens = count - 1});
  if (!absl::IsOutOfRange(fewer.status())) std::abort();
}

// The bytes as ids.
void TryIds(const Tokenizer& tokenizer, const std::string& bytes) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    ids.push_back((static_cast<unsigned char>(bytes[i]) | static_cast<unsigned char>(bytes[i + 1]) << 8) %
                  tokenizer.vocab_size());
  }
  if (tokenizer.Decode(ids, SpecialTokens::kKeep).value() != Streamed(tokenizer, ids)) std::abort();
}

}  // namespace
}  // namespace tdock::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tdock::text;
  static const auto byte_level = JsonTokenizer::Create(small::SmallByteLevel(), {}, {}).value();
  static const auto composed = [] {
    small::Json json = small::SmallByteLevel();
    json["normalizer"] = {{"type", "NFKC"}};
    return JsonTokenizer::Create(json, {}, {}).value();
  }();
  static const auto fallback = JsonTokenizer::Create(small::SmallByteFallback(), {}, {}).value();
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  TryText(*byte_level, bytes, /*comes_back=*/true);
  TryText(*composed, bytes, /*comes_back=*/false);
  TryText(*fallback, bytes, /*comes_back=*/false);
  TryIds(*byte_level, bytes);
  TryIds(*fallback, bytes);
  return 0;
}
