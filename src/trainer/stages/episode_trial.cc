#include "trainer/stages/episode_trial.h"

#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "trainer/stages/conversations.h"

namespace tdock::trainer {
namespace {

constexpr environment::EpisodeId kTrial = 1;

// Its first event.
absl::StatusOr<environment::Event> FirstEvent(environment::Environment& environment, absl::Duration patience) {
  TDOCK_ASSIGN_OR_RETURN(std::vector<environment::Event> events, environment.Wait(absl::Now() + patience));
  return std::move(events.front());  // there is no other episode
}

absl::Status NoteFirst(const environment::Observation& said, const EpisodeStart& start, const EpisodeOptions& options,
                       int64_t positions, EpisodeTrial& trial) {
  Transcript transcript(options.rules);
  TDOCK_RETURN_IF_ERROR(transcript.Begin(start.row));
  TDOCK_RETURN_IF_ERROR(transcript.AddFirst(said));
  trial.prompt_tokens = std::ssize(transcript.prompt());
  for (const text::Turn& turn : said.messages) absl::StrAppend(&trial.said, turn.content);
  return Annotate(options.limits.MaxNewTokens(options.max_response_length, trial.prompt_tokens, positions).status(),
                  "with tools and what the environment says first (raise data.max_prompt_length)");
}

}  // namespace

absl::StatusOr<EpisodeTrial> TryEpisode(environment::Environment& environment, const EpisodeOptions& options,
                                        const EpisodeStart& start, int64_t positions, absl::Duration patience) {
  EpisodeTrial trial{.name = environment.name()};
  TDOCK_ASSIGN_OR_RETURN(environment::Environment::Description description, environment.Start());
  trial.is_agent = description.is_agent || description.is_client;
  trial.has_tools = !description.tools.empty();
  EpisodeOptions with_tools = options;
  with_tools.rules.tools = std::move(description.tools);
  TDOCK_RETURN_IF_ERROR(CheckRules(with_tools.rules, description.is_agent));
  environment.Reset(kTrial, start.seed, start.row);
  TDOCK_ASSIGN_OR_RETURN(const environment::Event event, FirstEvent(environment, patience));
  if (!event.what.ok()) return event.what.status();
  environment.End(kTrial);
  if (const auto* said = std::get_if<environment::Observation>(&*event.what)) {
    if (description.is_client) return absl::InvalidArgumentError("it ended without asking the model for a reply");
    TDOCK_RETURN_IF_ERROR(NoteFirst(*said, start, with_tools, positions, trial));
  } else if (const auto* asked = std::get_if<environment::GenerateRequest>(&*event.what)) {
    trial.prompt_tokens = std::ssize(asked->prompt_ids);
  } else if (const auto* request = std::get_if<environment::ChatRequest>(&*event.what)) {
    Conversations conversations(with_tools.rules, start.row);
    TDOCK_ASSIGN_OR_RETURN(const auto first, conversations.Ask(*request, [&](int64_t, int64_t before) {
      return options.limits.MaxNewTokens(options.max_response_length, before, positions);
    }));
    trial.prompt_tokens = std::ssize(first.tokens);
  }
  return trial;
}

}  // namespace tdock::trainer
