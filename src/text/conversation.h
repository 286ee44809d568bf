// Conversations as the text, the tokens and the loss mask that a model was made with.
//
// One ChatTemplate serves training, rollout and chat: the tokens of a conversation up to a reply are exactly those of
// the prompt that asks for it, and no token reaches across the border before a reply.
//
//   chatml:  <|im_start|> user ⏎ How are you? <|im_end|> ⏎ <|im_start|> assistant ⏎ │ Well. <|im_end|> │ ⏎
//            └ special    └ text                                                    └── the reply ───┘
//
// Special tokens are put in by the template, as ids. What a turn says is text: where it spells a special token, it is
// encoded as text like any other, and so can end no turn and begin none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/env.h"
#include "text/tokenizer.h"

namespace tdock::text {

enum class Role {
  kSystem,
  kUser,
  kAssistant,
  kDeveloper,  // as the system, for templates that do not know it
  kTool,       // what the call of a tool returned
  kFunction    // the same by its older name
};

// "system", "user", "assistant", "developer", "tool", "function".
absl::string_view RoleName(Role role);

struct Turn {
  Role role = Role::kUser;
  std::string content;  // UTF-8
  // Whether the loss counts this turn, where that is not for TrainOn to say.
  std::optional<bool> train = std::nullopt;

  friend bool operator==(const Turn&, const Turn&) = default;
};

struct TemplateForm;  // internal

// Immutable, and so thread-safe; cheap to copy.
class ChatTemplate {
 public:
  // A part of a rendered conversation.
  struct Piece {
    enum class Kind { kText, kSpecial, kBos, kEos };
    Kind kind = Kind::kText;
    std::string text;    // of a special token: how it is spelt; empty for kBos and kEos
    int turn = -1;       // which one it belongs to; -1: to none, as what is put before the first
    bool reply = false;  // what the model itself writes: an assistant's content with the token that ends it

    friend bool operator==(const Piece&, const Piece&) = default;
  };

  // Names() in messages and documentation: chatml, human_assistant, llama3, llama3.1, mistral, mistral_v3, qwen.
  static std::vector<std::string> Names();

  // NotFound, with the names, for another one.
  static absl::StatusOr<ChatTemplate> Named(absl::string_view name);

  // The template that a Jinja text, a model's `chat_template`, stands for. It is recognised by its hash, line ends and
  // outer blanks aside, when it is one of the texts that template_form.cc lists, and never by resemblance; Mistral's
  // are another project's copies. Unimplemented where it is none of them; the message says how to choose by name.
  static absl::StatusOr<ChatTemplate> Recognise(absl::string_view jinja);

  // Recognise() for the model in `folder`: chat_template.jinja, or else "chat_template" of tokenizer_config.json, and
  // of several the one named "default". NotFound where the model has none. Neither file may exceed 4 MiB.
  static absl::StatusOr<ChatTemplate> OfModel(Env& env, const std::string& folder);

  absl::string_view name() const;
  // Everything that shapes what is rendered, for a cache key.
  std::string Description() const;

  // InvalidArgument, with the number of the turn, for a role or an order of roles that the template cannot express.
  // `generation_prompt` adds what asks the assistant for the next reply.
  absl::StatusOr<std::vector<Piece>> Render(std::span<const Turn> turns, bool generation_prompt) const;

 private:
  explicit ChatTemplate(const TemplateForm& form) : form_(&form) {}

  const TemplateForm* form_;
};

// The conversation as one text, with special tokens spelt out. `bos` and `eos` are those of the tokenizer.
std::string RenderedText(std::span<const ChatTemplate::Piece> pieces, absl::string_view bos, absl::string_view eos);

// Which turns the loss counts; Turn::train decides for its turn alone.
enum class TrainOn {
  kReplies,    // every reply of the assistant
  kLastReply,  // the last one
  kEverything  // every token, prompts included
};

struct EncodedConversation {
  std::vector<int32_t> ids;
  // 1 where the loss counts the token. Of a turn that is counted: an assistant's reply with the token that ends it, of
  // others all that they are rendered as.
  std::vector<uint8_t> loss_mask;
  std::vector<int32_t> turns;  // the turn that each token belongs to; -1: none
  // How many tokens come before the last reply, which are those of the prompt that asks for it; 0: there is no reply.
  size_t before_last_reply = 0;
};

// The tokens of `reply` after a prompt whose tokens are `prompt_ids`: what follows these in the tokens of both
// together; where a token would reach across the border, those of the reply by itself, without a space that the
// tokenizer begins a text with. Special tokens that they spell are text.
absl::StatusOr<std::vector<int32_t>> EncodeReply(const Tokenizer& tokenizer, absl::string_view prompt,
                                                 std::span<const int32_t> prompt_ids, absl::string_view reply);

// InvalidArgument where the tokenizer lacks a special token of the template, or cannot encode the text.
absl::StatusOr<EncodedConversation> EncodeConversation(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                                       std::span<const Turn> turns, bool generation_prompt,
                                                       TrainOn train_on = TrainOn::kReplies);

}  // namespace tdock::text
