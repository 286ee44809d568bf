// The conversations of an episode whose agent asks for replies to messages.
//
//   asked with                                        goes on
//   [question]                                        a new conversation
//   [question, its reply, what a tool says]           that one, from the tokens that were sampled
//   [question, another reply or question, …]          a new one: its history is another
//
// An agent gives each conversation from its beginning; it is known by what it repeats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/completion.h"
#include "text/chat_template.h"
#include "text/replies/reply_parser.h"
#include "trainer/environment/environment.h"
#include "trainer/stages/transcript.h"

namespace tdock::trainer {

// Not thread-safe.
class Conversations {
 public:
  // `row` is that of the episode. Both must outlive it.
  Conversations(const TurnRules& rules, const environment::EpisodeRow& row);
  ~Conversations();

  // A prompt for the model.
  struct Asked {
    size_t conversation = 0;
    std::vector<int32_t> tokens = {};
    int64_t room = 0;  // for tokens of the reply
  };
  // How many tokens a reply may have behind `before` tokens, of which `used` count as the response.
  using Room = std::function<absl::StatusOr<int64_t>(int64_t used, int64_t before)>;
  // Finds the conversation that the request goes on with, which then waits for a reply. One that waits is none to go on
  // with: what is asked meanwhile begins another.
  //
  // InvalidArgument for what the template refuses; the errors of `room`. Then nothing waits.
  absl::StatusOr<Asked> Ask(const environment::ChatRequest& request, const Room& room);

  // The tokens that were asked with, and what the reply says: an agent is told both.
  struct Reply {
    std::vector<int32_t> prompt_ids = {};
    std::vector<text::ReplyDelta> said = {};
  };
  // Adds what was asked, and the reply.
  Reply AddReply(size_t conversation, const engine::Completion& completion);
  // No reply comes: the conversation is as before. The same may be asked again.
  void GiveUp(size_t conversation);

  // True if there is a reply.
  bool has_row() const { return row_conversation_.has_value(); }
  // The conversation that becomes the row of the episode: the one with the last reply.
  const Transcript& row() const;
  // True if the model has ended that reply.
  bool row_is_finished() const;
  // Adds what the episode was worth to the row.
  void AddRewards(const environment::Rewards& rewards);
  // Turns of all conversations with a reply, the row's at the end. If there are several, each begins with its prompt,
  // as a fork does.
  std::vector<TranscriptTurn> AllTurns() const;
  // How often a conversation has begun anew behind the first.
  int64_t forks() const;

 private:
  struct Conversation;

  absl::StatusOr<std::unique_ptr<Conversation>> Begin(const environment::ChatRequest& request) const;
  // Returns the number of the conversation that the request goes on with; absent: none.
  std::optional<size_t> Find(const environment::ChatRequest& request) const;

  const TurnRules& rules_;
  const environment::EpisodeRow& episode_row_;
  std::vector<std::unique_ptr<Conversation>> conversations_;
  std::optional<size_t> row_conversation_;
  int64_t replies_ = 0;
};

}  // namespace tdock::trainer
