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
  kReplies,     // every reply of the assistant
  kLastReply,   // the last one
  kEverything,  // every token, prompts included
  kEachReply    // every reply, as it was generated: those that read so in this conversation, see PartsToTrain()
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
  // Replies that should be counted, and of which no token is, in order.
  std::vector<int32_t> uncounted;

  // Whether a token of the text as a whole would reach across the border before a reply: the ids are others then.
  bool parted = false;

  // A reply that the template does not render as it was, or will be, generated.
  struct Rewritten {
    enum class How {
      kLater,  // once more turns follow it, it reads otherwise, as where a template drops earlier thinking: not counted
      kPrompt,  // what stands before it is not the prompt that asks for it: counted from where the two part, or from
                // where the turn itself begins, if that is later
      kEnd  // once more turns follow it, another special token ends it: counted without that, or with kEachReply not at
            // all
    };
    int32_t turn;
    How how;

    friend bool operator==(const Rewritten&, const Rewritten&) = default;
  };
  // In the order of turns. Where the template marks replies itself, empty except with kEachReply.
  std::vector<Rewritten> rewritten;

  // How often the template was run for it. Grows with the kinds of replies, not with their number.
  int64_t renders = 0;
};

struct EncodeTurns {
  bool generation_prompt = false;  // adds what asks the assistant for the next reply
  TrainOn train_on = TrainOn::kReplies;
  // Which turns the loss counts, in place of what `train_on` and the turns say; empty: as these say.
  std::vector<bool> counted = {};
  Context context = {};
  // As in EncodeOptions: OutOfRange for more tokens, before any reply is looked for.
  size_t max_tokens = std::numeric_limits<size_t>::max();
  // As in EncodeOptions; polled while the template renders, too.
  StopCheck stop = {};
};

// Replies are what {% generation %} marks, where the template has it. Otherwise a reply is what the conversation up to
// its turn has beyond the prompt that asks for it, up to the last special token behind what the turn says. Where there
// is none, the special token that the turn behind it begins with ends it, as the marker of the user's turn does with
// GLM; to the last reply, if it is counted, the one is added that the next turn would begin with.
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

// A sample of its own: the first turns of a conversation, and which of them the loss counts there.
struct TrainedPart {
  size_t turns;
  std::vector<bool> counted;  // for each of these turns

  friend bool operator==(const TrainedPart&, const TrainedPart&) = default;
};

struct TrainedParts {
  // The whole conversation first, unless nothing is counted in it, then ever fewer turns.
  std::vector<TrainedPart> parts;
  std::vector<int32_t> untrained;  // replies that should be counted and are in no part, in order
  int64_t renders = 0;             // how often the template was run: about twice for each reply, whatever the parts
};

// Divides a conversation into parts that each, encoded with kEachReply and its `counted`, count some of the replies as
// they were generated, and together count every reply once. Each part has as many of them as it can: the whole those
// that read there as they did when they were the last, the next one, which ends with the last of the others, again
// those, and so on. `options` are those of the whole. Nothing is encoded. The errors of EncodeConversation() for the
// whole conversation.
absl::StatusOr<TrainedParts> PartsToTrain(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                          std::span<const Turn> turns, const EncodeTurns& options = {});

// The tokens of `reply` after a prompt whose tokens are `prompt_ids`: what follows these in the tokens of both
// together; where a token would reach across the border, those of the reply by itself, without a space that the
// tokenizer begins a text with. Special tokens that they spell are text.
absl::StatusOr<std::vector<int32_t>> EncodeReply(const Tokenizer& tokenizer, absl::string_view prompt,
                                                 std::span<const int32_t> prompt_ids, absl::string_view reply);

}  // namespace tdock::text
