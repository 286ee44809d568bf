// The bytes that tokens stand for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace tdock::inference {

// For each id of the vocabulary, what it adds to a text that has begun: with a space before it if it spells one, and
// where it is only a part of a character, those bytes. Empty: nothing, as a special token; or not known.
std::vector<std::string> TokenBytes(const text::Tokenizer& tokenizer);
// For each special token its text; for other ids nothing.
std::vector<std::string> SpecialTexts(const text::Tokenizer& tokenizer);

}  // namespace tdock::inference
