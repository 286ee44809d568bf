#include "trainer/loop/run_environment.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trainer/reward/reward_config.h"

namespace tdock::trainer {

void BindRunEnvironment(config::Spec& spec, RunConfig& c, const RolloutSection& rollout) {
  environment::BindEnvironment(spec, c.environment);
  const char* const which = "environment.name, .program, .function or .url";
  spec.Check({"reward.program", "reward.function", "reward.url"}, [&c, which]() -> std::vector<std::string> {
    if (!c.environment.used() || (!reward::HasRule(c.reward) && !c.external_reward.used())) return {};
    return {absl::StrCat("the environment (", which,
                         ") gives the rewards of its episodes: remove the rules and programs of reward.*, or let the "
                         "environment score what they do")};
  });
  spec.Check({"rollout.min_response_tokens"}, [&c, &rollout, which]() -> std::vector<std::string> {
    if (!c.environment.used() || rollout.min_response_tokens == 0) return {};
    return {absl::StrCat("the turns of an episode may be short (", which, "): set it to 0")};
  });
  spec.Check({"environment.max_turns", "data.max_response_length"}, [&c, &rollout]() -> std::vector<std::string> {
    // A turn has a token, and something is said between two of them.
    const int64_t least = 2 * c.environment.max_turns - 1;
    if (!c.environment.used() || least <= rollout.max_response_length) return {};
    return {absl::StrCat(c.environment.max_turns, " turns have at least ", least,
                         " tokens with what is said between them, and data.max_response_length allows ",
                         rollout.max_response_length, ": raise it, or lower environment.max_turns to ",
                         (rollout.max_response_length + 1) / 2)};
  });
}

absl::StatusOr<std::unique_ptr<environment::Environment>> MakeRunEnvironment(
    const RunConfig& config, const RolloutSection& rollout, const PlayedModel& model,
    const std::function<void(const std::string&)>& log) {
  const environment::EnvironmentConfig& c = config.environment;
  const bool is_chat = c.format == environment::TurnFormat::kChat;
  const environment::EndpointOptions endpoints{.model = "policy",
                                               .tokenizer = &model.tokenizer,
                                               .chat_template = is_chat ? model.chat_template : nullptr,
                                               .reply_form = c.tool_format,
                                               .end_tokens = model.end_tokens,
                                               .temperature = rollout.temperature,
                                               .log = log};
  return environment::MakeEnvironment(
      c, {.columns = config.data.columns.keep,
          .model = config.model.path,
          .temperature = rollout.temperature,
          .top_p = 1,
          .max_tokens = rollout.max_response_length,
          .endpoints = [endpoints] { return environment::OpenEpisodeEndpoints(endpoints); },
          .log = log});
}

EpisodeOptions EpisodesOf(const RunConfig& config, const RolloutSection& rollout, const LengthLimits& limits,
                          const text::Tokenizer& tokenizer, const text::ChatTemplate* chat_template,
                          const engine::SamplingParams& sampling) {
  const environment::EnvironmentConfig& c = config.environment;
  EpisodeOptions options{.rules = {.format = c.format,
                                   .tool_format = c.tool_format,
                                   .tokenizer = &tokenizer,
                                   .chat_template = chat_template,
                                   .max_observation_tokens = c.max_observation_tokens},
                         .on_bad_call = c.on_bad_call,
                         .max_turns = c.max_turns,
                         .retries = c.retries,
                         .max_response_length = rollout.max_response_length,
                         .limits = limits,
                         .sampling = sampling};
  options.sampling.stop = c.stop;
  return options;
}

}  // namespace tdock::trainer
