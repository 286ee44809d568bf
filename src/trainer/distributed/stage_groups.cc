#include "trainer/distributed/stage_groups.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "tdock/plans.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/guard.h"

namespace tdock::trainer {
namespace {

using runtime::Value;

// How often what waits for other ranks looks whether it must end.
constexpr std::chrono::milliseconds kSlice{20};
// A lease is kept as long as a call takes.
constexpr absl::Duration kRenewEvery = absl::Minutes(1);
constexpr absl::Duration kInterruptEvery = absl::Seconds(1);
// For what every rank does at once.
constexpr absl::Duration kSendingTime = absl::Minutes(10);

std::string ReceiverName(int rank) { return absl::StrCat("rank-", rank); }

// The rows that one rank must have together: those of a prompt group, also for a stage of rows, because it may drop the
// whole group for one of them.
std::vector<std::vector<size_t>> UnitsOf(const Rows& rows) {
  std::vector<std::vector<size_t>> units;
  std::map<GroupId, size_t> unit_of_group;
  for (size_t row = 0; row < rows.size(); ++row) {
    const GroupId group = rows.groups()[row];
    if (group == kNoGroup) {
      units.push_back({row});
      continue;
    }
    const auto [unit, is_new] = unit_of_group.try_emplace(group, units.size());
    if (is_new) units.emplace_back();
    units[unit->second].push_back(row);
  }
  return units;
}

// Tokens of a unit, as far as they are known.
int64_t LengthOf(const Rows& rows, const std::vector<size_t>& unit) {
  int64_t tokens = 0;
  for (const char* column : {kPrompt, kResponses}) {
    if (!rows.FindColumn(column).ok()) continue;
    for (const size_t row : unit) {
      const auto cell = rows.Get<int32_t>(row, column);
      if (cell.ok()) tokens += std::ssize(*cell);
    }
  }
  return std::min(tokens, kMaxLength);
}

// Whether it computes with the policy: the values of a critic are not of it.
bool ReadsPolicy(const Stage& stage) { return stage.uses_policy() && RoleOf(stage.consumer().name) != "critic"; }

// Which units each of `ranks` ranks gets: as many of them each, of nearly the same work, where that is possible.
tdock::Plan Deal(const std::vector<int64_t>& lengths, int64_t ranks) {
  const auto units = std::ssize(lengths);
  if (units % ranks == 0) {
    if (absl::StatusOr<tdock::Plan> balanced = BalanceRanks(lengths, ranks); balanced.ok()) return *std::move(balanced);
  }
  tdock::Plan dealt(static_cast<size_t>(ranks));
  for (int64_t unit = 0; unit < units; ++unit) dealt[static_cast<size_t>(unit * ranks / units)].push_back(unit);
  return dealt;
}

}  // namespace

std::vector<int> RanksOf(const Stage& stage, const RanksOfRoles& roles) {
  const std::string& name = stage.consumer().name;
  const auto found = roles.find(RoleOf(name));
  if (MethodOf(name) == nullptr || found == roles.end()) return {0};
  std::vector<int> ranks = found->second;
  std::sort(ranks.begin(), ranks.end());
  if (!stage.trains() && stage.together() != Together::kNothing) ranks.resize(1);
  return ranks;
}

// The calls that carry out one take.
struct StageGroups::Call {
  struct Part {
    int rank = 0;
    std::shared_ptr<runtime::WorkerLink> link = {};  // null: this process
    StageShare share = {};
    std::optional<absl::StatusOr<ShareResult>> result = {};
  };
  explicit Call(const StageMethod& of) : method(of) {}

  bool Failed() TDOCK_EXCLUDES(mu) {
    const MutexLock lock(mu);
    return std::any_of(parts.begin(), parts.end(),
                       [](const Part& part) { return part.result.has_value() && !part.result->ok(); });
  }

