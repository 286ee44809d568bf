// Conversations as text that is to be encoded. Internal to this module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tdock::text {

// The first turns of a conversation, as its template renders them. Not thread-safe.
class Renderings {
 public:
  // Keeps what has been rendered, but for texts that would have more than `max_bytes` together. `conversation` must
  // outlive it.
  Renderings(const ChatTemplate::Prepared& conversation, size_t max_bytes)
      : conversation_(conversation), max_bytes_(max_bytes) {}

  // Null where the template refuses them; valid until the next call. Other errors are those of the stop check.
  absl::StatusOr<const ChatTemplate::Rendered*> First(size_t turns, bool generation_prompt);
  int64_t renders() const { return renders_; }  // how often the template was run

 private:
  const ChatTemplate::Prepared& conversation_;
  const size_t max_bytes_;
  std::map<std::pair<size_t, bool>, std::optional<ChatTemplate::Rendered>> kept_;
  std::optional<ChatTemplate::Rendered> last_;  // that was not kept
  size_t bytes_ = 0;
  int64_t renders_ = 0;
};

// A conversation, and what the template makes of it.
struct RenderedToEncode {
  ChatTemplate::Prepared conversation;
  ChatTemplate::Rendered whole;
  std::vector<std::optional<TextRange>> said;  // of `whole`, see SaidByEach()
  const Tokenizer* tokenizer;
};

// The errors of ChatTemplate::Render(). InvalidArgument also where the tokenizer lacks a special token of
// a named template, or where the template leaves out what a turn says, unless it is a reply, which may lose its
// thinking but no call. The tokenizer must outlive the result. `stop` as in ChatTemplate::Prepare().
absl::StatusOr<RenderedToEncode> RenderToEncode(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                                std::span<const Turn> turns, const Context& context,
                                                bool generation_prompt, const StopCheck& stop);

// Makes `whole` the whole of `rendered`, of which `turns` are the first turns. The last of the errors above.
absl::Status SetWhole(std::span<const Turn> turns, ChatTemplate::Rendered whole, RenderedToEncode& rendered);

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
