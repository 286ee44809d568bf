#include "trainer/loop/gather.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status.h"
#include "trainer/stages/columns.h"

namespace tdock::trainer {

// Consumer "dynamic_sampling", of groups: copies those whose rewards differ to the partition that the step trains on,
// as long as it needs more.
class GroupFilter final : public Stage {
 public:
  GroupFilter(const Gathering& gathering, Dock& dock, std::string partition, const std::vector<ColumnSpec>& columns)
      : gathering_(gathering), dock_(dock), partition_(std::move(partition)) {
    for (const ColumnSpec& column : columns) consumer_.reads.push_back(column.name);
  }

  const ConsumerOptions& consumer() const override { return consumer_; }

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& /*context*/) override {
    // As they were fed, whichever were scored first.
    std::vector<size_t> order(rows.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rows.ids()[a] < rows.ids()[b]; });
    std::vector<int64_t> chosen;
    for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
      while (end < order.size() && rows.groups()[order[end]] == rows.groups()[order[begin]]) ++end;
      const std::span<const size_t> group = std::span(order).subspan(begin, end - begin);
      TDOCK_ASSIGN_OR_RETURN(const bool differ, Differ(rows, group));
      ++seen_;
      if (!differ) continue;
      if (kept_ == gathering_.groups) {
        ++surplus_;
        continue;
      }
      ++kept_;
      chosen.insert(chosen.end(), group.begin(), group.end());
    }
    if (!chosen.empty()) TDOCK_RETURN_IF_ERROR(Copy(rows, chosen));
    return StageOutput();
  }

  void BeginStep() {
    seen_ = kept_ = equal_ = surplus_ = copied_ = 0;
    equal_rewards_ = 0;
    first_row_ = 0;
  }

  void Save(State& state) const override {
    for (const auto& [name, value] : Counts()) state.SetInteger(name, *value);
    state.SetNumber("equal_rewards", equal_rewards_);
  }
  absl::Status Load(const State& state) override {
    for (const auto& [name, value] : Counts()) {
      TDOCK_ASSIGN_OR_RETURN(*value, state.Integer(name));
    }
    TDOCK_ASSIGN_OR_RETURN(equal_rewards_, state.Number("equal_rewards"));
    return absl::OkStatus();
  }

  // Of the step: groups that came here, that were copied, that have equal rewards, and that were too many.
  int64_t seen() const { return seen_; }
  int64_t kept() const { return kept_; }
  int64_t equal() const { return equal_; }
  int64_t surplus() const { return surplus_; }
  double mean_equal_reward() const { return equal_ > 0 ? equal_rewards_ / static_cast<double>(equal_) : 0; }
  // The rows that were copied, and the first of them.
  int64_t copied() const { return copied_; }
  RowId first_row() const { return static_cast<RowId>(first_row_); }

 private:
  std::map<std::string, int64_t*> Counts() {
    return {{"seen", &seen_},       {"kept", &kept_},     {"equal", &equal_},
            {"surplus", &surplus_}, {"copied", &copied_}, {"first_row", &first_row_}};
  }
  std::map<std::string, const int64_t*> Counts() const {
    return {{"seen", &seen_},       {"kept", &kept_},     {"equal", &equal_},
            {"surplus", &surplus_}, {"copied", &copied_}, {"first_row", &first_row_}};
  }

  absl::StatusOr<double> RewardOf(const Rows& rows, size_t row) const {
    TDOCK_ASSIGN_OR_RETURN(const std::span<const float> reward, rows.Get<float>(row, kRewards));
    const double score = std::clamp<double>(reward[0], -gathering_.score_clip, gathering_.score_clip);
    if (!gathering_.overlong.has_value()) return score;
    TDOCK_ASSIGN_OR_RETURN(const std::span<const uint8_t> mask, rows.Get<uint8_t>(row, kResponseMask));
    return score + algo::OverlongPenalty(std::ssize(mask), *gathering_.overlong);
  }

  // Whether the group is worth training on; a single answer always is.
  absl::StatusOr<bool> Differ(const Rows& rows, std::span<const size_t> group) {
    TDOCK_ASSIGN_OR_RETURN(const double first, RewardOf(rows, group[0]));
    for (const size_t row : group.subspan(1)) {
      TDOCK_ASSIGN_OR_RETURN(const double reward, RewardOf(rows, row));
      if (reward != first) return true;
    }
    if (group.size() == 1) return true;
    ++equal_;
    equal_rewards_ += first;
    return false;
  }

  absl::Status Copy(const Rows& rows, const std::vector<int64_t>& chosen) {
    // Columns of one version of the weights are put together, first those that no weights have made.
    std::map<int64_t, Batch> by_version;
    for (const std::string& name : consumer_.reads) {
      TDOCK_ASSIGN_OR_RETURN(const int64_t version, rows.WeightsVersion(static_cast<size_t>(chosen[0]), name));
      TDOCK_RETURN_IF_ERROR(by_version[version].Add(name, rows.ToColumn(name)));
    }
    std::vector<GroupId> groups;
    for (const int64_t row : chosen) groups.push_back(rows.groups()[static_cast<size_t>(row)]);
    std::vector<RowId> ids;
    for (const auto& [version, columns] : by_version) {
      TDOCK_ASSIGN_OR_RETURN(Batch batch, columns.SelectRows(chosen));
      if (ids.empty()) {
        TDOCK_ASSIGN_OR_RETURN(
            PutResult put,
            dock_.Put(
                {.partition = partition_, .batch = std::move(batch), .groups = groups, .weights_version = version}));
        ids = std::move(put.rows);
      } else {
        TDOCK_RETURN_IF_ERROR(
            dock_.Fill({.partition = partition_, .batch = std::move(batch), .rows = ids, .weights_version = version}));
      }
    }
    if (copied_ == 0) first_row_ = static_cast<int64_t>(ids.front());
    copied_ += std::ssize(ids);
    return absl::OkStatus();
  }

  const Gathering gathering_;
  Dock& dock_;
  const std::string partition_;
  ConsumerOptions consumer_{.name = "dynamic_sampling", .unit = Unit::kGroup};
  int64_t seen_ = 0, kept_ = 0, equal_ = 0, surplus_ = 0, copied_ = 0, first_row_ = 0;
  double equal_rewards_ = 0;  // the sum over the groups
};

