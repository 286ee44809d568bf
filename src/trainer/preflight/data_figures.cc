#include "trainer/preflight/data_figures.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "data/visit.h"
#include "trainer/loop/feed.h"
#include "trainer/loop/run_length.h"

namespace tdock::trainer {
namespace {

using EncodedOrNot = absl::StatusOr<data::OrSkip<data::EncodedSample>>;

int64_t TrainedTokens(const data::EncodedSample& sample) {
  int64_t trained = 0;
  for (size_t i = std::min(PromptLength(sample), sample.loss_mask.size()); i < sample.loss_mask.size(); ++i) {
    trained += sample.loss_mask[i] != 0 ? 1 : 0;
  }
  return trained;
}

// Whether the last reply has more than its end. One that was cut off had.
bool HasAnswer(const data::EncodedSample& sample, const std::vector<int32_t>& end_tokens) {
  if (sample.truncated) return true;
  for (auto i = static_cast<size_t>(sample.prompt_tokens); i < sample.loss_mask.size(); ++i) {
    if (sample.loss_mask[i] != 0 && !absl::c_linear_search(end_tokens, sample.ids[i])) return true;
  }
  return false;
}

// The rules that give the rewards if all of them compare with a truth.
std::vector<std::string> RulesOfTruth(const Recipe& recipe, const RunConfig& config) {
  const bool scores_itself =
      recipe.shape().rollout != nullptr && ScoresHere({.rollout = recipe.shape().rollout}, config);
  const bool has_model = absl::c_any_of(recipe.models(), [](const ModelRole& role) { return !role.trained; });
  if (!scores_itself || has_model || config.external_reward.used() || config.environment.used()) return {};
  return reward::RulesOfTruth(config.reward);
}

// Gathers the figures from one sample after another.
class Reader {
 public:
  Reader(const Recipe& recipe, const RunConfig& config, const RunInputs& inputs, int64_t kept)
      : config_(config),
        end_tokens_(inputs.end_tokens),
        max_kept_(std::clamp<int64_t>(std::max(config.data.train_batch_size, kept), 3, 4096)),
        rules_of_truth_(RulesOfTruth(recipe, config)) {
    if (inputs.data.reply_end) end_tokens_.push_back(*inputs.data.reply_end);
    const bool prompts = recipe.phase() == data::Phase::kPrompt;
    figures_.trains_on_data = !prompts;
    figures_.most_tokens = prompts ? config.data.max_prompt_length : config.data.max_length;
    figures_.most_key = prompts ? "data.max_prompt_length" : "data.max_length";
  }

  void Add(const EncodedOrNot& sample) {
    ++figures_.read;
    if (!sample.ok()) {
      if (first_bad_.ok()) first_bad_ = sample.status();
      ++bad_;
    } else if (const auto* skip = std::get_if<data::Skip>(&*sample)) {
      ++skipped_[static_cast<size_t>(*skip)];
    } else {
      AddUsable(std::get<data::EncodedSample>(*sample));
    }
  }

  const DataFigures& figures() const { return figures_; }

  // Whether a run has something to learn from what was read.
  bool has_found() const {
    const bool has_truth = rules_of_truth_.empty() || no_truth_ < figures_.usable;
    return figures_.usable > 0 && has_truth && (!figures_.trains_on_data || figures_.trained_tokens > 0);
  }

  absl::StatusOr<DataFigures> Finish(data::Phase phase, const data::LoaderCounts& counts) {
    if (!first_bad_.ok() && (!config_.data.skip_bad_records || absl::IsOutOfRange(first_bad_))) return first_bad_;
    if (figures_.usable == 0) return data::NoSampleError(data::RulesOf(config_.data), phase, counts);
    if (figures_.trains_on_data && figures_.trained_tokens == 0) {
      return absl::FailedPreconditionError(absl::StrCat("the loss counts none of the tokens of ", figures_.usable,
                                                        " samples; see data.train_on and data.max_length"));
    }
    if (!rules_of_truth_.empty() && no_truth_ == figures_.usable) return NoTruth();
    std::sort(lengths_.begin(), lengths_.end());
    figures_.median_length = lengths_[lengths_.size() / 2];
    figures_.long_length = lengths_[lengths_.size() * 95 / 100];
    figures_.longest = lengths_.back();
    AddLosses();
    Rng order(2);
    order.Shuffle(std::span(figures_.some));
    return std::move(figures_);
  }

 private:
  absl::Status NoTruth() const {
    const std::vector<std::string>& files = config_.data.train_files;
    const std::string where = !files.empty()              ? absl::StrJoin(files, ", ")
                              : config_.data.path.empty() ? config_.data.name
                                                          : config_.data.path;
    return absl::FailedPreconditionError(absl::StrCat(
        "none of the ", figures_.usable, " samples of ", where,
        " has a truth, and the reward compares answers with one (", absl::StrJoin(rules_of_truth_, ", "),
        reward::HasRule(config_.reward) ? "" : ", since no rule has a weight",
        "), so that each would get 0: name the column of the truth in data.columns.truth, or choose what needs none: ",
        "reward.format, reward.regex without {truth}, reward.function, or reward_model.model.path"));
  }

