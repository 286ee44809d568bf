// Which parts of a rendered conversation the model writes itself, found by what the conversation has beyond the prompts
// that ask for them. Internal to this module.
//
// Two renderings answer for each reply: how the conversation up to it is rendered, and how the prompt that asks for it.
// In a long conversation, only some replies of each class are rendered that way. A class is replies that stand alike:
// the roles around them, their fields, how much of what they say is rendered, the template's text around that, and what
// came since the last user turn are the same. Of each class the first four, the last four and two in the middle are
// rendered. Where they all depart from the whole rendering in the same way, so do the others; otherwise all replies of
// the class are rendered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "text/chat_template.h"
#include "text/conversation.h"
#include "text/render_to_encode.h"
#include "text/tokenizer.h"

namespace tdock::text {

// Part of the text that the model writes itself.
struct Reply {
  TextRange range;
  int32_t turn;
  // The end of what the turn says in it; from there to the end of `range`, the template ends the turn.
  size_t said;

  friend bool operator==(const Reply&, const Reply&) = default;
};

struct RepliesOfConversation {
  std::vector<Reply> replies;  // in the order of the turns, apart from one another
  // Those that are not as they were generated, in order; of those that read otherwise later, there is no reply.
  std::vector<EncodedConversation::Rewritten> rewritten;
};

// Conversations with at most so many replies are rendered for each.
inline constexpr size_t kMaxExactReplies = 16;

// The last of the replies found is always one that was rendered. `renderings` are those of the conversation.
// `max_exact` is for tests. The error of the conversation's stop check; where the template refuses a part of it, what
// the turn says is all that is known.
absl::StatusOr<RepliesOfConversation> FindReplies(const RenderedToEncode& rendered, std::span<const Turn> turns,
                                                  Renderings& renderings, size_t max_exact = kMaxExactReplies);

// The replies that are not as they were generated once more turns follow, kLater and kEnd, where the template marks
// replies itself. The error of the conversation's stop check.
absl::StatusOr<std::vector<EncodedConversation::Rewritten>> FindRewritten(const RenderedToEncode& rendered,
                                                                          std::span<const Turn> turns,
                                                                          Renderings& renderings);

struct PromptsOfConversation {
  // Where the prompts that ask for the replies end, in order, up to the first one that the whole does not begin with.
  std::vector<size_t> ends;
  int64_t renders = 0;
};
absl::StatusOr<PromptsOfConversation> FindPrompts(const RenderedToEncode& rendered, std::span<const Turn> turns,
                                                  size_t max_exact = kMaxExactReplies);

}  // namespace tdock::text
