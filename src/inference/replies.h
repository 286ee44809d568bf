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
#include "inference/protocol/ask.h"
#include "inference/served_model.h"
#include "inference/token_texts.h"
#include "text/replies/reply_parser.h"

namespace tdock::inference {

// A part of an answer, or a whole one.
struct Piece {
  int64_t index = 0;                          // of the answer in the reply
  std::vector<text::ReplyDelta> deltas = {};  // what it says
  std::vector<engine::NewToken> tokens = {};
  std::optional<engine::FinishReason> finish = {};  // with the last piece
  size_t text_offset = 0;                           // characters of the tokens' own texts before it
  const std::vector<int32_t>* prompt = nullptr;     // with the first piece
  int64_t version = 0;                              // of the weights that were served at its end
  bool calls_tools = false;                         // with the last piece: the answer does
  engine::PromptLogProbs prompt_log_probs = {};     // with the last piece, where they are asked for
};

// The text of a piece, without reasoning and calls.
std::string ContentOf(const Piece& piece);

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
};

// "stop", "length", "abort" or "timeout".
const char* FinishNameOf(engine::FinishReason reason);
// The same, or "tool_calls" for an answer that ends by itself with calls. Of the last piece.
const char* FinishNameOf(const Piece& piece);

// The ids of tokens; [{"version": 3, "tokens": 12}, …], the runs of tokens with the same weights.
nlohmann::ordered_json IdsOf(const std::vector<engine::NewToken>& tokens);
nlohmann::ordered_json VersionsOf(const std::vector<engine::NewToken>& tokens);

// Writes the reply to one request. Not thread-safe.
class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;

  virtual const std::string& id() const = 0;

  // The body of a reply that is not streamed: all answers, each in one piece.
  virtual std::string Whole(std::span<const Piece> answers, const Usage& usage) = 0;

  // Events of a stream: what begins an answer, what a piece of it says, and what follows all answers.
  virtual std::string Opening(int64_t index) = 0;
  virtual std::string Event(const Piece& piece) = 0;
  virtual std::string Closing(const Usage& usage) = 0;
};

// Writes replies of all forms but that of /v1/responses.
class Replies final : public ReplyWriter {
 public:
  // The model must outlive it.
  Replies(const Ask& ask, std::string id, int64_t created, const ServedModel& model);

  const std::string& id() const override { return id_; }
  std::string Whole(std::span<const Piece> answers, const Usage& usage) override;
  std::string Opening(int64_t index) override;
  std::string Event(const Piece& piece) override;
  std::string Closing(const Usage& usage) override;

 private:
  std::string ChoiceOf(const Piece& piece, bool stream) const;
  std::string LogProbsOfChoice(const Piece& piece) const;
  std::string Head(bool stream) const;
  std::string EventWith(absl::string_view choices) const;

  const Form form_;
  const bool is_list_, token_ids_, with_usage_, echo_;
  const std::optional<int64_t> log_probs_, prompt_log_probs_;
  const std::string id_;
  const int64_t created_;
  const ServedModel& model_;
  const std::string event_head_;  // of all events
};

// "data: …" with the empty line that ends an event.
std::string EventOf(const std::string& data);
inline constexpr char kStreamEnd[] = "data: [DONE]\n\n";

}  // namespace tdock::inference
