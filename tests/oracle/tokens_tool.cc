// For the oracle tests: what a tokenizer makes of many strings.
//
// usage: tdock_tokens MODEL [add-special] [as-text] [decode] < frames > lines
//
// A frame is its length in bytes, four bytes little-endian, and so many bytes. For each, a line of JSON: an object with
// the ids, where each comes from in bytes, and what the ids decode to with special tokens and without; the text that a
// stream gave for the ids must be the same as the latter, or it is given, too. For text that is refused, the error.
// With `decode`, frames hold ids of four bytes each instead, and lines have the text only.
#include <cstdint>
#include <cstring>
#include <iostream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/base/env.h"
#include "nlohmann/json.hpp"
#include "text/tokenizer.h"

namespace tdock::text {
namespace {

using nlohmann::json;

std::string Streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  const auto stream = tokenizer.MakeStreamDecoder();
  std::string text;
  for (const int32_t id : ids) text += stream->Push(id).value();
  return text + stream->Finish();
}

// As JSON, where nlohmann-json would take longer than all else here.
template <class Numbers>
std::string List(const Numbers& numbers) {
  return absl::StrCat("[", absl::StrJoin(numbers, ","), "]");
}

std::string Line(const Tokenizer& tokenizer, absl::string_view text, const EncodeOptions& options) {
  const auto encoding = tokenizer.EncodeWithRanges(text, options);
  if (!encoding.ok()) return json{{"error", std::string(encoding.status().message())}}.dump();
  std::vector<size_t> places;
  for (const TextRange range : encoding->ranges) {
    places.push_back(range.begin);
    places.push_back(range.end);
  }
  const std::string decoded = tokenizer.Decode(encoding->ids).value();
  std::string line =
      absl::StrCat("{\"ids\":", List(encoding->ids), ",\"ranges\":", List(places), ",\"text\":", json(decoded).dump(),
                   ",\"all\":", json(tokenizer.Decode(encoding->ids, SpecialTokens::kKeep).value()).dump());
  if (tokenizer.Encode(text, options).value() != encoding->ids) {
    absl::StrAppend(&line, ",\"error\":\"Encode() gives other ids\"");
  }
  if (const std::string streamed = Streamed(tokenizer, encoding->ids); streamed != decoded) {
    absl::StrAppend(&line, ",\"streamed\":", json(streamed).dump());
  }
  return line + "}";
}

std::string DecodedLine(const Tokenizer& tokenizer, absl::string_view frame) {
  std::vector<int32_t> ids(frame.size() / sizeof(int32_t));
  std::memcpy(ids.data(), frame.data(), ids.size() * sizeof(int32_t));
  const std::string text = tokenizer.Decode(ids).value();
  if (Streamed(tokenizer, ids) != text) return R"({"error":"a stream gives another text"})";
  return json{{"text", text}}.dump();
}

int Run(const std::string& folder, const EncodeOptions& options, bool decodes) {
  const auto tokenizer = LoadTokenizer(Env::Real(), folder);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status().message() << "\n";
    return 2;
  }
  const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
  for (size_t at = 0; at < input.size();) {
    uint32_t size = 0;
    std::memcpy(&size, input.data() + at, sizeof size);
    const absl::string_view frame = absl::string_view(input).substr(at + sizeof size, size);
    std::cout << (decodes ? DecodedLine(**tokenizer, frame) : Line(**tokenizer, frame, options)) << "\n";
    at += sizeof size + size;
  }
  return std::cout.flush() ? 0 : 1;
}

}  // namespace
}  // namespace tdock::text

int main(int argc, char** argv) {
  tdock::text::EncodeOptions options{.spelled = tdock::text::SpelledSpecial::kParse};
  bool decodes = false;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "add-special") options.add_special_tokens = true;
    if (word == "decode") decodes = true;
    if (word == "as-text") options.spelled = tdock::text::SpelledSpecial::kAsText;
  }
  if (argc < 2) {
    std::cerr << "usage: tdock_tokens MODEL [add-special] [as-text] [decode]\n";
    return 2;
  }
  return tdock::text::Run(argv[1], options, decodes);
}
