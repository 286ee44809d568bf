// Answers as clients read them: JSON in OpenAI's forms and in SGLang's, which verl asks for. docs/serving.md has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/json_text.h"
#include "engine/completion.h"
#include "serve/protocol/ask.h"
#include "serve/served_model.h"
#include "serve/token_texts.h"

namespace tdock::serve {

// A part of an answer, or a whole one.
struct Piece {
  int64_t index = 0;  // of the answer in the reply
  std::string text = {};
  std::vector<engine::NewToken> tokens = {};
  std::optional<engine::FinishReason> finish = {};  // with the last piece
  size_t text_offset = 0;                           // characters of the tokens' own texts before it
  const std::vector<int32_t>* prompt = nullptr;     // with the first piece
  int64_t version = 0;                              // of the weights that were served at its end
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
};

// "stop", "length", "abort" or "timeout".
const char* FinishNameOf(engine::FinishReason reason);

// Immutable, and so thread-safe.
class Replies {
 public:
  // The model must outlive it.
  Replies(const Ask& ask, std::string id, int64_t created, const ServedModel& model);

  const std::string& id() const { return id_; }

  // The body of a reply that is not streamed: all answers, each in one piece.
  std::string Whole(std::span<const Piece> answers, const Usage& usage) const;

  // Events of a stream. A chat's answer begins with Opening().
  std::string Opening(int64_t index) const;
  std::string Event(const Piece& piece) const;
  std::string UsageEvent(const Usage& usage) const;

 private:
  std::string Head(bool stream) const;
  std::string EventWith(absl::string_view choices) const;

  const Form form_;
  const bool is_list_, log_probs_, token_ids_, with_usage_;
  const std::string id_;
  const int64_t created_;
  const ServedModel& model_;
  const std::string event_head_;  // of all events
};

// The characters of the tokens' own texts.
size_t CharactersOf(std::span<const engine::NewToken> tokens, const TokenTexts& texts);

// "data: …" with the empty line that ends an event.
std::string EventOf(const std::string& data);
inline constexpr char kStreamEnd[] = "data: [DONE]\n\n";

}  // namespace tdock::serve
