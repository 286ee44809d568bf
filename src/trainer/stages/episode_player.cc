#include "trainer/stages/episode_player.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "trainer/stages/agent_output.h"
#include "trainer/stages/conversations.h"
#include "trainer/stages/guard.h"

namespace tdock::trainer {
namespace {

using environment::EpisodeId;

// How long the player waits for the environment before it looks whether it must stop.
constexpr absl::Duration kPatience = absl::Milliseconds(100);
constexpr int64_t kMaxUnanswered = 256;  // requests of an agent one after the other; at most 64 are open at a time

int64_t SmallestVersion(const std::vector<TranscriptTurn>& turns) {
  std::optional<int64_t> smallest;
  for (const TranscriptTurn& turn : turns) {
    for (const engine::WeightsSpan& span : turn.weights)
      smallest = std::min(smallest.value_or(span.version), span.version);
  }
  return smallest.value_or(0);
}

}  // namespace

class EpisodePlayer::Impl {
 public:
  Impl(const model::Decoder& decoder, AnswerEngine& engine, environment::Environment& environment,
       EpisodeOptions options)
      : decoder_(decoder), engine_(engine), environment_(environment), options_(std::move(options)) {}

  absl::Status Run(std::span<const EpisodeStart> starts, const BetweenSteps& between_steps, const OnEnd& on_end) {
    starts_ = starts;
    on_end_ = &on_end;
    waited_ = absl::ZeroDuration();
    plays_ = std::vector<OpenEpisode>(starts.size());
    const absl::Status status = Guarded([&] { return PlayAll(between_steps); });
    const absl::Status given_up = Guarded([&] { return GiveUpOpen(); });
    TDOCK_RETURN_IF_ERROR(status);
    return given_up;
  }

  absl::Duration waited() const { return waited_; }

 private:
  // A reply that an agent of a URL waits for.
  struct OpenReply {
    engine::RequestId request = 0;
    size_t conversation = 0;
    bool may_be_cut = false;  // the agent has set its length
    std::function<bool()> gone = {};
  };

  // An episode that is played.
  struct OpenEpisode {
    EpisodeId id = 0;  // of this try; 0: it is over
    std::optional<Transcript> transcript = {};
    int64_t replies = 0;                                  // of this try
    bool concluding = false;                              // it has reached a limit, and its last rewards are due
    std::map<engine::RequestId, int64_t> requests = {};   // open, and their numbers among the agent's
    std::map<int64_t, AgentGeneration> generations = {};  // of an agent, by those numbers
    // Of an agent of a URL.
    std::optional<Conversations> conversations = {};
    std::map<int64_t, OpenReply> open_replies = {};  // by those numbers
    std::map<uint64_t, uint64_t> asked_before = {};  // how often, by hashes of prompts
    absl::Status limit = absl::OkStatus();           // that it has reached
    int64_t unanswered = 0;                          // requests since the last reply that it was told
    int64_t bad_calls = 0, failed_tries = 0, generated = 0;
  };

  struct Place {
    size_t number;                   // of the episode
    std::optional<int64_t> request;  // of its agent
  };

  absl::Status PlayAll(const BetweenSteps& between_steps) {
    if (!started_) {
      absl::StatusOr<environment::Environment::Description> description = environment_.Start();
      if (!description.ok()) {
        return Annotate(description.status(), absl::StrCat("the environment ", environment_.name()));
      }
      TDOCK_RETURN_IF_ERROR(CheckRules(options_.rules, description->is_agent));
      options_.rules.tools = std::move(description->tools);
      is_agent_ = description->is_agent;
      is_client_ = description->is_client;
      concludes_ = description->concludes;
      started_ = true;
    }
    over_ = 0;
    for (size_t number = 0; number < starts_.size(); ++number) Begin(number);
    while (over_ < starts_.size()) {
      if (engine_.HasWork()) {
        TDOCK_ASSIGN_OR_RETURN(std::vector<engine::Answer> ended, engine_.Step());
        for (engine::Answer& answer : ended) TDOCK_RETURN_IF_ERROR(OnAnswer(answer));
      }
      TDOCK_RETURN_IF_ERROR(HearEnvironment());
      TDOCK_RETURN_IF_ERROR(between_steps());
    }
    return absl::OkStatus();
  }

