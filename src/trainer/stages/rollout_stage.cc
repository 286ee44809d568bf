#include <algorithm>
#include <cmath>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "model/files/flops.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/model_time.h"
#include "trainer/stages/stages.h"

namespace tdock::trainer {
namespace {

constexpr absl::Duration kBetweenLeaseRenewals = absl::Minutes(1);

class RolloutStage final : public Stage {
  // The rows that are asked for, and what has come.
  struct Responses {
    std::vector<std::vector<size_t>> rows;        // of each request, one for each of its samples
    std::vector<size_t> group_of_row;             // a number
    std::vector<int64_t> missing;                 // of each group: responses that are not there yet
    std::vector<bool> is_too_short;               // of each group: whether a response is
    std::vector<int64_t> prompt_lengths;          // of each row
    std::vector<bool> reads_prompt;               // of each row: the others of its request share what it read
    std::vector<int64_t> max_new_tokens;          // of each row
    std::vector<engine::Completion> completions;  // of each row
    std::vector<GroupId> groups;                  // by their numbers
    std::vector<size_t> ready;                    // groups that are there, and not put
    std::vector<size_t> too_short;                // groups that are there, with an answer that is too short
    std::vector<size_t> unfinished;               // rows whose answers are to be gone on with
    std::vector<size_t> so_far;                   // of each row: the tokens that it had before
    size_t put = 0;                               // groups that are put, put back or dropped

    bool AllAreReady() const { return ready.size() + too_short.size() + unfinished.size() + put == missing.size(); }

    // The oldest weights that made the tokens which a row has got now.
    int64_t VersionOf(size_t row) const {
      int64_t version = completions[row].weights.empty() ? 0 : completions[row].weights.back().version;
      size_t end = 0;
      for (const engine::WeightsSpan& span : completions[row].weights) {
        end += static_cast<size_t>(span.tokens);
        if (end > so_far[row]) version = std::min(version, span.version);
      }
      return version;
    }

    // An answer to the request with this number.
    absl::Status Take(size_t request, engine::Answer& answer, int64_t min_tokens) {
      if (!answer.status.ok()) return Annotate(answer.status, absl::StrCat("prompt ", request));
      const size_t row = rows[request][static_cast<size_t>(answer.sample)];
      completions[row] = std::move(answer.completion);
      if (completions[row].finish_reason == engine::FinishReason::kBudget) {
        unfinished.push_back(row);
        return absl::OkStatus();
      }
      const size_t group = group_of_row[row];
      if (std::cmp_less(completions[row].tokens.size(), min_tokens)) is_too_short[group] = true;
      if (--missing[group] == 0) (is_too_short[group] ? too_short : ready).push_back(group);
      return absl::OkStatus();
    }

    std::vector<size_t> RowsOf(const std::vector<size_t>& some) const {
      std::vector<bool> is_one(missing.size(), false);
      for (const size_t group : some) is_one[group] = true;
      std::vector<size_t> found;
      for (size_t row = 0; row < group_of_row.size(); ++row) {
        if (is_one[group_of_row[row]]) found.push_back(row);
      }
      return found;
    }
  };

  // Rows that were taken together.
  struct Portion {
    Responses responses = {};
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
  RolloutStage(const Policy& policy, const text::Tokenizer& tokenizer, const engine::EngineOptions& engine,
               const engine::SamplingParams& sampling, const LengthLimits& limits, RolloutPuts puts)
      : policy_(policy),
        tokenizer_(tokenizer),
        engine_(policy.decoder, engine),
        max_rows_(engine.max_rows),
        sampling_(sampling),
        limits_(limits),
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
    Responses responses;
    TDOCK_ASSIGN_OR_RETURN(std::vector<engine::Request> requests, Ask(rows, responses));
    engine_.Update([] {}, policy_.version);
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
    const absl::Duration before = engine_.stats().computing;
    const absl::Status answered = engine_.AnswerAll(std::move(requests), after_step);
    ModelTime::Add(consumer_.name, engine_.stats().computing - before, context.metrics);
    TDOCK_RETURN_IF_ERROR(answered);
    if (partial()) TDOCK_RETURN_IF_ERROR(PutBack(responses, context));
    return OutputOf(responses, context);
  }