  void AddUsable(const data::EncodedSample& sample) {
    const auto length = static_cast<int64_t>(sample.ids.size());
    ++figures_.usable;
    figures_.tokens += length;
    bool has_answer = true;
    if (figures_.trains_on_data) {
      figures_.trained_tokens += TrainedTokens(sample);
      has_answer = HasAnswer(sample, end_tokens_);
      no_answer_ += has_answer ? 0 : 1;
    }
    // What has an answer and no prompt may be a text, which asks for none.
    const bool is_text = figures_.trains_on_data && has_answer && sample.truth.empty();
    no_prompt_ += sample.prompt_text.empty() && !is_text ? 1 : 0;
    truncated_ += sample.truncated ? 1 : 0;
    no_truth_ += absl::StripAsciiWhitespace(sample.truth).empty() ? 1 : 0;
    lengths_.push_back(length);
    // A reservoir, whose first place is for the longest.
    if (figures_.some.empty()) {
      figures_.some.push_back(sample);
    } else if (length > static_cast<int64_t>(figures_.some[0].ids.size())) {
      Keep(std::exchange(figures_.some[0], sample));
    } else {
      Keep(sample);
    }
  }

  void Keep(data::EncodedSample sample) {
    if (static_cast<int64_t>(figures_.some.size()) < max_kept_) {
      figures_.some.push_back(std::move(sample));
      return;
    }
    const auto place = static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(figures_.usable)));
    if (place > 0 && place < max_kept_) figures_.some[static_cast<size_t>(place)] = std::move(sample);
  }

  void AddLosses() {
    const auto add = [&](int64_t samples, std::string what, std::string keys) {
      if (samples > 0) figures_.losses.push_back({samples, std::move(what), std::move(keys)});
    };
    const auto skipped = [&](data::Skip why) { return skipped_[static_cast<size_t>(why)]; };
    const bool prompts = !figures_.trains_on_data;
    add(skipped(data::Skip::kOverlong), "left out: the prompt is too long",
        prompts ? "data.max_prompt_length, data.overlong_prompts" : "data.max_length");
    add(truncated_, prompts ? "cut at their beginning" : "cut at their end", figures_.most_key);
    add(skipped(data::Skip::kEmpty), "left out: the prompt is empty", "data.columns.prompt");
    add(no_prompt_, "used although the prompt is empty", "data.columns.prompt, data.columns.conversation");
    add(no_answer_, "used although the answer is empty", "data.columns.chosen, data.columns.conversation");
    if (!rules_of_truth_.empty()) add(no_truth_, "used although the rules find no truth", "data.columns.truth");
    add(skipped(data::Skip::kUncounted), "left out: the loss counts none of their tokens", "data.train_on");
    add(skipped(data::Skip::kIncomplete), "left out: they lack a value",
        prompts ? "data.columns.prompt, data.columns.conversation"
                : "data.columns.prompt, data.columns.chosen, data.columns.conversation");
    add(bad_, "left out: they cannot be read", "data.skip_bad_records");
  }

  const RunConfig& config_;
  std::vector<int32_t> end_tokens_;
  const int64_t max_kept_;
  const std::vector<std::string> rules_of_truth_;
  DataFigures figures_;
  absl::Status first_bad_;
  int64_t bad_ = 0, truncated_ = 0, no_prompt_ = 0, no_answer_ = 0, no_truth_ = 0;
  int64_t skipped_[4] = {};
  std::vector<int64_t> lengths_;
  Rng rng_{3};
};

}  // namespace

absl::StatusOr<DataFigures> ReadFigures(const Recipe& recipe, const RunConfig& config, const RunInputs& inputs,
                                        Clock& clock, const ReadingLimits& limits) {
  const data::Source<data::EncodedSample>& train = *inputs.data.train;
  const data::Subset<data::EncodedSample> spread(train, data::SpreadIndexes(train.size()));
  const absl::Time until = clock.Now() + limits.time;
  if (limits.progress != nullptr) {
    limits.progress->Begin("reading the training data", std::min(train.size(), limits.samples), 0, "sample");
  }
  Reader reader(recipe, config, inputs, limits.kept);
  bool stopped = false;
  TDOCK_ASSIGN_OR_RETURN(
      const data::LoaderCounts counts,
      data::VisitSamples(spread, static_cast<int>(config.data.num_workers), [&](const EncodedOrNot& sample) {
        reader.Add(sample);
        if (limits.progress != nullptr) limits.progress->Update(reader.figures().read, {});
        stopped = limits.stop != nullptr && *limits.stop;
        const int64_t read = reader.figures().read;
        if (limits.progress != nullptr && read == limits.samples && !reader.has_found()) {
          limits.progress->Begin("looking for a sample that can be used", train.size(), 0, "sample");
        }
        // A few are read in any case, and all of them before a run is refused.
        const bool is_allowed = read < limits.samples && (read < 64 || clock.Now() < until);
        return !stopped && (is_allowed || !reader.has_found());
      }));
  if (stopped) return absl::CancelledError("interrupted while reading the training data");
  if (limits.progress != nullptr) limits.progress->End();
  TDOCK_ASSIGN_OR_RETURN(DataFigures figures, reader.Finish(recipe.phase(), counts));
  figures.training = train.size();
  figures.steps = TotalSteps(config, train.size());
  figures.validation = inputs.data.validation == nullptr ? 0 : inputs.data.validation->size();
  return figures;
}

}  // namespace tdock::trainer