  absl::Status HearEnvironment() {
    // An agent may ask at any time; otherwise either the model or the environment has the word.
    const bool asks_any_time = is_agent_ || is_client_;
    if (by_id_.empty() || (!asks_any_time && by_id_.size() == by_request_.size())) return absl::OkStatus();
    if (is_client_) DropUnwanted();
    const bool idle = !engine_.HasWork();
    const absl::Time begun = absl::Now();
    absl::StatusOr<std::vector<environment::Event>> events =
        environment_.Wait(idle ? begun + kPatience : absl::InfinitePast());
    if (idle) waited_ += absl::Now() - begun;
    if (absl::IsDeadlineExceeded(events.status())) return absl::OkStatus();
    if (!events.ok()) return Annotate(events.status(), absl::StrCat("the environment ", environment_.name()));
    if (is_client_) DropUnwanted();  // before the same is asked again
    for (environment::Event& event : *events) {
      const auto found = by_id_.find(event.episode);
      if (found == by_id_.end()) continue;  // it was given up meanwhile
      const size_t number = found->second;
      if (!event.what.ok()) {
        TDOCK_RETURN_IF_ERROR(Fail(number, event.what.status()));
      } else {
        TDOCK_RETURN_IF_ERROR(std::visit([&](auto& what) { return On(number, what); }, *event.what));
      }
    }
    return absl::OkStatus();
  }

  void Begin(size_t number) {
    OpenEpisode& play = plays_[number];
    play.id = ++last_id_;
    play.replies = 0;
    play.concluding = false;
    play.limit = absl::OkStatus();
    play.unanswered = 0;
    Clear(play);
    by_id_[play.id] = number;
    environment_.Reset(play.id, starts_[number].seed, starts_[number].row);
  }

  // ---- What the environment says.

  absl::Status On(size_t number, environment::Observation& said) {
    if (is_client_) return OnClientEnd(number, said);
    OpenEpisode& play = plays_[number];
    const bool first = !play.transcript.has_value();
    if (first) {
      play.transcript.emplace(options_.rules);
      TDOCK_RETURN_IF_ERROR(Annotate(play.transcript->Begin(starts_[number].row), absl::StrCat("episode ", number)));
    }
    play.transcript->AddRewards(said.rewards);
    const bool over = said.done || said.truncated;
    if (first) {
      if (over) return Refuse(number, absl::InvalidArgumentError("it is over before the model has said anything"));
      const absl::Status added = play.transcript->AddFirst(said);
      return added.ok() ? Ask(number) : Refuse(number, added);
    }
    if (play.concluding) return Finish(number, /*truncated=*/true);
    if (over) return Finish(number, /*truncated=*/said.truncated);
    if (play.replies >= options_.max_turns) return Stop(number);
    return GoOn(number, said.messages);
  }

  // The model answers what is said, where there is room for that.
  absl::Status GoOn(size_t number, const std::vector<text::Turn>& said) {
    OpenEpisode& play = plays_[number];
    absl::StatusOr<Transcript::Next> next = play.transcript->Render(said);
    if (!next.ok()) return Refuse(number, next.status());
    const int64_t more = std::ssize(next->ids);
    const int64_t used = play.transcript->response_tokens() + (next->fork ? 0 : more);
    const int64_t before = next->fork ? more : std::ssize(play.transcript->tokens()) + more;
    if (!Room(used, before).ok()) return Stop(number);
    play.transcript->Add(*std::move(next));
    return Ask(number);
  }

  // How many tokens a turn may have behind `before` tokens, of which `used` count as the response.
  absl::StatusOr<int64_t> Room(int64_t used, int64_t before) const {
    const int64_t left = options_.max_response_length - used;
    if (left < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("its ", options_.max_response_length, " tokens (data.max_response_length) are used up"));
    }
    return options_.limits.MaxNewTokens(left, before, decoder_.config().context_length());
  }

