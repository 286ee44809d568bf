#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "trainer/stages/answer_engine.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/model_time.h"
#include "trainer/stages/rollout_responses.h"
#include "trainer/stages/stages.h"

namespace tdock::trainer {
namespace {

constexpr absl::Duration kBetweenLeaseRenewals = absl::Minutes(1);

class RolloutStage final : public Stage {
  // Rows that were taken together.
  struct Portion {
    RolloutResponses responses = {};
    StageContext* context = nullptr;                 // to put them with
    std::unique_ptr<FurtherRows> further = nullptr;  // whose context that is; null: the one of Run()
    std::vector<engine::RequestId> requests = {};

    bool IsOver() const { return responses.put == responses.missing.size(); }
  };
  // What is answered at the same time.
  struct Served {
    struct Asked {
      Portion* portion = nullptr;
      size_t request = 0;  // its number there
    };
    std::list<Portion> portions = {};
    std::map<engine::RequestId, Asked> asked = {};
  };

 public:
  RolloutStage(const Policy& policy, const text::Tokenizer& tokenizer, std::unique_ptr<AnswerEngine> engine,
               const engine::SamplingParams& sampling, const LengthLimits& limits, RolloutPuts puts)
      : policy_(policy),
        tokenizer_(tokenizer),
        engine_(std::move(engine)),
        questions_{.sampling = sampling,
                   .limits = limits,
                   .context_length = policy.decoder.config().context_length(),
                   .token_budget = puts.token_budget,
                   .log_probs = puts.log_probs.front()},
        puts_(std::move(puts)) {
    consumer_.writes.insert(consumer_.writes.end(), puts_.log_probs.begin(), puts_.log_probs.end());
    if (!partial()) return;
    consumer_.unit = Unit::kRow;
    consumer_.reads_optional = {kResponses, puts_.log_probs.front()};
  }

  const ConsumerOptions& consumer() const override { return consumer_; }
  bool uses_policy() const override { return true; }
  Together together() const override { return TogetherIn(policy_.decoder); }

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    return puts_.weights == nullptr ? RunOnPolicy(rows, context) : RunServed(rows, context);
  }

 private:
  bool partial() const { return puts_.token_budget > 0; }
  // Whether groups with a short answer are dropped by the stage's output alone: those of partial rollouts have rows
  // that it was not given, and that the runner finds.
  bool DropsAtEnd() const { return partial() && puts_.min_tokens > 0; }

  // With the policy itself, which does not train meanwhile.
  absl::StatusOr<StageOutput> RunOnPolicy(const Rows& rows, StageContext& context) {
    RolloutResponses responses;
    TDOCK_ASSIGN_OR_RETURN(std::vector<engine::Request> requests, responses.Ask(rows, questions_));
    TDOCK_RETURN_IF_ERROR(
        engine_->Serve(Unowned(policy_.decoder), policy_.version, /*in_flight=*/false, context.check_stop));
    absl::Time put = absl::Now(), renewed = put;
    const auto after_step = [&](std::span<engine::Answer> ended) -> absl::Status {
      for (engine::Answer& answer : ended) {
        TDOCK_RETURN_IF_ERROR(responses.Take(answer.request, answer, puts_.min_tokens));
      }
      TDOCK_RETURN_IF_ERROR(context.check_stop());
      context.progress();
      const absl::Time now = absl::Now();
      if (context.renew != nullptr && now >= renewed + kBetweenLeaseRenewals) {
        TDOCK_RETURN_IF_ERROR(context.renew());
        renewed = now;
      }
      if (context.publish == nullptr || responses.ready.empty() || responses.AllAreReady() ||
          now < put + puts_.interval) {
        return absl::OkStatus();
      }
      put = now;
      return PutReady(responses, context);
    };
    const absl::Duration before = engine_->computing();
    const absl::Status answered = engine_->AnswerAll(std::move(requests), after_step);
    ModelTime::Add(consumer_.name, engine_->computing() - before, context.metrics);
    engine_->Report(context.metrics);
    TDOCK_RETURN_IF_ERROR(answered);
    if (partial()) TDOCK_RETURN_IF_ERROR(PutBack(responses, context));
    return OutputOf(responses, context);
  }

  // What is not put yet.
  absl::StatusOr<StageOutput> OutputOf(RolloutResponses& responses, StageContext& context) const {
    StageOutput output{.columns = {}, .weights_version = policy_.version};
    for (const size_t group : responses.ready) {
      output.weights_version = std::min(output.weights_version, responses.VersionOfGroup(group));
    }
    if (puts_.min_tokens > 0) {
      context.metrics.Sum("rollout/dropped_groups", static_cast<double>(responses.too_short.size()));
      for (const size_t group : responses.too_short) output.dropped.push_back(responses.groups[group]);
      if (context.whole_step && responses.too_short.size() == responses.groups.size() && !responses.groups.empty()) {
        return absl::FailedPreconditionError(absl::StrCat(
            "each of the ", responses.groups.size(), " prompts has an answer of fewer than ", puts_.min_tokens,
            " tokens (rollout.min_response_tokens), so that none is left: has the policy stopped answering?"));
      }
      responses.ready.insert(responses.ready.end(), responses.too_short.begin(), responses.too_short.end());
    }
    if (!responses.ready.empty()) {
      TDOCK_ASSIGN_OR_RETURN(output.columns, ColumnsOf(responses, responses.RowsOf(responses.ready), context.metrics));
    }
    return output;
  }