namespace {

// The columns that a group has once the stages of a round are through: all but those that later stages write.
std::vector<ColumnSpec> ColumnsOfRound(std::vector<ColumnSpec> columns,
                                       std::span<const std::unique_ptr<Stage>> later_stages) {
  std::erase_if(columns, [&](const ColumnSpec& column) {
    return absl::c_any_of(later_stages, [&](const std::unique_ptr<Stage>& stage) {
      return absl::c_linear_search(stage->consumer().writes, column.name);
    });
  });
  return columns;
}

}  // namespace

Gather::Gather(const Gathering& gathering, Dock& dock, std::string partition, const std::vector<ColumnSpec>& columns,
               int64_t group_size, std::span<const std::unique_ptr<Stage>> stages)
    : gathering_(gathering),
      dock_(dock),
      group_size_(group_size),
      options_{.name = absl::StrCat(partition, "-sampling"),
               .columns = ColumnsOfRound(columns, stages.subspan(gathering.stages)),
               .group_size = group_size},
      filter_(std::make_unique<GroupFilter>(gathering, dock, std::move(partition), options_.columns)),
      runner_(dock, options_.name) {
  for (const std::unique_ptr<Stage>& stage : stages.first(gathering.stages)) stages_.push_back(stage.get());
  stages_.push_back(filter_.get());
  options_.retain_for = {filter_->consumer().name};
}

Gather::~Gather() = default;

absl::Status Gather::Register() {
  for (const Stage* stage : stages_) TDOCK_RETURN_IF_ERROR(runner_.Add(*stage));
  return absl::OkStatus();
}