  const StageMethod& method;
  std::vector<Part> parts;
  Mutex mu;
  CondVar changed;
  size_t open TDOCK_GUARDED_BY(mu) = 0;
};

StageGroups::StageGroups(const Options& options)
    : options_(options),
      training_({.controller = options.controller,
                 .dock = options.dock,
                 .env = options.env,
                 .groups = options.training,
                 .on_ended = [this](const RankSpan& span) {
                   const MutexLock lock(mu_);
                   spans_.push_back(span);
                 }}) {}

absl::Status StageGroups::Attach(const StagesOfRun& run) {
  policy_ = &run.policy;
  serves_ = run.serves;
  own_ = std::make_unique<WorkerStages>(run.stages, options_.dock, options_.env);
  std::set<int> receivers;
  for (const std::unique_ptr<Stage>& stage : run.stages) {
    const std::string& name = stage->consumer().name;
    std::vector<int> ranks = RanksOf(*stage, options_.roles);
    if (ranks == std::vector<int>{0}) continue;
    if (stage->trains()) {
      training_.Add(*stage, *run.trained.at(RoleOf(name)), ranks);
    } else if (ReadsPolicy(*stage)) {
      receivers.insert(ranks.begin(), ranks.end());
    }
    ranks_[name] = std::move(ranks);
  }
  TDOCK_RETURN_IF_ERROR(options_.announce(run.total_steps));
  receivers.erase(0);
  // Those that train it have it.
  std::erase_if(receivers, [this](int rank) { return training_.Trains("actor", rank); });
  receivers_.assign(receivers.begin(), receivers.end());
  if (receivers_.empty()) return absl::OkStatus();
  std::vector<std::string> names;
  for (const int rank : receivers_) names.push_back(ReceiverName(rank));
  sender_ = std::make_unique<WeightSender>(options_.dock, std::move(names));
  return sender_->Open();
}

absl::Status StageGroups::PrepareWeights(const Stage* reader) {
  if (reader == nullptr) {
    TDOCK_RETURN_IF_ERROR(training_.PrepareWeights("actor"));
    return training_.PrepareWeights("critic");
  }
  const std::string role = RoleOf(reader->consumer().name);
  if (!reader->uses_policy() || (serves_ && role == "rollout")) return absl::OkStatus();  // it has a copy
  return training_.PrepareWeights(role == "critic" ? "critic" : "actor");
}

bool StageGroups::Carries(const Stage& stage) const { return ranks_.contains(stage.consumer().name); }

std::vector<StageShare> StageGroups::Shares(const Stage& stage, const std::string& partition, const Taken& taken,
                                            const StageContext& context) const {
  const std::vector<int>& ranks = ranks_.at(stage.consumer().name);
  const auto units = UnitsOf(taken.rows);
  std::vector<int64_t> lengths;
  for (const std::vector<size_t>& unit : units) lengths.push_back(LengthOf(taken.rows, unit));
  std::vector<StageShare> shares(ranks.size(), {.stage = stage.consumer().name,
                                                .partition = partition,
                                                .lease = taken.lease,
                                                .step = context.step,
                                                .whole_step = context.whole_step && ranks.size() == 1});
  tdock::Plan plan = Deal(lengths, std::ssize(ranks));
  for (size_t i = 0; i < ranks.size(); ++i) {
    // In the order of the rows, which that of a step's sums follows.
    std::sort(plan[i].begin(), plan[i].end());
    for (const int64_t unit : plan[i]) {
      for (const size_t row : units[static_cast<size_t>(unit)]) shares[i].rows.push_back(taken.rows.ids()[row]);
    }
  }
  return shares;
}

absl::StatusOr<StageRunner::Round> StageGroups::Run(Stage& stage, const std::string& partition, const Taken& taken,
                                                    StageContext& context) {
  const std::string& name = stage.consumer().name;
  const std::vector<int>& ranks = ranks_.at(name);
  TDOCK_RETURN_IF_ERROR(options_.controller.status());  // of a rank that is gone
  if (training_.Has(name)) return training_.Run(stage, partition, taken, context);
  if (ReadsPolicy(stage) && !serves_) {
    TDOCK_RETURN_IF_ERROR(SendWeights(policy_->decoder, policy_->version, receivers_, context.check_stop));
  }
  // Shared with the links, whose answers may come after an error has ended this.
  const auto call = std::make_shared<Call>(*MethodOf(name));
  std::vector<StageShare> shares = Shares(stage, partition, taken, context);
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (shares[i].rows.empty()) continue;
    call->parts.push_back({.rank = ranks[i], .share = std::move(shares[i])});
    if (ranks[i] != 0) call->parts.back().link = options_.controller.worker(ranks[i]);
  }
  {
    const MutexLock lock(call->mu);
    call->open = call->parts.size();
  }
  {
    const MutexLock lock(mu_);
    progress_[name] = absl::Now();
  }
  const auto answer = [call](size_t part, absl::StatusOr<ShareResult> result) {
    const MutexLock lock(call->mu);
    call->parts[part].result = std::move(result);
    --call->open;
    call->changed.NotifyAll();
  };
  std::optional<size_t> own;
  for (size_t i = 0; i < call->parts.size(); ++i) {
    const Call::Part& part = call->parts[i];
    if (part.link == nullptr) {
      own = i;
      continue;
    }
    part.link->Invoke(std::string(call->method.spec().name), {ToValue(part.share)}, absl::InfiniteFuture(),
                      [answer, i](const absl::StatusOr<Value>& value) {
                        answer(i, value.ok() ? ResultIn(*value) : absl::StatusOr<ShareResult>(value.status()));
                      });
  }
  if (own.has_value()) {
    const WorkerStages::Signs signs{.check_stop = [&]() -> absl::Status {
                                      TDOCK_RETURN_IF_ERROR(context.check_stop());
                                      return call->Failed() ? absl::CancelledError("another rank has failed")
                                                            : absl::OkStatus();
                                    },
                                    .progress = context.progress};
    answer(*own, Guarded([&] { return own_->Run(call->parts[*own].share, signs); }));
  }
  TDOCK_RETURN_IF_ERROR(AwaitShares(*call, partition, taken, context));
  return Gather(*call, context);
}

