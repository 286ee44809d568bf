#include "trainer/preflight/preflight.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "kernels/limits.h"
#include "trainer/loop/feed.h"
#include "trainer/loop/run_environment.h"
#include "trainer/loop/run_start.h"
#include "trainer/preflight/grouped.h"
#include "trainer/stages/guard.h"

namespace tdock::trainer {
namespace {

// From where on a share is worth a warning.
constexpr double kMuch = 0.1;

void WarnOfLosses(const DataFigures& data, std::vector<std::string>& warnings) {
  for (const DataLoss& loss : data.losses) {
    const double share = static_cast<double>(loss.samples) / static_cast<double>(data.read);
    if (share < kMuch) continue;
    warnings.push_back(absl::StrCat(Percent(share), " of the samples are ", loss.what, " (", loss.keys, ")"));
  }
}

void WarnOfAnswers(const ProbeFigures& probe, const Recipe& recipe, const PreflightOptions& options,
                   std::vector<std::string>& warnings) {
  if (probe.prompts < options.probed_prompts) {
    warnings.push_back(absl::StrCat(options.probe_option, " asks for ", options.probed_prompts,
                                    " prompts; of those that were read, only ", probe.prompts, " can be used"));
  }
  if (2 * probe.clipped > probe.answers && !recipe.shape().rollout->ignore_eos) {
    warnings.push_back(
        "most answers end at the length limit; raise data.max_response_length, or start from a model that "
        "ends its answers");
  }
  if (2 * probe.empty > probe.answers) {
    warnings.push_back(
        "most answers are empty; a chat model needs prompts in its template (data.style=chat), and other models a text "
        "to go on with");
  }
  // A critic judges each answer alone, so equal rewards teach it, too.
  const bool has_critic = absl::c_any_of(recipe.models(), [](const ModelRole& role) { return role.trained; });
  if (probe.scored && probe.equal_groups == probe.prompts && !has_critic) {
    warnings.push_back(
        "all answers to a prompt have the same reward, for every prompt: nothing would be learned; raise "
        "rollout.n, change the rewards, or start from a better model");
  }
}

// Whether the share of prompts that are worth training on is enough for the rounds of a step.
void WarnOfRounds(const ProbeFigures& probe, const RunConfig& config, std::vector<std::string>& warnings) {
  const FilterGroupsSection& filter = config.filter_groups;
  if (!filter.enable || filter.max_num_gen_batches == 0 || !probe.scored || probe.prompts == 0) return;
  const double share = 1 - static_cast<double>(probe.equal_groups) / static_cast<double>(probe.prompts);
  const double found = share * static_cast<double>(filter.max_num_gen_batches * DrawnAtOnce(config));
  if (found >= static_cast<double>(config.data.train_batch_size)) return;
  warnings.push_back(
      absl::StrCat(Percent(share), " of the prompts have answers with different rewards: ", filter.max_num_gen_batches,
                   " rounds of ", DrawnAtOnce(config),
                   " (algorithm.filter_groups.max_num_gen_batches, data.gen_batch_size) will not give ",
                   config.data.train_batch_size,
                   " prompts to train on (data.train_batch_size); raise one of the first two, or rollout.n"));
}

// Starts the programs that score, and asks them about one sample; nothing where there are none.
absl::StatusOr<std::optional<RewardTrial>> TryReward(const Recipe& recipe, const RunConfig& config,
                                                     const RunInputs& inputs, const DataFigures& data, Clock& clock) {
  if (!config.external_reward.used() || !ScoresHere(recipe.shape(), config) || data.some.empty()) return std::nullopt;
  reward::Answer answer = QuestionOf(data.some.front(), config.data.columns.keep);
  answer.response = answer.truth;
  answer.finished = true;
  const absl::Time begun = clock.Now();
  absl::StatusOr<reward::Scores> given = reward::CheckedScore(*inputs.reward, {&answer, 1});
  if (given.ok() && std::isnan(given->totals[0])) {
    given = absl::FailedPreconditionError(absl::StrCat("it has no score: ", absl::StrJoin(given->messages, "")));
  }
  if (!given.ok()) return Annotate(given.status(), "trying the reward with the right answer of a sample");
  RewardTrial trial{.seconds = absl::ToDoubleSeconds(clock.Now() - begun), .scores = {}};
  if (!given->messages.empty()) trial.message = given->messages[0];
  for (const reward::Scores::Part& part : given->parts) {
    const float score = part.scores[0];
    trial.scores.emplace_back(part.rule, std::isnan(score) ? std::nullopt : std::optional<float>(score));
  }
  return trial;
}

// Starts the environment and an episode of the first prompt; nothing where there is none.
absl::StatusOr<std::optional<EnvironmentTrial>> TryEnvironment(const Recipe& recipe, const RunConfig& config,
                                                               const RunInputs& inputs, const DataFigures& data,
                                                               Clock& clock) {
  if (!config.environment.used() || data.some.empty()) return std::nullopt;
  const RolloutSection& rollout = *recipe.shape().rollout;
  const text::ChatTemplate* chat_template = inputs.chat_template ? &*inputs.chat_template : nullptr;
  TDOCK_ASSIGN_OR_RETURN(
      const auto environment,
      MakeRunEnvironment(config, rollout, {*inputs.tokenizer, chat_template, inputs.end_tokens}, inputs.log));
  const EpisodeOptions options = EpisodesOf(
      config, rollout, {.max_model_len = recipe.longest_tokens(), .leaves_last_position = rollout.leave_last_position},
      *inputs.tokenizer, chat_template, {});
  EpisodeStart start;
  TDOCK_ASSIGN_OR_RETURN(start.row, EpisodeRowOf(data.some.front(), config.data.columns.keep));
  const absl::Time begun = clock.Now();
  absl::StatusOr<EpisodeTrial> episode =
      TryEpisode(*environment, options, start, inputs.decoder->config().context_length(),
                 absl::Seconds(config.environment.start_timeout + config.environment.timeout));
  if (!episode.ok()) {
    return Annotate(episode.status(),
                    absl::StrCat("trying the environment ", environment->name(), " with the prompt of a sample"));
  }
  return EnvironmentTrial{.seconds = absl::ToDoubleSeconds(clock.Now() - begun), .episode = *std::move(episode)};
}

// Asks each server what it is and for a token; nothing where there are none.
absl::StatusOr<std::optional<ServersTrial>> TryServers(const Recipe& recipe, const RunConfig& config,
                                                       const RunInputs& inputs, Env& env, Clock& clock,
                                                       const std::atomic<bool>* stop,
                                                       std::vector<std::string>& warnings) {
  if (!config.servers.used()) return std::nullopt;
  const absl::Time begun = clock.Now();
  ServerEngineOptions options =
      ServerOptions(config.servers, config.trainer.run_dir, config.model.path, *inputs.decoder, inputs.end_tokens);
  // A run that goes on keeps its instructions, which may be others than the best; its engine compares them.
  const bool may_be_others = config.model.kernels == kernels::kBestInstructions && GoesOn(env, config.trainer);
  if (may_be_others) options.wanted.kernels.clear();
  const int64_t longest = std::min(recipe.longest_tokens(), inputs.decoder->config().context_length());
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> absent, CheckServers(options, longest, [stop] {
                           return stop != nullptr && *stop ? absl::CancelledError("interrupted") : absl::OkStatus();
                         }));
  for (const std::string& trouble : absent) {
    warnings.push_back(absl::StrCat("a server cannot be used now, and others answer until it can: ", trouble));
  }
  return ServersTrial{.seconds = absl::ToDoubleSeconds(clock.Now() - begun),
                      .where = config.servers.file.empty() ? "rollout.servers" : config.servers.file};
}

void WarnOfIdleRanks(const std::vector<TrainingShare>& shares, std::vector<std::string>& warnings) {
  for (const TrainingShare& share : shares) {
    if (share.micro_batches >= share.ranks) continue;
    warnings.push_back(absl::StrCat(share.ranks, " ranks train the ", share.role, " together, but a mini-batch has ",
                                    share.micro_batches, share.micro_batches == 1 ? " micro-batch" : " micro-batches",
                                    ": ", share.ranks - share.micro_batches,
                                    " of them have nothing to do; make them smaller (", share.micro_key, ")"));
  }
}

}  // namespace

