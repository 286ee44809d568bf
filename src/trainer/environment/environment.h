// Environments: what a model talks with while it answers, such as a calculator, a game or a simulated user.
//
//            Reset(seed, row) ──► observation      the first turns, and the tools that there are
//       ┌──► Step(message)    ──► observation      what the environment says next, rewards, whether it is over
//       └── the model answers ◄──┘
//
// An episode is one such conversation: that of one row. Agents turn this round, and ask the model as often as they
// like: one of tokens ends with those that are to be trained on; one of a URL asks for replies to messages, knows
// nothing of tokens, and ends with its rewards.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "text/chat_template.h"
#include "text/replies/reply_parser.h"

namespace tdock::engine {
class TokenConstraint;
}

namespace tdock::environment {

// The caller's name for an episode, never used twice: one that is tried again is another episode.
using EpisodeId = uint64_t;

// What an episode begins with.
struct EpisodeRow {
  std::string prompt;                     // as text
  std::vector<text::Turn> messages = {};  // the same as turns; empty: it is no conversation
  std::vector<int32_t> prompt_ids = {};   // the same as tokens
  std::string truth = {};
  std::string source = {};                          // the data set that the row is from
  std::map<std::string, std::string> columns = {};  // those of data.keep
};

// Numbers by name: what a step was worth. Over an episode they are added up.
using Rewards = std::vector<std::pair<std::string, double>>;
void AddRewards(const Rewards& more, Rewards& sum);

struct Observation {
  std::vector<text::Turn> messages = {};  // turns of the user, the system or tools; empty: nothing is said
  Rewards rewards = {};
  bool done = false;       // the episode is over
  bool truncated = false;  // it is over before its end
  // Of the first one: the text of its first message is no turn of its own, but the end of the row's last one.
  bool continues = false;
};

// What an agent asks for: one more completion.
struct GenerateRequest {
  int64_t request = 0;  // its number in the episode, to answer it by
  std::vector<int32_t> prompt_ids;
  int64_t max_tokens = 0;  // 0: as many as there is room for
};

// What an agent of a URL asks for: the next reply of a conversation, which it gives from its beginning.
struct ChatRequest {
  int64_t request = 0;  // its number, to answer it by
  std::vector<text::Turn> turns = {};
  std::string tools = {};                           // JSON schemas of functions, as a list; empty: there are none
  std::string template_variables = {};              // a JSON object; empty: none
  int64_t max_tokens = 0;                           // 0: as many as there is room for
  std::vector<std::string> stop = {};               // texts that end the reply
  bool reads_calls = true, reads_reasoning = true;  // in the reply; else they are text
  // True once nobody waits for the reply any more. Empty: somebody does. Thread-safe.
  std::function<bool()> gone = {};
  // Makes what limits the tokens of a reply to this prompt. Empty: nothing does.
  using MakeConstraint = std::function<std::unique_ptr<engine::TokenConstraint>(int64_t sample)>;
  std::function<absl::StatusOr<MakeConstraint>(const std::vector<int32_t>& prompt)> constrain = {};
};

// Answers either.
struct Generated {
  std::vector<int32_t> token_ids;
  std::vector<float> log_probs;
  std::string stop_reason;  // "length", "end_token", "stop"
  int64_t weights_version = 0;
  // To a ChatRequest: what the reply says, the weights that made each token, and the tokens that it was asked with.
  std::vector<text::ReplyDelta> said = {};
  std::vector<int64_t> versions = {};
  std::vector<int32_t> prompt_ids = {};
};

// How an agent's episode ends.
struct AgentOutput {
  std::vector<int32_t> prompt_ids, response_ids;
  std::vector<uint8_t> response_mask;  // of each of response_ids: 1 where the model said it
  Rewards rewards = {};
};

struct Event {
  EpisodeId episode = 0;
  // An error is of this episode alone.
  using What = std::variant<Observation, GenerateRequest, ChatRequest, AgentOutput>;
  absl::StatusOr<What> what;
};

// Whether it is the last one of its episode, which is then over: an error, an observation that is done or truncated, an
// agent's output.
bool IsLast(const Event& event);
// Makes it the last one of its episode, which a limit ends: the answer to Environment::Conclude().
void Truncate(Event& event);

// Used by one thread at a time. Calls do not wait for the environment, except Start() and Wait(). An episode is over
// with an observation that is done or truncated, an agent's output, an error or End(); further calls with it do
// nothing.
class Environment {
 public:
  virtual ~Environment() = default;

  virtual const std::string& name() const = 0;

  struct Description {
    std::string tools = {};  // JSON schemas of functions, as a list, for chat templates; empty: there are none
    bool is_agent = false;   // it asks for tokens
    // It is an agent of a URL: it asks for replies, and its only observation, which is its last event, has its rewards.
    bool is_client = false;
    // An episode that a limit ends is asked what it was worth: Conclude().
    bool concludes = false;
  };
  // Starts what is needed. An error says why no episode can be played.
  virtual absl::StatusOr<Description> Start() = 0;

  // Begins an episode, whose first event is an observation, or with an agent any other. Episodes with the same seed and
  // row begin alike.
  virtual void Reset(EpisodeId episode, uint64_t seed, const EpisodeRow& row) = 0;
  // What the model said: a turn of the assistant, with "tool_calls" in its fields where it called tools.
  virtual void Step(EpisodeId episode, const text::Turn& message) = 0;
  // Answers an agent's request: OutOfRange where a limit of the episode leaves no room for an answer, and Cancelled
  // where nobody waits for it.
  virtual void Answer(EpisodeId episode, int64_t request, const absl::StatusOr<Generated>& generated) = 0;
  // In place of Step(), and only where Description::concludes: the model says no more. The next observation is the last
  // one, and truncated; its rewards count and its messages do not.
  virtual void Conclude(EpisodeId /*episode*/) {}
  // Gives the episode up, if it is not over: no more events of it come.
  virtual void End(EpisodeId episode) = 0;

  // The events that have come, at least one. DeadlineExceeded if the deadline passes first; other errors where the
  // environment as a whole has failed. Every episode gets its next event within the environment's own time limits.
  virtual absl::StatusOr<std::vector<Event>> Wait(absl::Time deadline) = 0;
};

}  // namespace tdock::environment
