// A conversation that goes on: the model's replies stay in it as the tokens that were sampled.
//
//   chatml:  <|im_start|>user⏎Hi<|im_end|>⏎<|im_start|>assistant⏎ │ He llo │ <|im_end|>⏎<|im_start|>user⏎…assistant⏎ │
//            └ encoded                                               └ sampled └ encoded
//
// A reply that was made into text and encoded again may have other tokens: then the model would go on from something
// that it has not said, and what was computed for those tokens would be of no use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tdock::text {

struct RenderedToEncode;  // internal

struct DialoguePrompt {
  std::vector<int32_t> ids;
  // Why replies are encoded again, as EncodeConversation() does: the template renders one, or what stands before it,
  // otherwise once more turns follow. Empty: all of them are in `ids` as they were sampled.
  std::string rewritten = {};
  int64_t dropped_turns = 0;  // of Dialogue: how many of the oldest were left out for want of room
};

// Alternates between a user and a model. Not thread-safe; the tokenizer must outlive it.
//
// Where each reply's tokens are those of its text, the prompts are those of EncodeConversation(). For each of them the
// conversation is rendered once; where turns were dropped, or replies are encoded again, also what stands before some
// replies, as there. So the time of a prompt grows with the length of the conversation alone.
class Dialogue {
 public:
  // `system`: what a system turn before all others says, if there is one.
  Dialogue(ChatTemplate chat_template, const Tokenizer& tokenizer, std::optional<std::string> system);

  // Adds what the user says, and gives the prompt that asks for the reply. Where that has more than `max_tokens`, the
  // oldest turns after the system's are dropped for good, messages with their replies: as few as leave room, provided
  // that a prompt becomes shorter by each.
  //
  // OutOfRange where not even the message alone fits, with both numbers if it is not far too long; InvalidArgument for
  // what cannot be encoded. After an error the dialogue is as before.
  absl::StatusOr<DialoguePrompt> Ask(std::string message, int64_t max_tokens);

  // Adds the reply to the last message: its tokens, without the one that ended it. The errors of Tokenizer::Decode().
  absl::Status Reply(std::vector<int32_t> ids);

  // Takes back the last message, which has no reply.
  void Withdraw();

  // As it was at first.
  void Clear();

  const std::vector<Turn>& turns() const { return turns_; }

 private:
  // The texts that asked for replies, of which each begins with the one before it.
  struct Asked {
    std::string last = {};
    std::vector<size_t> sizes = {};  // of all of them: where the replies stand in the next
  };
  struct Encoded {
    DialoguePrompt prompt = {};
    Asked asked = {};  // with this prompt; none where replies are encoded again
  };

  size_t first_message() const { return system_ ? 1 : 0; }
  // `turns` without the oldest `dropped` messages and their replies.
  std::vector<Turn> Without(size_t dropped, const std::vector<Turn>& turns) const;
  // The prompt for the next reply to `turns`, among which are those of the last replies. OutOfRange for one of more
  // than `max_tokens`.
  absl::StatusOr<Encoded> Encode(std::span<const Turn> turns, std::span<const std::vector<int32_t>> sampled,
                                 size_t max_tokens) const;
  // The texts that asked for the last `replies`, which are all that are left in `rendered`.
  absl::StatusOr<Asked> AskedBefore(const RenderedToEncode& rendered, std::span<const Turn> turns,
                                    size_t replies) const;

  static absl::Status TooLong(const absl::StatusOr<Encoded>& alone, size_t room);

  const ChatTemplate chat_template_;
  const Tokenizer* const tokenizer_;
  const std::optional<std::string> system_;
  std::vector<Turn> turns_;
  std::vector<std::vector<int32_t>> sampled_;  // of the replies in `turns_`, without the tokens that ended them
  Asked asked_;                                // for these replies, and maybe for the next; or not known
};

// The template that renders nothing but what the turns say, after what the tokenizer puts before a text.
absl::StatusOr<ChatTemplate> RawTemplate(const Tokenizer& tokenizer);

}  // namespace tdock::text
