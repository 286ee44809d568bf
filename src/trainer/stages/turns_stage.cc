#include "trainer/stages/turns_stage.h"

#include <algorithm>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "model/files/flops.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/messages.h"
#include "trainer/stages/model_time.h"
#include "trainer/stages/weight_feed.h"

namespace tdock::trainer {
namespace {

constexpr absl::Duration kBetweenTurnRenewals = absl::Minutes(1);

// The groups of a call, and the episodes that are over.
struct Groups {
  std::vector<EpisodeStart> starts;     // of each row
  std::vector<size_t> group_of_row;     // a number
  std::vector<GroupId> ids;             // by the groups' numbers
  std::vector<int64_t> open;            // of each group: episodes that are not over
  std::vector<bool> failed;             // of each group: an episode of it has failed, and it is left out
  std::vector<PlayedEpisode> episodes;  // of each row
  std::vector<size_t> ready;            // groups that are there, and not put
  std::vector<size_t> dropped;          // groups that are left out

  bool AreOver() const {
    return std::all_of(open.begin(), open.end(), [](int64_t left) { return left == 0; });
  }
  // The smallest version of the weights in a group.
  int64_t VersionOf(size_t group) const {
    int64_t smallest = std::numeric_limits<int64_t>::max();
    for (size_t row = 0; row < episodes.size(); ++row) {
      if (group_of_row[row] == group) smallest = std::min(smallest, episodes[row].weights_version);
    }
    return smallest;
  }
  std::vector<size_t> RowsOf(const std::vector<size_t>& groups) const {
    std::vector<bool> wanted(ids.size(), false);
    for (const size_t group : groups) wanted[group] = true;
    std::vector<size_t> rows;
    for (size_t row = 0; row < group_of_row.size(); ++row) {
      if (wanted[group_of_row[row]]) rows.push_back(row);
    }
    return rows;
  }
};

class TurnsStage final : public Stage {
 public:
  TurnsStage(const Policy& policy, std::unique_ptr<AnswerEngine> engine,
             std::unique_ptr<environment::Environment> environment, TurnsOptions options)
      : policy_(policy),
        environment_(std::move(environment)),
        engine_(std::move(engine)),
        options_(std::move(options)),
        player_(policy.decoder, *engine_, *environment_, options_.episodes) {
    consumer_.reads.insert(consumer_.reads.end(), options_.kept.begin(), options_.kept.end());
    const std::vector<std::string>& log_probs = options_.puts.log_probs;
    consumer_.writes.insert(consumer_.writes.end(), log_probs.begin(), log_probs.end());
  }

  const ConsumerOptions& consumer() const override { return consumer_; }
  bool uses_policy() const override { return true; }
  Together together() const override { return TogetherIn(policy_.decoder); }

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    TDOCK_ASSIGN_OR_RETURN(Groups groups, Begin(rows));
    if (options_.puts.weights == nullptr) {
      TDOCK_RETURN_IF_ERROR(
          engine_->Serve(Unowned(policy_.decoder), policy_.version, /*in_flight=*/false, context.check_stop));
    }
    TDOCK_RETURN_IF_ERROR(ServeNewest(context));
    absl::Time put = absl::Now(), renewed = put;
    const auto between_steps = [&]() -> absl::Status {
      TDOCK_RETURN_IF_ERROR(context.check_stop());
      if (options_.puts.in_flight) TDOCK_RETURN_IF_ERROR(ServeNewest(context));
      const absl::Time now = absl::Now();
      if (context.renew != nullptr && now >= renewed + kBetweenTurnRenewals) {
        TDOCK_RETURN_IF_ERROR(context.renew());
        renewed = now;
      }
      if (context.publish == nullptr || groups.ready.empty() || groups.AreOver() ||
          now < put + options_.puts.interval) {
        return absl::OkStatus();
      }
      put = now;
      return PutReady(groups, /*all_versions=*/true, context);
    };
    const auto on_end = [&](size_t row, PlayedEpisode episode) {
      context.progress();
      return Take(row, std::move(episode), groups);
    };
    const absl::Duration before = engine_->computing();
    const absl::Status played = player_.Play(groups.starts, between_steps, on_end);
    ModelTime::Add(consumer_.name, engine_->computing() - before, context.metrics);
    engine_->Report(context.metrics);
    context.metrics.Sum("timing_s/environment", absl::ToDoubleSeconds(player_.waited()));
    TDOCK_RETURN_IF_ERROR(played);
    return Output(groups, context);
  }

