// Conversations as text that is to be encoded. Internal to this module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tdock::text {

// A conversation, and what the template makes of it.
struct RenderedToEncode {
  ChatTemplate::Prepared conversation;
  ChatTemplate::Rendered whole;
  std::vector<std::optional<TextRange>> said;  // of `whole`, see SaidByEach()
};

// The errors of ChatTemplate::Render(). InvalidArgument also where the tokenizer lacks a special token of
// a named template, or where the template leaves out what a turn says, unless it is a reply, which may lose its
// thinking. `stop` as in ChatTemplate::Prepare().
absl::StatusOr<RenderedToEncode> RenderToEncode(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                                std::span<const Turn> turns, const Context& context,
                                                bool generation_prompt, const StopCheck& stop);

// For each of so many turns: from the first to the last byte that it says; nothing where it says none.
std::vector<std::optional<TextRange>> SaidByEach(const ChatTemplate::Rendered& rendered, size_t turns);

// True if a template failed by itself. Other errors of rendering are those of the stop check.
bool IsRefusal(const absl::Status& status);

// How many bytes both begin with.
size_t CommonPrefix(absl::string_view a, absl::string_view b);

// An error of encoding the whole, with the turn that it is in. Only InvalidArgument is of one.
absl::Status AtItsTurn(const absl::Status& status, const Tokenizer& tokenizer, std::span<const Turn> turns,
                       const StopCheck& stop);

}  // namespace tdock::text