  // With the weights of `puts_.weights`; as answers end, further rows are taken in their place, so that the engine has
  // always as much to do as there is. Everything is put before the end. Those who hand out more keep the leases.
  absl::StatusOr<StageOutput> RunServed(const Rows& rows, StageContext& context) {
    TDOCK_RETURN_IF_ERROR(ServeNewest(context));
    Served served;
    absl::Time put = absl::Now(), looked = put;
    absl::Duration computed = engine_->computing();
    const auto put_all = [&] {
      const absl::Duration computing = engine_->computing();
      ModelTime::Add(consumer_.name, computing - std::exchange(computed, computing), context.metrics);
      engine_->Report(context.metrics);
      return PutAll(served);
    };
    absl::Status status = AskServed(rows, &context, nullptr, served);
    while (status.ok() && engine_->HasWork()) {
      status = TakeServed(served);
      if (status.ok()) status = context.check_stop();
      context.progress();
      if (status.ok() && puts_.in_flight) status = ServeNewest(context);
      const absl::Time now = absl::Now();
      if (status.ok() && now >= put + puts_.interval) {
        put = now;
        status = put_all();
      }
      if (status.ok() && now >= looked + puts_.between_takes && MayTakeMore(context)) {
        looked = now;
        status = TakeMore(context, served);
      }
    }
    if (status.ok()) status = put_all();
    if (status.ok())
      return served.portions.empty() ? StageOutput() : OutputOf(served.portions.front().responses, context);
    std::vector<engine::RequestId> asked;
    for (const auto& [id, place] : served.asked) asked.push_back(id);
    engine_->GiveUp(asked);
    return status;
  }

  bool ServesNewest() const {
    const WeightFeed::Weights newest = puts_.weights->Newest();
    return newest.version == served_ && serves_.get() == newest.decoder.get();
  }

  // Answers that wait for their end with the weights that they were begun with do not let newer ones in.
  bool MayTakeMore(const StageContext& context) const {
    if (context.more == nullptr || DropsAtEnd() || (!puts_.in_flight && !ServesNewest())) return false;
    return engine_->open() < puts_.max_rows;
  }

  absl::Status ServeNewest(const StageContext& context) {
    if (ServesNewest()) return absl::OkStatus();
    WeightFeed::Weights newest = puts_.weights->Newest();
    TDOCK_RETURN_IF_ERROR(
        engine_->Serve(newest.decoder, newest.version, /*in_flight=*/puts_.in_flight, context.check_stop));
    serves_ = std::move(newest.decoder);
    served_ = newest.version;
    return absl::OkStatus();
  }

  // Adds a portion, of what was taken further or of the rows of Run(), and asks the engine.
  absl::Status AskServed(const Rows& rows, StageContext* context, std::unique_ptr<FurtherRows> further,
                         Served& served) {
    Portion& portion = served.portions.emplace_back();
    portion.context = context;
    portion.further = std::move(further);
    TDOCK_ASSIGN_OR_RETURN(std::vector<engine::Request> requests, portion.responses.Ask(rows, questions_));
    for (size_t i = 0; i < requests.size(); ++i) {
      const absl::StatusOr<engine::RequestId> id = engine_->Add(std::move(requests[i]));
      if (!id.ok()) return Annotate(id.status(), absl::StrCat("prompt ", i));
      portion.requests.push_back(*id);
      served.asked[*id] = {&portion, i};
    }
    return absl::OkStatus();
  }

  absl::Status TakeServed(Served& served) {
    TDOCK_ASSIGN_OR_RETURN(std::vector<engine::Answer> ended, engine_->Step());
    for (engine::Answer& answer : ended) {
      const Served::Asked& asked = served.asked.at(answer.request);
      TDOCK_RETURN_IF_ERROR(asked.portion->responses.Take(asked.request, answer, puts_.min_tokens));
    }
    return absl::OkStatus();
  }

  absl::Status TakeMore(const StageContext& context, Served& served) {
    TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<FurtherRows> further, context.more());
    if (further == nullptr) return absl::OkStatus();
    // Prompts are fed once there are new weights, which may be newer than those that were looked for before this. They
    // are given back unanswered where the others must end with the old ones.
    if (puts_.in_flight) TDOCK_RETURN_IF_ERROR(ServeNewest(context));
    if (!ServesNewest()) return absl::OkStatus();
    FurtherRows& rows = *further;
    return AskServed(rows.taken.rows, &rows.context, std::move(further), served);
  }