 private:
  absl::Status ServeNewest(const StageContext& context) {
    if (options_.puts.weights == nullptr) return absl::OkStatus();
    WeightFeed::Weights newest = options_.puts.weights->Newest();
    if (newest.version == served_ && serves_.get() == newest.decoder.get()) return absl::OkStatus();
    TDOCK_RETURN_IF_ERROR(engine_->Serve(newest.decoder, newest.version, options_.puts.in_flight, context.check_stop));
    serves_ = std::move(newest.decoder);
    served_ = newest.version;
    return absl::OkStatus();
  }

  absl::StatusOr<Groups> Begin(const Rows& rows) const {
    Groups groups;
    uint64_t number = 0;  // in the group
    for (size_t i = 0; i < rows.size(); ++i) {
      const bool same_group = i > 0 && rows.groups()[i] == rows.groups()[i - 1];
      number = same_group ? number + 1 : 0;
      if (!same_group) {
        groups.ids.push_back(rows.groups()[i]);
        groups.open.push_back(0);
        groups.failed.push_back(false);
      }
      ++groups.open.back();
      groups.group_of_row.push_back(groups.ids.size() - 1);
      const uint64_t group = DeriveSeed(rows.groups()[i], rows.epoch(i));
      EpisodeStart& start = groups.starts.emplace_back();
      absl::StatusOr<environment::EpisodeRow> row = RowOf(rows, i);
      if (!row.ok()) return Annotate(row.status(), absl::StrCat("row ", rows.ids()[i]));
      start = {.row = *std::move(row),
               .seed = DeriveSeed(options_.environment_seed, group),
               .identity = DeriveSeed(group, number)};
    }
    groups.episodes.resize(rows.size());
    return groups;
  }

  absl::StatusOr<environment::EpisodeRow> RowOf(const Rows& rows, size_t i) const {
    const auto text = [&](const std::string& name) -> absl::StatusOr<std::string> {
      TDOCK_ASSIGN_OR_RETURN(const absl::string_view cell, rows.Text(i, name));
      return std::string(cell);
    };
    environment::EpisodeRow row;
    TDOCK_ASSIGN_OR_RETURN(const std::span<const int32_t> ids, rows.Get<int32_t>(i, kInitialPrompt));
    row.prompt_ids.assign(ids.begin(), ids.end());
    TDOCK_ASSIGN_OR_RETURN(row.prompt, text(kPromptText));
    TDOCK_ASSIGN_OR_RETURN(row.truth, text(kTruth));
    TDOCK_ASSIGN_OR_RETURN(row.source, text(kSource));
    TDOCK_ASSIGN_OR_RETURN(const absl::string_view messages, rows.Text(i, kMessages));
    if (!messages.empty()) {
      TDOCK_ASSIGN_OR_RETURN(row.messages, TurnsOfMessages(messages));
    }
    for (const std::string& name : options_.kept) {
      TDOCK_ASSIGN_OR_RETURN(row.columns[name], text(name));
    }
    return row;
  }

  absl::Status Take(size_t row, PlayedEpisode episode, Groups& groups) const {
    const size_t group = groups.group_of_row[row];
    if (!episode.status.ok()) {
      if (options_.on_error == environment::OnError::kStop) {
        return Annotate(episode.status,
                        absl::StrCat("prompt group ", groups.ids[group], " (environment.on_error=stop)"));
      }
      if (options_.on_error == environment::OnError::kDrop) groups.failed[group] = true;
      SetZero(groups.starts[row], episode);
    }
    groups.episodes[row] = std::move(episode);
    if (--groups.open[group] == 0) (groups.failed[group] ? groups.dropped : groups.ready).push_back(group);
    return absl::OkStatus();
  }

