// JSON as text. Sources that use nlohmann's library include it by this header, which keeps them from instantiating its
// parsers and writers each.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

// NOLINTBEGIN(readability-identifier-naming)
extern template class nlohmann::basic_json<>;
extern template class nlohmann::basic_json<nlohmann::ordered_map>;
// NOLINTEND(readability-identifier-naming)

namespace tdock {

// Parses a JSON object from a file or a peer, which may be damaged or hostile. InvalidArgument says what is wrong: a
// syntax error with its place and what is expected there, a value that is not an object, a duplicate name in an object
// (parsers differ in which value they take), more than `max_depth` nested objects and lists (the library prints and
// frees values by recursion), or more than ten million values.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, int max_depth);

// The reason why `text` is not JSON, from the arguments of nlohmann::json_sax::parse_error(): the place, the token
// there and the expected one. The line is left out of a text that has one, which often is a line of a file.
std::string WhyNotJson(absl::string_view text, size_t position, absl::string_view read,
                       const nlohmann::detail::exception& error);

// Parses text that this program has written. The value is discarded (is_discarded()) if the text is not JSON.
nlohmann::json ReadJson(absl::string_view text);
nlohmann::ordered_json ReadOrderedJson(absl::string_view text);

// Writes on one line, or with `indent` spaces for each level. Bytes that are not UTF-8 become U+FFFD.
std::string JsonText(const nlohmann::json& json, int indent = -1);
std::string JsonText(const nlohmann::ordered_json& json, int indent = -1);
// Writes on one line, with escapes for all that is not ASCII.
std::string AsciiJsonText(const nlohmann::json& json);

}  // namespace tdock