  // What is there, those of the same weights together, and those of one group by the oldest of them.
  absl::Status PutReady(RolloutResponses& responses, StageContext& context) const {
    std::map<int64_t, std::vector<size_t>> groups;  // by their versions
    for (const size_t group : std::exchange(responses.ready, {})) {
      groups[responses.VersionOfGroup(group)].push_back(group);
    }
    for (const auto& [version, of_version] : groups) {
      const std::vector<size_t> rows = responses.RowsOf(of_version);
      TDOCK_ASSIGN_OR_RETURN(Batch columns, ColumnsOf(responses, rows, context.metrics));
      TDOCK_RETURN_IF_ERROR(context.publish(rows, std::move(columns), version));
      responses.put += of_version.size();
    }
    return absl::OkStatus();
  }

  // What is there, but nothing of a portion before all of those that were taken before it: answers that came later and
  // are shorter would be trained on first, and the longer ones with weights that are older still.
  absl::Status PutAll(Served& served) const {
    while (!served.portions.empty()) {
      Portion& oldest = served.portions.front();
      StageContext& context = *oldest.context;
      if (!oldest.responses.ready.empty()) TDOCK_RETURN_IF_ERROR(PutReady(oldest.responses, context));
      if (partial()) TDOCK_RETURN_IF_ERROR(PutBack(oldest.responses, context));
      if (puts_.min_tokens > 0 && !DropsAtEnd()) TDOCK_RETURN_IF_ERROR(DropShort(oldest.responses, context));
      if (!oldest.IsOver()) break;
      for (const engine::RequestId id : oldest.requests) served.asked.erase(id);
      served.portions.pop_front();
    }
    return absl::OkStatus();
  }

  static absl::Status DropShort(RolloutResponses& responses, StageContext& context) {
    const std::vector<size_t> groups = std::exchange(responses.too_short, {});
    context.metrics.Sum("rollout/dropped_groups", static_cast<double>(groups.size()));
    if (groups.empty()) return absl::OkStatus();
    responses.put += groups.size();
    return context.drop(responses.RowsOf(groups));
  }

  // The answers that are not at their end.
  absl::Status PutBack(RolloutResponses& responses, StageContext& context) const {
    std::map<int64_t, std::vector<size_t>> rows;  // by their versions
    for (const size_t row : responses.unfinished) rows[responses.VersionOf(row)].push_back(row);
    responses.ReportWork(responses.unfinished, policy_.decoder.config(), partial(), context.metrics);
    context.metrics.Sum("rollout/unfinished", static_cast<double>(responses.unfinished.size()));
    for (auto& [version, of_version] : rows) {
      std::sort(of_version.begin(), of_version.end());
      std::vector<std::vector<int32_t>> tokens;
      std::vector<std::vector<float>> log_probs;
      for (const size_t row : of_version) {
        tokens.push_back(responses.completions[row].tokens);
        log_probs.push_back(responses.completions[row].log_probs);
      }
      Batch columns;
      TDOCK_RETURN_IF_ERROR(columns.Add(kResponses, Column::FromRows(tokens)));
      TDOCK_RETURN_IF_ERROR(columns.Add(puts_.log_probs.front(), Column::FromRows(log_probs)));
      TDOCK_RETURN_IF_ERROR(context.put_back(of_version, std::move(columns), version));
    }
    responses.put += std::exchange(responses.unfinished, {}).size();
    return absl::OkStatus();
  }

  // Also reports them.
  absl::StatusOr<Batch> ColumnsOf(const RolloutResponses& responses, const std::vector<size_t>& rows,
                                  StepMetrics& metrics) const {
    responses.ReportWork(rows, policy_.decoder.config(), partial(), metrics);
    return responses.ColumnsOf(rows, tokenizer_, puts_.log_probs, metrics);
  }

  ConsumerOptions consumer_ = {.name = "rollout",
                               .reads = {kPrompt},
                               .writes = {kResponses, kResponseMask, kResponseText, kFinished},
                               .unit = Unit::kGroup};
  const Policy& policy_;
  const text::Tokenizer& tokenizer_;
  const std::unique_ptr<AnswerEngine> engine_;
  const RolloutQuestions questions_;
  const RolloutPuts puts_;
  std::shared_ptr<const model::Decoder> serves_;  // of `puts_.weights`
  int64_t served_ = 0;                            // their version
};

}  // namespace

absl::StatusOr<int64_t> LengthLimits::MaxNewTokens(int64_t max_response_length, int64_t prompt_tokens,
                                                   int64_t context_length) const {
  const int64_t all = max_model_len > 0 ? std::min(max_model_len, context_length) : context_length;
  const int64_t room = all - prompt_tokens - (leaves_last_position ? 1 : 0);
  if (room >= 1) return std::min(max_response_length, room);
  return absl::InvalidArgumentError(absl::StrCat("a prompt of ", prompt_tokens,
                                                 " tokens leaves no room for an answer in ", all, " positions",
                                                 leaves_last_position ? ", of which the last stays free" : ""));
}

std::unique_ptr<Stage> MakeRolloutStage(const Policy& policy, const text::Tokenizer& tokenizer,
                                        std::unique_ptr<AnswerEngine> engine, const engine::SamplingParams& sampling,
                                        const LengthLimits& limits, const RolloutPuts& puts) {
  return std::make_unique<RolloutStage>(policy, tokenizer, std::move(engine), sampling, limits, puts);
}

}  // namespace tdock::trainer