absl::StatusOr<Gather::Gathered> Gather::Run(StageContext& context, PhaseMeter& meter, StageWatch& watch,
                                             const FeedRound& feed) {
  if (rounds_ == 0) filter_->BeginStep();
  while (is_open_ || filter_->kept() < gathering_.groups) {
    if (!is_open_) {
      TDOCK_RETURN_IF_ERROR(context.check_stop());
      if (gathering_.max_rounds > 0 && rounds_ == gathering_.max_rounds) return TooManyRounds();
      TDOCK_ASSIGN_OR_RETURN(rows_, feed());
      if (rows_ == 0) break;
      is_open_ = true;
      ++rounds_;
    }
    TDOCK_RETURN_IF_ERROR(RunRound(context, meter, watch));
  }
  const auto report = [&context](const char* name, int64_t count) {
    context.metrics.Sum(name, static_cast<double>(count));
  };
  report("sampling/rounds", rounds_);
  report("sampling/groups", filter_->seen());
  report("sampling/kept", filter_->kept());
  report("sampling/surplus", filter_->surplus());
  const double seen = static_cast<double>(std::max<int64_t>(filter_->seen(), 1));
  context.metrics.Mean("sampling/equal_share", static_cast<double>(filter_->equal()) / seen);
  rounds_ = 0;
  return Gathered{filter_->first_row(), filter_->copied()};
}

absl::Status Gather::RunRound(StageContext& context, PhaseMeter& meter, StageWatch& watch) {
  for (; stage_ < stages_.size(); ++stage_) {
    Stage& stage = *stages_[stage_];
    TDOCK_RETURN_IF_ERROR(context.check_stop());
    const int64_t left = rows_ - published_;
    const int64_t units = stage.consumer().unit == Unit::kGroup ? left / group_size_ : left;
    context.published = published_;
    meter.Begin();
    const absl::StatusOr<int64_t> dropped = watch.Run(stage.consumer().name, absl::StrCat(left, " rows"),
                                                      [&] { return runner_.Run(stage, units, context); });
    published_ = dropped.ok() ? 0 : context.published;
    if (!dropped.ok()) return Annotate(dropped.status(), absl::StrCat("round ", rounds_, " of sampling"));
    meter.End(stage.consumer().name, context.metrics);
    rows_ -= *dropped;
  }
  is_open_ = false;
  stage_ = 0;
  return absl::OkStatus();
}

absl::Status Gather::TooManyRounds() const {
  return absl::FailedPreconditionError(absl::StrFormat(
      "%d rounds of sampling (algorithm.filter_groups.max_num_gen_batches) have given %d of the %d prompts that a step "
      "trains on (data.train_batch_size): of %d prompts, %d had answers with equal rewards, %.3g on average. Raise "
      "rollout.n, so that answers differ more often, or data.gen_batch_size or that limit; or change the prompts, "
      "which are too hard or too easy for the model as it is, or the reward",
      rounds_, filter_->kept(), gathering_.groups, filter_->seen(), filter_->equal(), filter_->mean_equal_reward()));
}

void Gather::Save(State& state) const {
  state.SetInteger("rounds", rounds_);
  state.SetInteger("open", is_open_ ? 1 : 0);
  state.SetInteger("stage", static_cast<int64_t>(stage_));
  state.SetInteger("rows", rows_);
  state.SetInteger("published", published_);
  state.Set("filter", *filter_);
}

absl::Status Gather::Load(const State& state) {
  TDOCK_ASSIGN_OR_RETURN(rounds_, state.Integer("rounds"));
  TDOCK_ASSIGN_OR_RETURN(const int64_t open, state.Integer("open"));
  TDOCK_ASSIGN_OR_RETURN(const int64_t stage, state.Integer("stage"));
  TDOCK_ASSIGN_OR_RETURN(rows_, state.Integer("rows"));
  TDOCK_ASSIGN_OR_RETURN(published_, state.Integer("published"));
  if (stage < 0 || std::cmp_greater_equal(stage, stages_.size()) || published_ < 0 || published_ > rows_) {
    return absl::InvalidArgumentError(absl::StrCat("a round of sampling is at stage ", stage, " of ", stages_.size(),
                                                   ", with ", published_, " of ", rows_, " rows put"));
  }
  is_open_ = open != 0;
  stage_ = static_cast<size_t>(stage);
  return state.Get("filter", *filter_);
}

}  // namespace tdock::trainer
