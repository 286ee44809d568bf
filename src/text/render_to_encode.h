// Conversations as text that is to be encoded. Internal to this module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tdock::text {

// What ChatTemplate::Render() gives, and its errors. InvalidArgument also where the tokenizer lacks a special token of
// a named template, or where the template leaves out what a turn says, unless it is a reply, which may lose its
// thinking.
absl::StatusOr<ChatTemplate::Rendered> RenderToEncode(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                                      std::span<const Turn> turns, const Context& context,
                                                      bool generation_prompt);

// From the first to the last byte that `turn` says; nothing where it says none.
std::optional<TextRange> SaidBy(const ChatTemplate::Rendered& rendered, int32_t turn);

// How many bytes both begin with.
size_t CommonPrefix(absl::string_view a, absl::string_view b);

// An error of encoding the whole, with the turn that it is in.
absl::Status AtItsTurn(const absl::Status& status, const Tokenizer& tokenizer, std::span<const Turn> turns);

}  // namespace tdock::text