  // What a failed episode is worth, and the row of one that has no reply.
  void SetZero(const EpisodeStart& start, PlayedEpisode& episode) const {
    episode.reward = 0;
    episode.rewards.clear();
    if (!episode.response.empty()) return;
    if (episode.prompt.empty()) episode.prompt = start.row.prompt_ids;
    episode.response = {options_.end_token};
    episode.mask = {0};
    episode.log_probs = {0};
    episode.weights_version = options_.puts.weights != nullptr ? served_ : policy_.version;
  }

  // Puts the groups that are there, those with the same version of the weights together; without `all_versions` all but
  // one version, which stay in `groups`.
  absl::Status PutReady(Groups& groups, bool all_versions, StageContext& context) const {
    std::map<int64_t, std::vector<size_t>> by_version;
    for (const size_t group : groups.ready) by_version[groups.VersionOf(group)].push_back(group);
    while (by_version.size() > (all_versions ? 0 : 1)) {
      const auto first = by_version.begin();
      const std::vector<size_t> rows = groups.RowsOf(first->second);
      TDOCK_ASSIGN_OR_RETURN(Batch columns, ColumnsOf(groups, rows, context));
      TDOCK_RETURN_IF_ERROR(context.publish(rows, std::move(columns), first->first));
      by_version.erase(first);
    }
    groups.ready = all_versions || by_version.empty() ? std::vector<size_t>() : by_version.begin()->second;
    return absl::OkStatus();
  }

  absl::StatusOr<StageOutput> Output(Groups& groups, StageContext& context) const {
    StageOutput output{.columns = {}, .weights_version = policy_.version};
    for (const size_t group : groups.dropped) output.dropped.push_back(groups.ids[group]);
    if (options_.on_error == environment::OnError::kDrop) {
      context.metrics.Sum("rollout/dropped_groups", static_cast<double>(groups.dropped.size()));
    }
    if (context.whole_step && !groups.ids.empty() && groups.dropped.size() == groups.ids.size()) {
      return absl::FailedPreconditionError(
          absl::StrCat("each of the ", groups.ids.size(),
                       " prompts has an episode that failed (environment.on_error=drop), so that ",
                       "none is left; the last one: ", groups.episodes.back().status.message()));
    }
    if (context.publish != nullptr) {
      TDOCK_RETURN_IF_ERROR(PutReady(groups, /*all_versions=*/options_.puts.weights != nullptr, context));
    }
    if (!groups.ready.empty()) output.weights_version = groups.VersionOf(groups.ready.front());
    // What is dropped has a row each, too, which is not put.
    groups.ready.insert(groups.ready.end(), groups.dropped.begin(), groups.dropped.end());
    if (!groups.ready.empty()) {
      TDOCK_ASSIGN_OR_RETURN(output.columns, ColumnsOf(groups, groups.RowsOf(groups.ready), context));
    }
    return output;
  }

  // Also reports them.
  absl::StatusOr<Batch> ColumnsOf(const Groups& groups, const std::vector<size_t>& rows, StageContext& context) const {
    std::vector<std::vector<int32_t>> prompts, responses;
    std::vector<std::vector<uint8_t>> masks;
    std::vector<std::vector<float>> log_probs;
    std::vector<std::string> texts, traces;
    std::vector<uint8_t> finished;
    std::vector<float> rewards;
    for (const size_t row : rows) {
      const PlayedEpisode& episode = groups.episodes[row];
      prompts.push_back(episode.prompt);
      responses.push_back(episode.response);
      masks.push_back(episode.mask);
      log_probs.push_back(episode.log_probs);
      TDOCK_ASSIGN_OR_RETURN(texts.emplace_back(),
                             options_.episodes.rules.tokenizer->Decode(episode.response, text::SpecialTokens::kKeep));
      traces.push_back(TraceOf(episode.turns));
      finished.push_back(episode.finished ? 1 : 0);
      rewards.push_back(static_cast<float>(episode.reward));
    }
    ReportRows(groups, rows, context.metrics);
    Batch columns;
    TDOCK_RETURN_IF_ERROR(columns.Add(kPrompt, Column::FromRows(prompts)));
    TDOCK_RETURN_IF_ERROR(columns.Add(kResponses, Column::FromRows(responses)));
    TDOCK_RETURN_IF_ERROR(columns.Add(kResponseMask, Column::FromRows(masks)));
    TDOCK_RETURN_IF_ERROR(columns.Add(kResponseText, Column::FromStrings(texts)));
    TDOCK_RETURN_IF_ERROR(columns.Add(kFinished, Column::FromValues(finished)));
    TDOCK_RETURN_IF_ERROR(columns.Add(kRewards, Column::FromValues(rewards)));
    TDOCK_RETURN_IF_ERROR(columns.Add(kTrace, Column::FromStrings(traces)));
    for (const std::string& name : options_.puts.log_probs) {
      TDOCK_RETURN_IF_ERROR(columns.Add(name, Column::FromRows(log_probs)));
    }
    return columns;
  }