absl::StatusOr<PreflightReport> Preflight(Recipe& recipe, const RunInputs& inputs, NumberReport numbers, Env& env,
                                          Clock& clock, const PreflightOptions& options) {
  return Guarded([&]() -> absl::StatusOr<PreflightReport> {
    const RunConfig& config = recipe.config();
    if (options.probed_prompts > 0) TDOCK_RETURN_IF_ERROR(CheckProbe(recipe, config.recipe));
    PreflightReport report{.numbers = std::move(numbers),
                           .data = {},
                           .memory = {},
                           .warnings = inputs.data.warnings,
                           .probe = {},
                           .reward = {},
                           .environment = {},
                           .servers = {}};
    ReadingLimits reading = options.reading;
    reading.kept = std::max(reading.kept, options.probed_prompts);
    TDOCK_ASSIGN_OR_RETURN(report.data, ReadFigures(recipe, config, inputs, clock, reading));
    WarnOfLosses(report.data, report.warnings);
    TDOCK_ASSIGN_OR_RETURN(report.memory, EstimateMemory(recipe, inputs, report.data.some, env, options.ranks));
    if (!report.memory.warning.empty()) report.warnings.push_back(report.memory.warning);
    WarnOfIdleRanks(report.memory.shares, report.warnings);
    TDOCK_ASSIGN_OR_RETURN(report.reward, TryReward(recipe, config, inputs, report.data, clock));
    TDOCK_ASSIGN_OR_RETURN(report.environment, TryEnvironment(recipe, config, inputs, report.data, clock));
    TDOCK_ASSIGN_OR_RETURN(report.servers,
                           TryServers(recipe, config, inputs, env, clock, options.reading.stop, report.warnings));
    if (options.probed_prompts > 0) {
      absl::StatusOr<ProbeFigures> probe =
          Probe(recipe, config, inputs, report.data.some, options.probed_prompts, clock, options.reading);
      if (!probe.ok()) return Annotate(probe.status(), absl::StrCat("trying prompts (", options.probe_option, ")"));
      report.probe = *std::move(probe);
      WarnOfAnswers(*report.probe, recipe, options, report.warnings);
      WarnOfRounds(*report.probe, config, report.warnings);
    }
    return report;
  });
}

}  // namespace tdock::trainer
