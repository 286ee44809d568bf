// The operations of Python's str. Each character of a result has the source of the one that it comes from. Internal to
// this module.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "text/jinja/builder.h"
#include "text/jinja/characters.h"
#include "text/jinja/object.h"
#include "text/jinja/text.h"
#include "text/jinja/value.h"

namespace tdock::jinja {

// Where `wanted` first occurs from `from` on, or npos, in a time that grows with the length of both alone.
size_t FindBytes(absl::string_view text, absl::string_view wanted, size_t from = 0);
// Where it last occurs. The time may grow with the product of the lengths, which is spent before where `wanted` is
// long.
size_t FindLastBytes(Meter& meter, absl::string_view text, absl::string_view wanted);

struct Sides {
  bool left, right;
};
// Without the characters of `characters`, or spaces, at its ends.
Text Strip(const Text& text, std::optional<absl::string_view> characters, Sides sides);

Text Upper(const Text& text);
Text Lower(const Text& text);
Text Capitalize(const Text& text);
Text Title(const Text& text);  // str.title
Text SwapCase(const Text& text);
Text CaseFold(const Text& text);

// `limit` is how often at most, without one if negative.
Text Replace(Meter& meter, const Text& text, absl::string_view old, const Text& replacement, int64_t limit);
// str.split and str.rsplit; without a separator, at spaces.
std::vector<Text> Split(Meter& meter, const Text& text, std::optional<absl::string_view> separator, int64_t limit,
                        bool from_right);
std::vector<Text> SplitLines(Meter& meter, const Text& text, bool keeps_ends);

// With HTML's entities for & < > ' and ".
Text EscapeHtml(Meter& meter, const Text& text);

enum class Alignment { kLeft, kRight, kCenter };
Text Pad(Meter& meter, const Text& text, int64_t width, absl::string_view fill, Alignment alignment);

std::vector<Value> ToValues(Machine& machine, std::vector<Text> texts);

}  // namespace tdock::jinja