  absl::Status Ask(size_t number) {
    OpenEpisode& play = plays_[number];
    std::vector<int32_t> tokens = play.transcript->tokens();
    const absl::StatusOr<int64_t> room = Room(play.transcript->response_tokens(), std::ssize(tokens));
    if (!room.ok()) {
      return Refuse(number, Annotate(room.status(),
                                     "before the model's first turn, with tools and what the environment says (raise "
                                     "data.max_prompt_length)"));
    }
    const auto turn = static_cast<uint64_t>(play.replies);
    const absl::StatusOr<engine::RequestId> request =
        engine_.Add(RequestFor(std::move(tokens), DeriveSeed(starts_[number].identity, turn), *room));
    if (!request.ok()) return Annotate(request.status(), absl::StrCat("episode ", number));
    play.requests[*request] = 0;
    by_request_[*request] = {number, std::nullopt};
    return absl::OkStatus();
  }

  engine::Request RequestFor(std::vector<int32_t> tokens, uint64_t identity, int64_t room) const {
    engine::Request request;
    request.prompt = {.tokens = std::move(tokens), .samples = 1, .identity = identity};
    request.sampling = options_.sampling;
    request.sampling.max_new_tokens = room;
    request.sampling.min_new_tokens = std::min(request.sampling.min_new_tokens, room);
    return request;
  }

  // ---- What the model says.

  absl::Status OnAnswer(engine::Answer& answer) {
    const auto found = by_request_.find(answer.request);
    if (found == by_request_.end()) return absl::OkStatus();  // of an episode that was given up
    const Place place = found->second;
    by_request_.erase(found);
    OpenEpisode& play = plays_[place.number];
    play.requests.erase(answer.request);
    if (!answer.status.ok()) return Annotate(answer.status, absl::StrCat("episode ", place.number));
    play.generated += std::ssize(answer.completion.tokens);
    if (place.request.has_value()) {
      if (is_client_) {
        TellClient(play, *place.request, std::move(answer.completion));
      } else {
        TellAgent(play, *place.request, std::move(answer.completion));
      }
      return absl::OkStatus();
    }
    return OnReply(place.number, answer.completion);
  }

  absl::Status OnReply(size_t number, const engine::Completion& completion) {
    OpenEpisode& play = plays_[number];
    ++play.replies;
    TDOCK_ASSIGN_OR_RETURN(const std::string said, ReplyText(*options_.rules.tokenizer, completion));
    const text::Turn as_it_is{.role = text::Role::kAssistant, .content = said};
    if (!completion.finished) {
      play.transcript->AddReply(completion, as_it_is);
      return Stop(number);
    }
    const absl::StatusOr<text::Turn> message = play.transcript->ReadReply(said);
    play.transcript->AddReply(completion, message.ok() ? *message : as_it_is);
    if (message.ok()) {
      environment_.Step(play.id, *message);
      return absl::OkStatus();
    }
    ++play.bad_calls;
    if (options_.on_bad_call == environment::OnBadCall::kEnd || play.replies >= options_.max_turns) return Stop(number);
    return GoOn(number, {{.role = text::Role::kTool, .content = std::string(message.status().message())}});
  }

  // ---- Agents.

  absl::Status On(size_t number, environment::GenerateRequest& asked) {
    OpenEpisode& play = plays_[number];
    if (play.generations.contains(asked.request)) {
      return Refuse(number, absl::InvalidArgumentError(absl::StrCat("it asks twice under the number ", asked.request)));
    }
    const absl::StatusOr<engine::RequestId> request = AddForAgent(starts_[number], asked);
    if (!request.ok()) {
      environment_.Answer(play.id, asked.request, request.status());
      return absl::OkStatus();
    }
    play.generations[asked.request].prompt = std::move(asked.prompt_ids);
    play.requests[*request] = asked.request;
    by_request_[*request] = {number, asked.request};
    return absl::OkStatus();
  }

  absl::StatusOr<engine::RequestId> AddForAgent(const EpisodeStart& start, const environment::GenerateRequest& asked) {
    TDOCK_ASSIGN_OR_RETURN(int64_t room, Room(0, std::ssize(asked.prompt_ids)));
    if (asked.max_tokens > 0) room = std::min(room, asked.max_tokens);
    return engine_.Add(
        RequestFor(asked.prompt_ids, DeriveSeed(start.identity, static_cast<uint64_t>(asked.request)), room));
  }

