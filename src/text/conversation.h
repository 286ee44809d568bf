// Conversations as the tokens and the loss mask that a model is trained with.
//
// One ChatTemplate serves training, rollout and chat: the tokens of a conversation up to a reply are exactly those of
// the prompt that asks for it, and no token reaches across the border before a reply.
//
//   chatml:  <|im_start|> user ⏎ How are you? <|im_end|> ⏎ <|im_start|> assistant ⏎ │ Well. <|im_end|> │ ⏎
//            └ special    └ text                                                    └── the reply ───┘
//
// Special tokens are those that the template spells. What a turn says is text: where it spells a special token, it is
// encoded as text like any other, and so can end no turn and begin none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tdock::text {

// Which turns the loss counts; Turn::train decides for its turn alone.
enum class TrainOn {
  kReplies,    // every reply of the assistant
  kLastReply,  // the last one
  kEverything  // every token, prompts included
};

struct EncodedConversation {
  std::string text;
  std::vector<int32_t> ids;
  // 1 where the loss counts the token. Of a turn that is counted: an assistant's reply with the token that ends it, of
  // others all that they are rendered as.
  std::vector<uint8_t> loss_mask;
  std::vector<int32_t> turns;  // the turn that each token belongs to; -1: none
  // How many tokens come before the last reply, which are those of the prompt that asks for it; 0: there is no reply.
  size_t before_last_reply = 0;

  // Whether a token of the text as a whole would reach across the border before a reply: the ids are others then.
  bool parted = false;

  // A reply that the template does not render as it was, or will be, generated.
  struct Rewritten {
    enum class How {
      kLater,  // once more turns follow it, it reads otherwise, as where a template drops earlier thinking: not counted
      kPrompt  // what stands before it is not the prompt that asks for it: counted from where the two part, or from
               // where the turn itself begins, if that is later
    };
    int32_t turn;
    How how;

    friend bool operator==(const Rewritten&, const Rewritten&) = default;
  };
  // In the order of turns. Always empty where the template marks replies itself.
  std::vector<Rewritten> rewritten;

  // How often the template was run for it. Grows with the kinds of replies, not with their number.
  int64_t renders = 0;
};

struct EncodeTurns {
  bool generation_prompt = false;  // adds what asks the assistant for the next reply
  TrainOn train_on = TrainOn::kReplies;
  Context context = {};
  // As in EncodeOptions: OutOfRange for more tokens, before any reply is looked for.
  size_t max_tokens = std::numeric_limits<size_t>::max();
  // As in EncodeOptions; polled while the template renders, too.
  StopCheck stop = {};
};

// Replies are what {% generation %} marks, where the template has it. Otherwise a reply is what the conversation up to
// its turn has beyond the prompt that asks for it, up to the last special token behind what the turn says.
//
// So both are rendered for each reply of a conversation with up to 16. In a longer one they are rendered for some of
// the replies that stand alike: those with the same roles around them, the same fields, as much of what they say
// rendered, the same text of the template around it but for numbers, and the same kinds of turns since the last one of
// the user. Where these (the first four, the last four and two in the middle) all depart from the whole rendering in
// the same way, the others are taken to do so, too; where they do not, all that stand alike are rendered. The last
// reply always is. So time grows with the length of the conversation and with the kinds of replies in it, not with the
// square of the length. A reply for which the template decides by something else, such as what an earlier turn says,
// may then be taken for one of the others.
//
// The errors of ChatTemplate::Prepare() and of rendering; InvalidArgument where the tokenizer lacks a special token of
// a named template, or cannot encode the text.
absl::StatusOr<EncodedConversation> EncodeConversation(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                                       std::span<const Turn> turns, const EncodeTurns& options = {});

// The tokens of `reply` after a prompt whose tokens are `prompt_ids`: what follows these in the tokens of both
// together; where a token would reach across the border, those of the reply by itself, without a space that the
// tokenizer begins a text with. Special tokens that they spell are text.
absl::StatusOr<std::vector<int32_t>> EncodeReply(const Tokenizer& tokenizer, absl::string_view prompt,
                                                 std::span<const int32_t> prompt_ids, absl::string_view reply);

}  // namespace tdock::text