  // Tokens that are read again for a later turn are no work that an ideal engine would do, and do not count.
  void ReportRows(const Groups& groups, const std::vector<size_t>& rows, StepMetrics& metrics) const {
    const model::ModelConfig& config = policy_.decoder.config();
    std::vector<float> lengths, scores;
    double flops = 0;
    int64_t generated = 0;
    for (const size_t row : rows) {
      const PlayedEpisode& episode = groups.episodes[row];
      NoteEpisode(episode, metrics);
      lengths.push_back(static_cast<float>(episode.response.size()));
      if (!groups.failed[groups.group_of_row[row]]) scores.push_back(static_cast<float>(episode.reward));
      metrics.Mean("response_length/clip_ratio", episode.truncated ? 1.0 : 0.0);
      metrics.Mean("response_length/finished", episode.finished ? 1.0 : 0.0);
      metrics.Mean("response_length/empty", episode.is_empty() ? 1.0 : 0.0);
      flops += model::ForwardFlops(config, std::ssize(episode.prompt) + std::ssize(episode.response));
      generated += episode.generated;
    }
    metrics.Distribution("response_length", lengths);
    metrics.Distribution("critic/score", scores);
    metrics.Sum("perf/flops/rollout", flops);
    metrics.Sum("perf/num_generated_tokens", static_cast<double>(generated));
  }

  ConsumerOptions consumer_ = {
      .name = "rollout",
      .reads = {kInitialPrompt, kPromptText, kTruth, kSource, kMessages},
      .writes = {kPrompt, kResponses, kResponseMask, kResponseText, kFinished, kRewards, kTrace},
      .unit = Unit::kGroup};
  const Policy& policy_;
  const std::unique_ptr<environment::Environment> environment_;
  const std::unique_ptr<AnswerEngine> engine_;
  const TurnsOptions options_;
  EpisodePlayer player_;
  std::shared_ptr<const model::Decoder> serves_;  // of WeightFeed
  int64_t served_ = 0;                            // their version
};

}  // namespace

void NoteEpisode(const PlayedEpisode& episode, StepMetrics& metrics) {
  for (const auto& [name, value] : episode.rewards) metrics.Spread(absl::StrCat("reward/", name), value);
  metrics.Mean("episode/turns", static_cast<double>(episode.replies));
  metrics.Mean("episode/truncated", episode.truncated ? 1 : 0);
  metrics.Mean("episode/failed", episode.status.ok() ? 0 : 1);
  metrics.Mean("episode/forks", static_cast<double>(episode.forks));
  metrics.Mean("episode/observation_tokens",
               static_cast<double>(std::count(episode.mask.begin(), episode.mask.end(), uint8_t{0})));
  metrics.Sum("episode/failed_tries", static_cast<double>(episode.failed_tries));
  metrics.Sum("episode/bad_calls", static_cast<double>(episode.bad_calls));
}

std::unique_ptr<Stage> MakeTurnsStage(const Policy& policy, std::unique_ptr<AnswerEngine> engine,
                                      std::unique_ptr<environment::Environment> environment,
                                      const TurnsOptions& options) {
  return std::make_unique<TurnsStage>(policy, std::move(engine), std::move(environment), options);
}

}  // namespace tdock::trainer