  // What is not put yet.
  absl::StatusOr<StageOutput> OutputOf(Responses& responses, StageContext& context) const {
    StageOutput output{.columns = {}, .weights_version = policy_.version};
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
      TDOCK_ASSIGN_OR_RETURN(output.columns, ColumnsOf(responses, responses.RowsOf(responses.ready), context));
    }
    return output;
  }

  // With the weights of `puts_.weights`; as answers end, further rows are taken in their place, so that the engine has
  // always as much to do as there is. Everything is put before the end. Those who hand out more keep the leases.
  absl::StatusOr<StageOutput> RunServed(const Rows& rows, StageContext& context) {
    ServeNewest();
    Served served;
    absl::Time put = absl::Now(), looked = put;
    absl::Duration computed = engine_.stats().computing;
    const auto put_all = [&] {
      const absl::Duration computing = engine_.stats().computing;
      ModelTime::Add(consumer_.name, computing - std::exchange(computed, computing), context.metrics);
      return PutAll(served);
    };
    absl::Status status = AskServed(rows, &context, nullptr, served);
    while (status.ok() && engine_.HasWork()) {
      status = TakeServed(engine_.Step(), served);
      if (status.ok()) status = context.check_stop();
      context.progress();
      if (puts_.in_flight) ServeNewest();
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
    for (const auto& [id, asked] : served.asked) engine_.Abort(id).IgnoreError();  // it may have ended
    while (engine_.HasWork()) engine_.Step();
    return status;
  }

  bool ServesNewest() const {
    const WeightFeed::Weights newest = puts_.weights->Newest();
    return newest.version == served_ && serves_.get() == newest.decoder.get();
  }

  // Answers that wait for their end with the weights that they were begun with do not let newer ones in.
  bool MayTakeMore(const StageContext& context) const {
    if (context.more == nullptr || DropsAtEnd() || (!puts_.in_flight && !ServesNewest())) return false;
    const engine::EngineStats stats = engine_.stats();
    return stats.running + stats.waiting < max_rows_;
  }

  void ServeNewest() {
    if (ServesNewest()) return;
    WeightFeed::Weights newest = puts_.weights->Newest();
    engine_.Serve(newest.decoder, newest.version);
    serves_ = std::move(newest.decoder);
    served_ = newest.version;
  }

  // Rows of a group with the same prompt are samples of one request.
  absl::StatusOr<std::vector<engine::Request>> Ask(const Rows& rows, Responses& responses) const {
    std::vector<engine::Request> requests;
    responses.completions.resize(rows.size());
    uint64_t number = 0;  // in the group
    for (size_t i = 0; i < rows.size(); ++i) {
      TDOCK_ASSIGN_OR_RETURN(const std::span<const int32_t> tokens, rows.Get<int32_t>(i, kPrompt));
      // Of partial rollouts, each row is by itself.
      const bool same_group = !partial() && i > 0 && rows.groups()[i] == rows.groups()[i - 1];
      number = same_group ? number + 1 : 0;
      if (!same_group) {
        responses.missing.push_back(0);
        responses.is_too_short.push_back(false);
        responses.groups.push_back(rows.groups()[i]);
      }
      ++responses.missing.back();
      responses.group_of_row.push_back(responses.missing.size() - 1);
      const auto length = static_cast<int64_t>(tokens.size());
      const bool same_prompt =
          same_group && std::equal(tokens.begin(), tokens.end(), requests.back().prompt.tokens.begin(),
                                   requests.back().prompt.tokens.end());
      if (same_prompt) {
        ++requests.back().prompt.samples;
      } else {
        uint64_t group = DeriveSeed(rows.groups()[i], rows.epoch(i));
        if (partial()) group = DeriveSeed(group, rows.ids()[i]);
        engine::Request& request = requests.emplace_back();
        request.prompt = {
            .tokens = {tokens.begin(), tokens.end()}, .samples = 1, .identity = DeriveSeed(group, number)};
        request.sampling = sampling_;
        const absl::StatusOr<int64_t> room =
            limits_.MaxNewTokens(sampling_.max_new_tokens, length, policy_.decoder.config().context_length());
        if (!room.ok()) return Annotate(room.status(), absl::StrCat("row ", rows.ids()[i]));
        request.sampling.max_new_tokens = *room;
        request.sampling.min_new_tokens = std::min(sampling_.min_new_tokens, *room);
        responses.rows.emplace_back();
        if (partial()) TDOCK_RETURN_IF_ERROR(GoOn(rows, i, request));
      }
      responses.so_far.push_back(requests.back().so_far.empty() ? 0 : requests.back().so_far.front().tokens.size());
      responses.rows.back().push_back(i);
      responses.prompt_lengths.push_back(length);
      responses.reads_prompt.push_back(!same_prompt);
      responses.max_new_tokens.push_back(requests.back().sampling.max_new_tokens);
    }
    return requests;
  }

  // Adds what the row has already.
  absl::Status GoOn(const Rows& rows, size_t row, engine::Request& request) const {
    request.token_budget = puts_.token_budget;
    TDOCK_ASSIGN_OR_RETURN(const size_t column, rows.FindColumn(kResponses));
    if (!rows.Has(row, column)) return absl::OkStatus();
    engine::Completion& so_far = request.so_far.emplace_back();
    TDOCK_ASSIGN_OR_RETURN(const std::span<const int32_t> tokens, rows.Get<int32_t>(row, kResponses));
    TDOCK_ASSIGN_OR_RETURN(const std::span<const float> log_probs, rows.Get<float>(row, puts_.log_probs.front()));
    TDOCK_ASSIGN_OR_RETURN(const std::vector<Piece> pieces, rows.Pieces(row, kResponses));
    so_far.tokens.assign(tokens.begin(), tokens.end());
    so_far.log_probs.assign(log_probs.begin(), log_probs.end());
    so_far.finish_reason = engine::FinishReason::kBudget;
    int64_t begin = 0;
    for (const Piece& piece : pieces) {
      so_far.weights.push_back({piece.weights_version, piece.end - begin});
      begin = piece.end;
    }
    return absl::OkStatus();
  }

  // Adds a portion, of what was taken further or of the rows of Run(), and asks the engine.
  absl::Status AskServed(const Rows& rows, StageContext* context, std::unique_ptr<FurtherRows> further,
                         Served& served) {
    Portion& portion = served.portions.emplace_back();
    portion.context = context;
    portion.further = std::move(further);
    TDOCK_ASSIGN_OR_RETURN(std::vector<engine::Request> requests, Ask(rows, portion.responses));
    for (size_t i = 0; i < requests.size(); ++i) {
      const absl::StatusOr<engine::RequestId> id = engine_.Add(std::move(requests[i]));
      if (!id.ok()) return Annotate(id.status(), absl::StrCat("prompt ", i));
      portion.requests.push_back(*id);
      served.asked[*id] = {&portion, i};
    }
    return absl::OkStatus();
  }

  absl::Status TakeServed(std::vector<engine::Answer> ended, Served& served) const {
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
    if (puts_.in_flight) ServeNewest();
    if (!ServesNewest()) return absl::OkStatus();
    FurtherRows& rows = *further;
    return AskServed(rows.taken.rows, &rows.context, std::move(further), served);
  }

  // What is there, those of the same weights together, and those of one group by the oldest of them.
  absl::Status PutReady(Responses& responses, StageContext& context) const {
    std::map<int64_t, std::vector<size_t>> groups;  // by their versions
    for (const size_t group : std::exchange(responses.ready, {}))
      groups[VersionOfGroup(responses, group)].push_back(group);
    for (const auto& [version, of_version] : groups) {
      const std::vector<size_t> rows = responses.RowsOf(of_version);
      TDOCK_ASSIGN_OR_RETURN(Batch columns, ColumnsOf(responses, rows, context));
      TDOCK_RETURN_IF_ERROR(context.publish(rows, std::move(columns), version));
      responses.put += of_version.size();
    }
    return absl::OkStatus();
  }

  int64_t VersionOfGroup(const Responses& responses, size_t group) const {
    if (puts_.weights == nullptr && !partial()) return policy_.version;
    int64_t version = std::numeric_limits<int64_t>::max();
    for (size_t row = 0; row < responses.group_of_row.size(); ++row) {
      if (responses.group_of_row[row] == group) version = std::min(version, responses.VersionOf(row));
    }
    return version;
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

  static absl::Status DropShort(Responses& responses, StageContext& context) {
    const std::vector<size_t> groups = std::exchange(responses.too_short, {});
    context.metrics.Sum("rollout/dropped_groups", static_cast<double>(groups.size()));
    if (groups.empty()) return absl::OkStatus();
    responses.put += groups.size();
    return context.drop(responses.RowsOf(groups));
  }

  // The answers that are not at their end.
  absl::Status PutBack(Responses& responses, StageContext& context) const {
    std::map<int64_t, std::vector<size_t>> rows;  // by their versions
    for (const size_t row : responses.unfinished) rows[responses.VersionOf(row)].push_back(row);
    ReportWork(responses, responses.unfinished, context.metrics);
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
  absl::StatusOr<Batch> ColumnsOf(const Responses& responses, const std::vector<size_t>& rows,
                                  StageContext& context) const {
    std::vector<std::vector<int32_t>> tokens;
    std::vector<std::vector<uint8_t>> masks;
    std::vector<std::string> texts;
    std::vector<std::vector<float>> log_probs;
    std::vector<uint8_t> finished;
    std::vector<float> lengths;
    for (const size_t row : rows) {
      const engine::Completion& completion = responses.completions[row];
      tokens.push_back(completion.tokens);
      masks.emplace_back(completion.tokens.size(), uint8_t{1});
      TDOCK_ASSIGN_OR_RETURN(texts.emplace_back(), ResponseText(tokenizer_, completion.tokens, completion.finished));
      log_probs.push_back(completion.log_probs);
      finished.push_back(completion.finished ? 1 : 0);
      lengths.push_back(static_cast<float>(completion.tokens.size()));
      const bool clipped = std::cmp_equal(completion.tokens.size(), responses.max_new_tokens[row]);
      context.metrics.Mean("response_length/clip_ratio", clipped ? 1.0 : 0.0);
      context.metrics.Mean("response_length/finished", completion.finished ? 1.0 : 0.0);
    }
    context.metrics.Distribution("response_length", lengths);
    ReportWork(responses, rows, context.metrics);
    Batch columns;
    TDOCK_RETURN_IF_ERROR(columns.Add(kResponses, Column::FromRows(tokens)));
    TDOCK_RETURN_IF_ERROR(columns.Add(kResponseMask, Column::FromRows(masks)));
    TDOCK_RETURN_IF_ERROR(columns.Add(kResponseText, Column::FromStrings(texts)));
    TDOCK_RETURN_IF_ERROR(columns.Add(kFinished, Column::FromValues(finished)));
    for (const std::string& name : puts_.log_probs) {
      TDOCK_RETURN_IF_ERROR(columns.Add(name, Column::FromRows(log_probs)));
    }
    return columns;
  }

  // Each prompt passes through the model once.
  void ReportWork(const Responses& responses, const std::vector<size_t>& rows, StepMetrics& metrics) const {
    const model::ModelConfig& config = policy_.decoder.config();
    double flops = 0;
    int64_t generated = 0;
    for (const size_t row : rows) {
      const int64_t length = responses.prompt_lengths[row];
      const auto all = static_cast<int64_t>(responses.completions[row].tokens.size());
      const double once = model::ForwardFlops(config, length);
      flops += model::ForwardFlops(config, length + all) - once + (responses.reads_prompt[row] ? once : 0);
      generated += all - static_cast<int64_t>(responses.so_far[row]);
    }
    if (partial()) {
      const auto continued =
          std::count_if(rows.begin(), rows.end(), [&](size_t row) { return responses.so_far[row] > 0; });
      metrics.Sum("rollout/continued", static_cast<double>(continued));
    }
    metrics.Sum("perf/flops/rollout", flops);
    metrics.Sum("perf/num_generated_tokens", static_cast<double>(generated));
  }

  ConsumerOptions consumer_ = {.name = "rollout",
                               .reads = {kPrompt},
                               .writes = {kResponses, kResponseMask, kResponseText, kFinished},
                               .unit = Unit::kGroup};
  const Policy& policy_;
  const text::Tokenizer& tokenizer_;
  engine::Engine engine_;
  const int64_t max_rows_;
  const engine::SamplingParams sampling_;
  const LengthLimits limits_;
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
                                        const engine::EngineOptions& engine, const engine::SamplingParams& sampling,
                                        const LengthLimits& limits, const RolloutPuts& puts) {
  return std::make_unique<RolloutStage>(policy, tokenizer, engine, sampling, limits, puts);
}

}  // namespace tdock::trainer