absl::Status StageGroups::AwaitShares(Call& call, const std::string& partition, const Taken& taken,
                                      StageContext& context) {
  absl::Time next_renewal = absl::Now() + kRenewEvery;
  absl::Time progress = absl::InfinitePast();
  absl::Time next_interrupt = absl::InfinitePast();
  for (;;) {
    {
      MutexLock lock(call.mu);
      if (call.open == 0) return absl::OkStatus();
      call.changed.WaitUntil(call.mu, std::chrono::steady_clock::now() + kSlice);
      if (call.open == 0) return absl::OkStatus();
    }
    const std::string& stage = call.parts.front().share.stage;
    const absl::Time now = absl::Now();
    absl::Time last;
    {
      const MutexLock lock(mu_);
      last = progress_[stage];
    }
    if (last > progress) context.progress();
    progress = last;
    if (now >= next_renewal) {
      next_renewal = now + kRenewEvery;
      // Over once all rows are put; what else it may be, the calls tell.
      options_.dock.Renew(partition, taken.lease).status().IgnoreError();
    }
    // Again from time to time: it may have come before the call.
    if (now >= next_interrupt && (call.Failed() || !context.check_stop().ok())) {
      next_interrupt = now + kInterruptEvery;
      Interrupt(call);
    }
    if (now - last < options_.patience) continue;
    std::string ranks;
    {
      const MutexLock lock(call.mu);
      for (const Call::Part& part : call.parts) {
        if (!part.result.has_value()) absl::StrAppend(&ranks, ranks.empty() ? "" : ", ", part.link->Describe());
      }
    }
    return absl::DeadlineExceededError(absl::StrCat(ranks, " has shown no progress in ", call.method.spec().name,
                                                    " for ", absl::FormatDuration(options_.patience),
                                                    " (trainer.stage_timeout)"));
  }
}

void StageGroups::Interrupt(Call& call) {
  for (const Call::Part& part : call.parts) {
    if (part.link == nullptr) continue;
    part.link->Invoke(std::string(kInterrupt.spec().name), {Value(part.share.stage)}, absl::InfiniteFuture(),
                      [](const absl::StatusOr<Value>&) {});
  }
}