  void TellAgent(OpenEpisode& play, int64_t request, engine::Completion completion) {
    environment_.Answer(play.id, request,
                        environment::Generated{.token_ids = completion.tokens,
                                               .log_probs = completion.log_probs,
                                               .stop_reason = engine::NameOf(completion.finish_reason),
                                               .weights_version = SmallestVersion({{.weights = completion.weights}})});
    play.generations.at(request).completion = std::move(completion);
    ++play.replies;
  }

  absl::Status On(size_t number, environment::AgentOutput& output) {
    OpenEpisode& play = plays_[number];
    absl::StatusOr<AgentTokens> tokens = CheckedTokens(output, play.generations);
    if (!tokens.ok()) return Refuse(number, tokens.status());
    PlayedEpisode episode;
    episode.prompt = std::move(output.prompt_ids);
    episode.response = std::move(output.response_ids);
    episode.mask = std::move(output.response_mask);
    episode.log_probs = std::move(tokens->log_probs);
    episode.turns = std::move(tokens->turns);
    episode.rewards = std::move(output.rewards);
    episode.finished = tokens->finished;
    return Leave(number, std::move(episode));
  }

  absl::StatusOr<AgentTokens> CheckedTokens(const environment::AgentOutput& output,
                                            const std::map<int64_t, AgentGeneration>& generations) const {
    const int64_t length = std::ssize(output.response_ids);
    if (length > options_.max_response_length) {
      return absl::InvalidArgumentError(absl::StrCat("its response has ", length, " tokens; at most ",
                                                     options_.max_response_length,
                                                     " are allowed (data.max_response_length)"));
    }
    // Its last token must have been asked for.
    if (length > 0) TDOCK_RETURN_IF_ERROR(Room(length - 1, std::ssize(output.prompt_ids) + length - 1).status());
    return TokensOf(output, generations, *options_.rules.tokenizer);
  }

  // ---- Agents of a URL.

  absl::Status On(size_t number, environment::ChatRequest& asked) {
    OpenEpisode& play = plays_[number];
    if (!play.conversations) play.conversations.emplace(options_.rules, starts_[number].row);
    if (++play.unanswered > kMaxUnanswered) {  // an agent that asks again whatever it is told
      if (play.limit.ok() || play.replies == 0) {
        return Refuse(number, absl::ResourceExhaustedError(
                                  absl::StrCat("it has asked ", kMaxUnanswered, " times without getting a reply")));
      }
      environment_.End(play.id);
      return Finish(number, /*truncated=*/true);
    }
    const absl::Status added = AddForClient(number, asked);
    if (added.ok()) return added;
    if (absl::IsOutOfRange(added)) play.limit.Update(added);
    environment_.Answer(play.id, asked.request, added);
    return absl::OkStatus();
  }

  absl::Status AddForClient(size_t number, environment::ChatRequest& asked) {
    OpenEpisode& play = plays_[number];
    if (play.replies + std::ssize(play.open_replies) >= options_.max_turns) {
      return absl::OutOfRangeError(absl::StrCat("the episode has the ", options_.max_turns,
                                                " replies that it may have (environment.max_turns)"));
    }
    TDOCK_ASSIGN_OR_RETURN(Conversations::Asked in, play.conversations->Ask(asked, [&](int64_t used, int64_t before) {
      absl::StatusOr<int64_t> room = Room(used, before);
      return room.ok() ? room : absl::OutOfRangeError(room.status().message());
    }));
    OpenReply reply{.conversation = in.conversation, .gone = std::move(asked.gone)};
    reply.may_be_cut = asked.max_tokens > 0 && asked.max_tokens <= in.room;
    const absl::StatusOr<engine::RequestId> request = AskFor(number, asked, in);
    if (!request.ok()) {
      play.conversations->GiveUp(in.conversation);
      return request.status();
    }
    reply.request = *request;
    play.open_replies[asked.request] = std::move(reply);
    play.requests[*request] = asked.request;
    by_request_[*request] = {number, asked.request};
    return absl::OkStatus();
  }

