// The conversation of an episode as tokens.
//
//   prompt                             response
//   ┌────────────────────────────────┐ ┌──────────┬─────────────────────┬──────────┐
//   │ turns of the data, what the    │ │ the model│ what the environment│ the model│
//   │ environment says first, tools  │ │          │ says                │          │
//   └────────────────────────────────┘ └──────────┴─────────────────────┴──────────┘
//                                mask:  1 1 1 1 1  0 0 0 0 0 0 0 0 0 0   1 1 1 1 1
//
// Tokens in, tokens out: what the model said stays as it was sampled, and what the environment says is encoded by
// itself and appended, so that each log-probability is that of its token after exactly the tokens before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/completion.h"
#include "text/chat_template.h"
#include "text/replies/reply_parser.h"
#include "text/tokenizer.h"
#include "trainer/environment/environment.h"
#include "trainer/environment/environment_config.h"

namespace tdock::trainer {

// How turns become tokens. What it points to must outlive its use.
struct TurnRules {
  environment::TurnFormat format = environment::TurnFormat::kChat;
  std::optional<text::ReplyForm> tool_format = {};  // absent: that of the template
  const text::Tokenizer* tokenizer = nullptr;
  const text::ChatTemplate* chat_template = nullptr;  // with kChat
  std::string tools = {};                             // as Environment::Description has them
  int64_t max_observation_tokens = 1024;              // of each turn of the environment; longer ones are cut
};

// InvalidArgument if they lack what they need: kChat needs a template, unless an agent renders its turns itself.
absl::Status CheckRules(const TurnRules& rules, bool is_agent);

// A turn as it is recorded.
struct TranscriptTurn {
  bool by_model = false;
  // It is the conversation so far as the template renders it anew: the tokens before it are not in the row.
  bool is_fork = false;
  std::vector<int32_t> ids = {};
  std::vector<float> log_probs = {};              // of the model's
  std::vector<engine::WeightsSpan> weights = {};  // of the model's
  std::string text = {};                          // as it was said
  environment::Rewards rewards = {};              // that it was worth
};

// How a reply is read; as in text::ReplyOptions.
struct ReplyRules {
  std::string id_seed = {};
  bool reads_calls = true, reads_reasoning = true;
};

// What a template renders as it was said stays one sequence of tokens. Where it does not, as where it drops the
// thinking of earlier turns once more follow, the conversation is forked: it goes on from its new rendering as the
// prompt of a row of its own, and what was sampled before is in the record of turns alone.
class Transcript {
 public:
  // The rules must outlive it.
  explicit Transcript(const TurnRules& rules);

  // Begins with the row's prompt, as the data has it. InvalidArgument if the row is none that the rules can render: one
  // without turns, with kChat, or whose tokens are not those of its turns.
  absl::Status Begin(const environment::EpisodeRow& row);
  // Begins with the turns of an agent, and with the tools, as a whole. The text of the row's prompt becomes its tokens.
  // The errors of AddFirst().
  absl::Status BeginWith(const std::vector<text::Turn>& turns, const environment::EpisodeRow& row);
  // Then with the tools, and what the environment says before the first answer. InvalidArgument for what the template
  // refuses and the tokenizer cannot express.
  absl::Status AddFirst(const environment::Observation& first);

  // Reads what the model says next as a turn. The errors of text::ReadModelTurn().
  absl::StatusOr<text::Turn> ReadReply(absl::string_view said, const ReplyRules& rules = {}) const;
  // The same in its parts, as people see it: without the stop text that has ended it, and of special tokens only with
  // those that mark calls and reasoning.
  text::ParsedReply ParseReply(const engine::Completion& completion, const ReplyRules& rules) const;
  // What the model said, which is `message` to the environment.
  void AddReply(const engine::Completion& completion, const text::Turn& message);

  // What is said next, up to where the model answers again.
  struct Next {
    bool fork = false;  // then `ids` are the whole prompt
    std::vector<int32_t> ids = {};
    std::string text = {};
    std::string rendered = {};  // the whole conversation; of kChat
    std::vector<text::Turn> said = {};
  };
  // Behind a reply. The errors of AddFirst().
  absl::StatusOr<Next> Render(const std::vector<text::Turn>& said) const;
  // Appends it.
  void Add(Next next);

  // What the last turn of the model was worth.
  void AddRewards(const environment::Rewards& rewards);

  const std::vector<int32_t>& prompt() const { return prompt_; }
  const std::vector<int32_t>& response() const { return response_; }
  const std::vector<uint8_t>& mask() const { return mask_; }
  const std::vector<float>& log_probs() const { return log_probs_; }
  std::vector<int32_t> tokens() const;  // prompt and response
  // Of all responses, with those that a fork has left behind.
  int64_t response_tokens() const { return left_behind_ + static_cast<int64_t>(response_.size()); }
  int64_t forks() const { return forks_; }
  const std::vector<TranscriptTurn>& turns() const { return turns_; }

  // The rewards before any reply.
  const environment::Rewards& first_rewards() const { return first_rewards_; }

 private:
  absl::StatusOr<std::vector<text::Turn>> Shortened(const std::vector<text::Turn>& said) const;
  absl::StatusOr<Next> RenderChat(std::vector<text::Turn> said) const;
  absl::StatusOr<Next> RenderText(std::vector<text::Turn> said) const;
  bool SaysTheSame(absl::string_view rendered) const;
  void SetTail(std::span<const int32_t> ids);
  text::ReplyOptions OptionsOf(const ReplyRules& rules) const;

  const TurnRules* rules_;
  text::TurnReading reading_;
  std::vector<text::Turn> conversation_;  // of kChat
  std::string rendered_;                  // of kChat: what the model was last asked with
  std::vector<int32_t> prompt_, response_;
  std::vector<uint8_t> mask_;
  std::vector<float> log_probs_;
  std::vector<TranscriptTurn> turns_;
  environment::Rewards first_rewards_;
  // The last reply as text, and whether an end token of the model ended it.
  std::string reply_;
  bool reply_has_end_ = false;
  // Of kText: what stands before what is said next, from the last special token on, and its tokens.
  std::string tail_;
  std::vector<int32_t> tail_ids_;
  int64_t left_behind_ = 0, forks_ = 0;
};

// A reply as text, without the token that ended it; other special tokens are spelt out.
absl::StatusOr<std::string> ReplyText(const text::Tokenizer& tokenizer, const engine::Completion& completion);

// The record of turns as JSON, for the column `trace`: a list of
//
//   {"by": "model", "ids": […], "mask": 1, "log_probs": […], "weights": [{"version": 3, "tokens": 12}], "text": "…",
//    "rewards": {"correct": 1.0}}
//   {"by": "environment", "ids": […], "mask": 0, "text": "…"}
//   {"by": "template", …}       a fork: these tokens replace all before
std::string TraceOf(const std::vector<TranscriptTurn>& turns);

}  // namespace tdock::trainer
