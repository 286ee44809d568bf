// Turns from JSON, and back: the one reading of messages for data, servers, environments and rewards.
//
//   {"role": "assistant", "content": null, "tool_calls": [{"name": "add", "arguments": "{\"a\": 1}"}]}
//     ─► content: none, fields: {"tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a":
//     1}}}]}
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/json_text.h"
#include "text/chat_template.h"

namespace tdock::text {

// Reads a turn from the keys of an object. Null, and except for a content an empty text, list or object, counts as
// missing.
//
// - "role" or "from": a name of RoleName(), "human" for the user, "gpt" for the assistant, "observation" for a tool.
// - "content" or "value": text, or a list of {"type": "text", "text": …} whose texts are joined. It may only be missing
//   in a reply that has anything else.
// - "train": true or false, for Turn::train.
// - "tool_calls": a list of {"type": "function", "function": {"name", "arguments"}}, or of {"name", "arguments"}, which
//   is read as that; "id" and any other key are kept. "arguments" may also be the JSON text of an object, which is read
//   as the object; other text stays as it is. Missing or blank arguments are {}. The same goes for the arguments in
//   "function_call".
// - "annotations", "parsed", and of a function "parsed_arguments": left out, since they repeat what the content or the
//   arguments say.
//
// Every other key is one of Turn::fields, of which ChatTemplate::Prepare() refuses those that its template would leave
// out.
//
// InvalidArgument names the key.
absl::StatusOr<Turn> ReadTurn(const nlohmann::ordered_json& message);

// Reads a list of turns. InvalidArgument also names the turn, counted from 1.
absl::StatusOr<std::vector<Turn>> ReadTurns(const nlohmann::ordered_json& messages);

// The message of a turn, without "train". Without content, it has no "content".
nlohmann::ordered_json JsonOfTurn(const Turn& turn);

// ---- JSON from outside.

// Parses a value of this type, which messages call `expected`, in time that grows with the length of the text.
// InvalidArgument for anything else, and for an object with more than 4096 names: the library finds a name by going
// through all before it. `goes_on` is polled, and false ends the parsing with an error.
absl::StatusOr<nlohmann::ordered_json> ParseBoundedJson(absl::string_view json, nlohmann::ordered_json::value_t type,
                                                        absl::string_view expected,
                                                        const std::function<bool()>& goes_on = {});

// The arguments of a call from their JSON text: the object that it is the JSON of, for a blank text {}. Discarded
// (is_discarded()) if `text` is anything else, and where the object would not say the same: it has a name twice, a
// whole number beyond 64 bits, or more than 64 levels.
nlohmann::ordered_json ObjectOfArguments(absl::string_view text);

// True for null, and for a text, a list or an object with nothing in it.
bool IsNothing(const nlohmann::ordered_json& value);

}  // namespace tdock::text