  // The random numbers follow from the tokens and how often the same were asked before, not from when.
  absl::StatusOr<engine::RequestId> AskFor(size_t number, const environment::ChatRequest& asked,
                                           const Conversations::Asked& in) {
    uint64_t hash = 0;
    for (const int32_t token : in.tokens) hash = MixBits(hash ^ static_cast<uint64_t>(token));
    const uint64_t before = plays_[number].asked_before[hash]++;
    const uint64_t identity = DeriveSeed(DeriveSeed(starts_[number].identity, hash), before);
    engine::Request request =
        RequestFor(in.tokens, identity, asked.max_tokens > 0 ? std::min(in.room, asked.max_tokens) : in.room);
    request.sampling.stop.insert(request.sampling.stop.end(), asked.stop.begin(), asked.stop.end());
    if (asked.constrain) {
      TDOCK_ASSIGN_OR_RETURN(request.constrain, asked.constrain(in.tokens));
    }
    return engine_.Add(std::move(request));
  }

  void TellClient(OpenEpisode& play, int64_t request, engine::Completion completion) {
    const OpenReply reply = std::move(play.open_replies.extract(request).mapped());
    if (reply.gone && reply.gone()) return GiveUpReply(play, request, reply);
    ++play.replies;
    play.unanswered = 0;
    if (!completion.finished && !reply.may_be_cut) {
      play.limit.Update(absl::OutOfRangeError("a reply has no room for its end (data.max_response_length)"));
    }
    environment::Generated generated{.token_ids = completion.tokens,
                                     .log_probs = completion.log_probs,
                                     .stop_reason = engine::NameOf(completion.finish_reason)};
    for (const engine::WeightsSpan& span : completion.weights) {
      generated.versions.insert(generated.versions.end(), static_cast<size_t>(span.tokens), span.version);
    }
    Conversations::Reply said = play.conversations->AddReply(reply.conversation, completion);
    generated.prompt_ids = std::move(said.prompt_ids);
    generated.said = std::move(said.said);
    environment_.Answer(play.id, request, generated);
  }

  // Gives up replies that nobody waits for any more.
  void DropUnwanted() {
    for (OpenEpisode& play : plays_) {
      for (auto open = play.open_replies.begin(); open != play.open_replies.end();) {
        const auto& [number, reply] = *open;
        if (!reply.gone || !reply.gone()) {
          ++open;
          continue;
        }
        engine_.Abort(reply.request).IgnoreError();  // it may have ended in this very step
        by_request_.erase(reply.request);
        play.requests.erase(reply.request);
        GiveUpReply(play, number, reply);
        open = play.open_replies.erase(open);
      }
    }
  }

  void GiveUpReply(OpenEpisode& play, int64_t request, const OpenReply& reply) {
    play.conversations->GiveUp(reply.conversation);
    environment_.Answer(play.id, request, absl::CancelledError("nobody waits for this reply"));
  }

  // The agent is done.
  absl::Status OnClientEnd(size_t number, const environment::Observation& said) {
    OpenEpisode& play = plays_[number];
    if (play.replies == 0) {
      return Fail(number, play.limit.ok() ? absl::InvalidArgumentError("it ended without a reply of the model")
                                          : Annotate(play.limit, "it ended without a reply of the model"));
    }
    play.conversations->AddRewards(said.rewards);
    return Finish(number, said.truncated || !play.limit.ok());
  }

  // ---- How an episode ends.

  // Its environment has an error, and is done with this try.
  absl::Status Fail(size_t number, const absl::Status& why) {
    OpenEpisode& play = plays_[number];
    // Many agents fail where a limit refuses them a reply. An error that they say themselves is Unknown.
    if (is_client_ && !play.limit.ok() && play.replies > 0 && absl::IsUnknown(why))
      return Finish(number, /*truncated=*/true);
    ++play.failed_tries;
    by_id_.erase(play.id);
    Abandon(play);
    if (play.failed_tries <= options_.retries) {
      Begin(number);
      return absl::OkStatus();
    }
    PlayedEpisode episode = SoFar(play);
    episode.status = Annotate(why, absl::StrCat("the environment ", environment_.name(), ", after ", play.failed_tries,
                                                play.failed_tries == 1 ? " try" : " tries"));
    return Leave(number, std::move(episode));
  }

  // The same, of what it has said.
  absl::Status Refuse(size_t number, const absl::Status& why) {
    environment_.End(plays_[number].id);
    return Fail(number, why);
  }