absl::StatusOr<StageRunner::Round> StageGroups::Gather(Call& call, StageContext& context) {
  StageRunner::Round round;
  const MutexLock lock(call.mu);
  // An error of a rank that works says more than that another one has been told to end.
  absl::Status failed;
  for (const Call::Part& part : call.parts) {
    if (part.result->ok()) continue;
    const absl::Status& status = part.result->status();
    if (!failed.ok() && !absl::IsCancelled(failed)) continue;
    failed = part.link == nullptr || absl::IsUnavailable(status)
                 ? status
                 : Annotate(status, absl::StrCat(part.link->Describe(), ", ", call.method.spec().name));
  }
  for (const Call::Part& part : call.parts) {
    if (!part.result->ok()) continue;  // the rows of the others are put, whatever comes of its own
    const ShareResult& result = **part.result;
    round.dropped_rows += result.round.dropped_rows;
    round.requeued_units += result.round.requeued_units;
    context.published += result.published;
    State figures;
    for (const auto& [name, text] : result.metrics) figures.SetText(name, text);
    TDOCK_RETURN_IF_ERROR(context.metrics.Load(figures));
    const MutexLock spans(mu_);
    spans_.push_back({.rank = part.rank,
                      .method = std::string(call.method.spec().name),
                      .began_ns = result.began_ns,
                      .ended_ns = result.ended_ns,
                      .memory_before = result.memory_before,
                      .memory_after = result.memory_after,
                      .rows = std::ssize(part.share.rows)});
  }
  if (failed.ok()) return round;
  context.on_put();
  return failed;
}

absl::Status StageGroups::Serve(const model::Decoder& decoder, int64_t version) {
  return SendWeights(decoder, version, receivers_, [] { return absl::OkStatus(); });
}

absl::Status StageGroups::SendWeights(const model::Decoder& decoder, int64_t version, const std::vector<int>& ranks,
                                      const std::function<absl::Status()>& check) {
  const MutexLock lock(sending_);
  if (ranks.empty() || (has_sent_ && version == sent_version_)) return absl::OkStatus();
  struct Receipts {
    Mutex mu;
    CondVar changed;
    size_t open TDOCK_GUARDED_BY(mu) = 0;
    absl::Status failed TDOCK_GUARDED_BY(mu);
  };
  const auto receipts = std::make_shared<Receipts>();
  {
    const MutexLock count(receipts->mu);
    receipts->open = ranks.size();
  }
  const absl::Time deadline = absl::Now() + kSendingTime;
  for (const int rank : ranks) {
    const auto link = options_.controller.worker(rank);
    link->Invoke(std::string(kUpdateWeights.spec().name), {Value(version)}, deadline,
                 [receipts, who = link->Describe()](const absl::StatusOr<Value>& value) {
                   const MutexLock done(receipts->mu);
                   --receipts->open;
                   if (!value.ok() && receipts->failed.ok()) {
                     receipts->failed = absl::IsUnavailable(value.status())
                                            ? value.status()
                                            : Annotate(value.status(), absl::StrCat(who, ", update_weights"));
                   }
                   receipts->changed.NotifyAll();
                 });
  }
  const auto failed = [&] {
    const MutexLock look(receipts->mu);
    return receipts->failed;
  };
  const absl::StatusOr<WeightsSent> sent = sender_->Send(decoder, version, deadline, [&]() -> absl::Status {
    TDOCK_RETURN_IF_ERROR(failed());
    return check();
  });
  if (!sent.ok()) {
    TDOCK_RETURN_IF_ERROR(failed());
    return sent.status();
  }
  {
    MutexLock wait(receipts->mu);
    while (receipts->open > 0) receipts->changed.WaitUntil(receipts->mu, std::chrono::steady_clock::now() + kSlice);
    TDOCK_RETURN_IF_ERROR(receipts->failed);
  }
  has_sent_ = true;
  sent_version_ = version;
  return absl::OkStatus();
}

std::vector<RankSpan> StageGroups::TakeSpans() {
  const MutexLock lock(mu_);
  return std::exchange(spans_, {});
}

void StageGroups::OnNotice(const runtime::Notice& notice) {
  if (notice.kind != "progress") return;
  const MutexLock lock(mu_);
  progress_[notice.text] = absl::Now();
}

}  // namespace tdock::trainer