  // Ends it before its end.
  absl::Status Stop(size_t number) {
    if (concludes_) {
      plays_[number].concluding = true;
      environment_.Conclude(plays_[number].id);
      return absl::OkStatus();
    }
    environment_.End(plays_[number].id);
    return Finish(number, /*truncated=*/true);
  }

  absl::Status Finish(size_t number, bool truncated) {
    const OpenEpisode& play = plays_[number];
    PlayedEpisode episode = SoFar(play);
    episode.finished = !truncated && (!play.conversations || play.conversations->row_is_finished());
    episode.truncated = truncated;
    return Leave(number, std::move(episode));
  }

  static PlayedEpisode SoFar(const OpenEpisode& play) {
    PlayedEpisode episode;
    const bool has_row = play.conversations.has_value() && play.conversations->has_row();
    if (!has_row && !play.transcript.has_value()) return episode;
    const Transcript& transcript = has_row ? play.conversations->row() : *play.transcript;
    episode.prompt = transcript.prompt();
    episode.response = transcript.response();
    episode.mask = transcript.mask();
    episode.log_probs = transcript.log_probs();
    episode.turns = has_row ? play.conversations->AllTurns() : transcript.turns();
    episode.rewards = transcript.first_rewards();
    for (const TranscriptTurn& turn : episode.turns) environment::AddRewards(turn.rewards, episode.rewards);
    episode.forks = has_row ? play.conversations->forks() : transcript.forks();
    return episode;
  }

  absl::Status Leave(size_t number, PlayedEpisode episode) {
    OpenEpisode& play = plays_[number];
    by_id_.erase(play.id);
    Abandon(play);
    play.id = 0;
    ++over_;
    for (const auto& [name, value] : episode.rewards) episode.reward += value;
    episode.weights_version = SmallestVersion(episode.turns);
    episode.replies = play.replies;
    episode.bad_calls = play.bad_calls;
    episode.failed_tries = play.failed_tries;
    episode.generated = play.generated;
    Clear(play);
    return (*on_end_)(number, std::move(episode));
  }

  static void Clear(OpenEpisode& play) {
    play.transcript.reset();
    play.generations.clear();
    play.conversations.reset();
    play.open_replies.clear();
    play.asked_before.clear();
  }

  // Its requests are not waited for any more.
  void Abandon(OpenEpisode& play) {
    for (const auto& [request, ignored] : play.requests) {
      by_request_.erase(request);
      engine_.Abort(request).IgnoreError();  // it may have ended in this very step
    }
    play.requests.clear();
  }

  // What an error has left.
  absl::Status GiveUpOpen() {
    for (OpenEpisode& play : plays_) {
      if (play.id == 0) continue;
      environment_.End(play.id);
      Abandon(play);
    }
    by_id_.clear();
    by_request_.clear();
    plays_.clear();
    engine_.GiveUp({});
    return absl::OkStatus();
  }

  const model::Decoder& decoder_;
  AnswerEngine& engine_;
  environment::Environment& environment_;
  EpisodeOptions options_;
  bool started_ = false, is_agent_ = false, is_client_ = false, concludes_ = false;
  EpisodeId last_id_ = 0;
  absl::Duration waited_;

  // Of the call of Run() that is under way.
  std::span<const EpisodeStart> starts_;
  const OnEnd* on_end_ = nullptr;
  std::vector<OpenEpisode> plays_;
  std::map<EpisodeId, size_t> by_id_;
  std::map<engine::RequestId, Place> by_request_;
  size_t over_ = 0;
};

EpisodePlayer::EpisodePlayer(const model::Decoder& decoder, AnswerEngine& engine, environment::Environment& environment,
                             EpisodeOptions options)
    : impl_(std::make_unique<Impl>(decoder, engine, environment, std::move(options))) {}
EpisodePlayer::~EpisodePlayer() = default;

absl::Status EpisodePlayer::Play(std::span<const EpisodeStart> starts, const BetweenSteps& between_steps,
                                 const OnEnd& on_end) {
  return impl_->Run(starts, between_steps, on_end);
}

absl::Duration EpisodePlayer::waited() const { return impl_->waited(); }

}  // namespace tdock::trainer
