#include "trainer/rollout_servers/server_engine.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/mutex.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "engine/open_request.h"
#include "trainer/rollout_servers/server_list.h"
#include "trainer/rollout_servers/server_pool.h"
#include "trainer/rollout_servers/tasks.h"

namespace tdock::trainer {
namespace {

constexpr absl::Duration kStep = absl::Milliseconds(50);
// How long the last answers wait for weights that are on their way to a server, which would otherwise keep a place for
// an upload that never ends.
constexpr absl::Duration kHeldBack = absl::Seconds(10);
constexpr int64_t kMostLosses = 20;  // connections that one request may lose
constexpr size_t kLookedAt = 16;     // requests in a row that may find no place at once

bool Has(const std::vector<int32_t>& tokens, int32_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

WireSampling WireSamplingOf(const engine::SamplingParams& params) {
  return {.temperature = params.temperature,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .top_k = params.top_k,
          .repetition_penalty = params.repetition_penalty,
          .presence_penalty = params.presence_penalty,
          .frequency_penalty = params.frequency_penalty,
          .logit_bias = params.logit_bias,
          .seed = params.seed};
}

// What a server cannot be asked for.
absl::Status CheckAskable(const engine::Request& request) {
  const engine::SamplingParams& sampling = request.sampling;
  const bool goes_on = !request.so_far.empty() || request.token_budget > 0;
  const std::pair<const char*, bool> unknown[] = {
      {"a constraint of its tokens (constrain)", static_cast<bool>(request.constrain)},
      {"its tokens one by one (on_token)", static_cast<bool>(request.on_token)},
      {"stop texts (stop)", !sampling.stop.empty()},
      {"the most likely tokens (top_log_probs)", sampling.top_log_probs > 0},
      {"log-probabilities of prompts (prompt_log_probs)", request.prompt_log_probs.has_value()},
      {"log-probabilities after filters (filtered_log_probs)", sampling.filtered_log_probs},
      {"a list of allowed tokens (allowed_tokens)", !sampling.allowed_tokens.empty()},
      {"presence_penalty of an answer that is given in parts", goes_on && sampling.presence_penalty != 0},
      {"frequency_penalty of an answer that is given in parts", goes_on && sampling.frequency_penalty != 0}};
  for (const auto& [what, is_asked] : unknown) {
    if (is_asked) return absl::UnimplementedError(absl::StrCat("servers cannot be asked for ", what));
  }
  return absl::OkStatus();
}

class ServerEngine final : public AnswerEngine {
  // What is asked of a server at once: a prompt, or one answer that goes on.
  struct Part {
    engine::RequestId request = 0;
    int64_t priority = 0;
    uint64_t number = 0;
    int64_t sample = 0;  // the first
    WireRequest wire = {};
    engine::Completion so_far = {};
    int64_t most_tokens = 0;  // with what there is so far
    int64_t tries = 0, losses = 0;
    bool was_refused = false;  // as it is, by one server
    absl::Time waits_since = absl::InfinitePast();
    absl::Time refused_since = absl::InfiniteFuture();  // by servers with too much to do
    const ServerPool::Server* last = nullptr;           // compared, and never dereferenced
    bool has_ended = false;
    Flag unwanted = {};
  };
  struct Open {
    std::vector<std::shared_ptr<Part>> parts = {};
    engine::SamplingParams sampling = {};
    absl::Time deadline = absl::InfiniteFuture();
  };

 public:
  ServerEngine(ServerList list, const ServerEngineOptions& options, Env& env, Clock& clock)
      : options_(options), clock_(clock), pool_(std::move(list), options, env, clock, tasks_, [this] { Wake(); }) {}

  ~ServerEngine() override {
    pool_.Stop();
    MutexLock lock(mu_);
    is_ending_ = true;
    for (const auto& [id, open] : open_) *open.parts.front()->unwanted = true;
    waiting_.clear();
    while (in_progress_ > 0) changed_.Wait(mu_);
  }

  absl::Status Serve(std::shared_ptr<const model::Decoder> decoder, int64_t version, bool in_flight,
                     const std::function<absl::Status()>& check_stop) override {
    if (!in_flight && open() > 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          open(), " answers are in progress, and cannot go on with weights of version ", version, " (in_flight)"));
    }
    // What is on its way to servers are the weights before.
    TDOCK_RETURN_IF_ERROR(Await(check_stop, [&]() -> absl::StatusOr<bool> { return !pool_.sending(); }));
    {
      MutexLock lock(mu_);
      config_ = decoder->config();
    }
    pool_.SetTarget(std::move(decoder), version, in_flight);
    return Await(check_stop, [&]() -> absl::StatusOr<bool> {
      pool_.Tend(/*sends=*/true);
      if (pool_.settled() && pool_.ready() > 0) return true;
      TDOCK_RETURN_IF_ERROR(pool_.Usable());
      return false;
    });
  }

  absl::StatusOr<engine::RequestId> Add(engine::Request request) override {
    TDOCK_RETURN_IF_ERROR(CheckAskable(request));
    MutexLock lock(mu_);
    if (!config_) return absl::FailedPreconditionError("nothing is served yet");
    TDOCK_RETURN_IF_ERROR(engine::CheckRequest(request, {.end_tokens = options_.end_tokens}, config_->vocab_size));
    if (const absl::Status prompt = engine::CheckPrompt(request.prompt, *config_); !prompt.ok()) {
      return absl::Status(prompt.code(), absl::StrCat("the prompt ", prompt.message()));
    }
    const engine::RequestId id = next_id_++;
    Open open{.parts = PartsOf(id, request), .sampling = request.sampling, .deadline = request.deadline};
    if (open_answers_ == 0) busy_since_ = clock_.Now();
    open_answers_ += request.prompt.samples;
    for (const auto& part : open.parts) {
      const engine::FinishReason reason = part->so_far.finish_reason;
      const bool is_whole =
          !part->so_far.tokens.empty() && (reason == engine::FinishReason::kEndToken ||
                                           reason == engine::FinishReason::kStop || part->wire.max_tokens <= 0);
      if (is_whole) {
        End(*part, {.request = id, .sample = part->sample, .completion = std::move(part->so_far)});
      } else {
        Enqueue(part);
      }
    }
    open_.emplace(id, std::move(open));
    Forget(id);
    Dispatch();
    return id;
  }

  bool HasWork() const override {
    MutexLock lock(mu_);
    return open_answers_ > 0 || !ended_.empty();
  }

  absl::StatusOr<std::vector<engine::Answer>> Step() override {
    bool is_waiting = false;
    {
      MutexLock lock(mu_);
      Expire(clock_.Now());
      Dispatch();
      is_waiting = !waiting_.empty();
    }
    pool_.Tend(/*sends=*/is_waiting);
    if (is_waiting) TDOCK_RETURN_IF_ERROR(pool_.Usable());
    MutexLock lock(mu_);
    const absl::Time until = clock_.Now() + kStep;
    while (ended_.empty() && clock_.Now() < until) clock_.Wait(changed_, mu_, until);
    return HoldsBack() ? std::vector<engine::Answer>() : std::exchange(ended_, {});
  }

  absl::Status Abort(engine::RequestId request) override {
    MutexLock lock(mu_);
    const auto found = open_.find(request);
    if (found == open_.end()) return absl::NotFoundError(absl::StrCat("request ", request, " is not open"));
    EndAll(found->second, engine::FinishReason::kAborted);
    Forget(request);
    return absl::OkStatus();
  }

  int64_t open() const override {
    MutexLock lock(mu_);
    return open_answers_;
  }

  absl::Duration computing() const override {
    MutexLock lock(mu_);
    return open_answers_ > 0 ? busy_ + (clock_.Now() - busy_since_) : busy_;
  }

  void Report(StepMetrics& metrics) override {
    const ServerPool::Figures sent = pool_.TakeFigures();
    metrics.Mean("rollout/servers", static_cast<double>(pool_.ready()));
    metrics.Sum("rollout/server_weights_s", absl::ToDoubleSeconds(sent.sending));
    metrics.Sum("rollout/server_weights_bytes", static_cast<double>(sent.bytes));
    MutexLock lock(mu_);
    metrics.Sum("rollout/server_retries", static_cast<double>(std::exchange(retries_, 0)));
    metrics.Sum("rollout/server_wrong_version", static_cast<double>(std::exchange(wrong_versions_, 0)));
  }

 private:
  using Place = std::pair<int64_t, uint64_t>;  // in the order of answering
  static Place PlaceOf(const Part& part) { return {-part.priority, part.number}; }

  // Until `is_done`, which is asked whenever something has changed. What is sent ends with the stop check.
  absl::Status Await(const std::function<absl::Status()>& check_stop,
                     const std::function<absl::StatusOr<bool>()>& is_done) {
    for (;;) {
      TDOCK_ASSIGN_OR_RETURN(const bool done, is_done());
      if (done) return absl::OkStatus();
      const absl::Status stopped = check_stop ? check_stop() : absl::OkStatus();
      if (!stopped.ok()) pool_.StopSending();
      while (!stopped.ok() && pool_.sending()) Pause();
      TDOCK_RETURN_IF_ERROR(stopped);
      Pause();
    }
  }
  void Pause() {
    MutexLock lock(mu_);
    clock_.Wait(changed_, mu_, clock_.Now() + kStep);
  }

  void Wake() {
    {
      MutexLock lock(mu_);
      Dispatch();
    }
    changed_.NotifyAll();
  }

  std::vector<std::shared_ptr<Part>> PartsOf(engine::RequestId id, engine::Request& request) TDOCK_REQUIRES(mu_) {
    const engine::SamplingParams& sampling = request.sampling;
    const int64_t most = engine::LongestOf(request, *config_) - static_cast<int64_t>(request.prompt.tokens.size());
    const uint64_t identity = request.prompt.identity.value_or(id);
    WireRequest whole{.prompt = std::move(request.prompt.tokens),
                      .samples = request.prompt.samples,
                      .max_tokens = request.token_budget > 0 ? std::min(most, request.token_budget) : most,
                      .min_tokens = std::min(sampling.min_new_tokens, most),
                      .ends = sampling.stop_tokens,
                      .sampling = WireSamplingOf(sampling),
                      .identity = identity};
    if (!sampling.ignore_eos)
      whole.ends.insert(whole.ends.end(), options_.end_tokens.begin(), options_.end_tokens.end());
    std::sort(whole.ends.begin(), whole.ends.end());
    whole.ends.erase(std::unique(whole.ends.begin(), whole.ends.end()), whole.ends.end());
    std::vector<std::shared_ptr<Part>> parts;
    const auto unwanted = std::make_shared<std::atomic<bool>>(false);
    const auto add = [&](int64_t sample, WireRequest wire, engine::Completion so_far) {
      parts.push_back(std::make_shared<Part>(Part{.request = id,
                                                  .priority = request.priority,
                                                  .sample = sample,
                                                  .wire = std::move(wire),
                                                  .so_far = std::move(so_far),
                                                  .most_tokens = most,
                                                  .unwanted = unwanted}));
    };
    if (request.so_far.empty()) {
      add(0, std::move(whole), {});
    } else {
      for (size_t i = 0; i < request.so_far.size(); ++i) {
        engine::Completion& so_far = request.so_far[i];
        const auto has = static_cast<int64_t>(so_far.tokens.size());
        WireRequest wire = whole;
        wire.samples = 1;
        wire.prompt.insert(wire.prompt.end(), so_far.tokens.begin(), so_far.tokens.end());
        wire.max_tokens = std::min(wire.max_tokens, most - has);
        wire.min_tokens = std::max<int64_t>(std::min(wire.min_tokens - has, wire.max_tokens), 0);
        if (i > 0) wire.identity = DeriveSeed(identity, i);  // a server has random numbers for sample 0 only
        add(static_cast<int64_t>(i), std::move(wire), std::move(so_far));
      }
    }
    for (const auto& part : parts) {
      part->number = next_part_++;
      part->wire.min_tokens = std::min(part->wire.min_tokens, part->wire.max_tokens);
    }
    return parts;
  }

  void Enqueue(const std::shared_ptr<Part>& part) TDOCK_REQUIRES(mu_) {
    part->waits_since = clock_.Now();
    waiting_.emplace(PlaceOf(*part), part);
  }

  // Gives what waits to servers that have room.
  void Dispatch() TDOCK_REQUIRES(mu_) {
    if (is_ending_) return;
    size_t looked_at = 0;
    for (auto one = waiting_.begin(); one != waiting_.end() && looked_at < kLookedAt;) {
      const std::shared_ptr<Part> part = one->second;
      std::optional<ServerPool::Lease> lease = pool_.Take(part->wire, part->last);
      if (!lease) {
        ++looked_at, ++one;
        continue;
      }
      one = waiting_.erase(one);
      tasks_.Run([this, part, lease = *std::move(lease)] { Ask(*part, part, lease); });
      ++in_progress_;  // before the task can take the lock
    }
  }

  void Ask(const Part& asked, const std::shared_ptr<Part>& part, const ServerPool::Lease& lease) TDOCK_EXCLUDES(mu_) {
    const reward::Patience patience{
        .clock = clock_, .deadline = clock_.Now() + options_.answer_timeout, .check_stop = [&]() -> absl::Status {
          if (!*asked.unwanted && !*lease.cut) return absl::OkStatus();
          return absl::CancelledError("it is no longer wanted");
        }};
    ServerClient::Completed completed;
    try {
      completed = lease.client.Complete(asked.wire, lease.card, options_.vocab_size, patience);
    } catch (const std::exception& error) {  // memory is exhausted
      completed.sent = {.status = absl::ResourceExhaustedError(absl::StrCat(lease.client.shown(), ": ", error.what())),
                        .trouble = Trouble::kFailed};
    }
    const absl::Status stamped = completed.sent.status.ok() ? pool_.Stamp(lease, completed.reply) : absl::OkStatus();
    pool_.Release(lease, completed.sent);
    {
      MutexLock lock(mu_);
      Take(part, lease, completed, stamped);
      Dispatch();
      --in_progress_;
      // With the lock: the destructor waits for this.
      changed_.NotifyAll();
    }
  }

  void Take(const std::shared_ptr<Part>& part, const ServerPool::Lease& lease, ServerClient::Completed& completed,
            const absl::Status& stamped) TDOCK_REQUIRES(mu_) {
    if (part->has_ended || is_ending_) return;
    const Sent& sent = completed.sent;
    if (sent.trouble != Trouble::kOverload) part->last = lease.server.get();
    if (!stamped.ok()) {
      ++wrong_versions_;
      ++part->tries;
      return Again(part, stamped);
    }
    switch (sent.trouble) {
      case Trouble::kNone:
        return TakeAnswers(*part, completed.reply);
      case Trouble::kRefused:
        // One server may know less than the others. What two do not take, none will.
        if (sent.code == 400 && (std::exchange(part->was_refused, true) || pool_.ready() < 2)) {
          return Fail(*part, sent.status);
        }
        ++part->losses;
        break;
      case Trouble::kStopped:  // because the server is gone
      case Trouble::kConnection:
        ++part->losses;
        break;
      case Trouble::kFailed:
        ++part->tries;
        break;
      case Trouble::kOverload:
        part->refused_since = std::min(part->refused_since, clock_.Now());
        break;
    }
    Again(part, sent.status);
  }

  void Again(const std::shared_ptr<Part>& part, const absl::Status& why) TDOCK_REQUIRES(mu_) {
    ++retries_;
    if (part->tries >= options_.tries || part->losses >= kMostLosses) {
      return Fail(*part, absl::UnavailableError(
                             absl::StrCat("it was asked ", part->tries + part->losses,
                                          " times (rollout.server_retries); the last trouble was: ", why.message())));
    }
    if (clock_.Now() - part->refused_since >= options_.timeout) {
      return Fail(*part, absl::UnavailableError(
                             absl::StrCat("servers had too much to do for ", absl::FormatDuration(options_.timeout),
                                          " (rollout.server_timeout); the last one said: ", why.message())));
    }
    Enqueue(part);
  }

  void TakeAnswers(Part& part, WireReply& reply) TDOCK_REQUIRES(mu_) {
    const engine::SamplingParams& sampling = open_.at(part.request).sampling;
    for (size_t i = 0; i < reply.answers.size(); ++i) {
      WireAnswer& answer = reply.answers[i];
      engine::Completion completion = part.so_far;
      const int32_t last = answer.tokens.back();
      completion.tokens.insert(completion.tokens.end(), answer.tokens.begin(), answer.tokens.end());
      completion.log_probs.insert(completion.log_probs.end(), answer.log_probs.begin(), answer.log_probs.end());
      for (const WireSpan& span : answer.weights) {
        if (!completion.weights.empty() && completion.weights.back().version == span.version) {
          completion.weights.back().tokens += span.tokens;
        } else {
          completion.weights.push_back({.version = span.version, .tokens = span.tokens});
        }
      }
      const bool is_end = !sampling.ignore_eos && Has(options_.end_tokens, last);
      const bool is_stop = Has(sampling.stop_tokens, last);
      const bool is_full = std::cmp_greater_equal(completion.tokens.size(), part.most_tokens);
      completion.finished = is_end || is_stop;
      completion.finish_reason = is_end    ? engine::FinishReason::kEndToken
                                 : is_stop ? engine::FinishReason::kStop
                                 : is_full ? engine::FinishReason::kLength
                                           : engine::FinishReason::kBudget;
      const int64_t version = completion.weights.back().version;
      End(part, {.request = part.request,
                 .sample = part.sample + static_cast<int64_t>(i),
                 .completion = std::move(completion),
                 .version = version});
    }
    Forget(part.request);
  }

  void Fail(Part& part, const absl::Status& status) TDOCK_REQUIRES(mu_) {
    for (int64_t i = 0; i < part.wire.samples; ++i) {
      End(part, {.request = part.request, .sample = part.sample + i, .status = status});
    }
    Forget(part.request);
  }

  void End(Part& part, engine::Answer answer) TDOCK_REQUIRES(mu_) {
    part.has_ended = true;
    ended_.push_back(std::move(answer));
    if (--open_answers_ == 0) busy_ += clock_.Now() - busy_since_;
  }

  // What has not ended yet, as it is.
  void EndAll(Open& open, engine::FinishReason reason) TDOCK_REQUIRES(mu_) {
    for (const auto& part : open.parts) {
      if (part->has_ended) continue;
      *part->unwanted = true;
      waiting_.erase(PlaceOf(*part));
      engine::Completion completion = part->so_far;
      completion.finish_reason = reason;
      for (int64_t i = 0; i < part->wire.samples; ++i) {
        End(*part, {.request = part->request, .sample = part->sample + i, .completion = completion});
      }
    }
    changed_.NotifyAll();
  }

  // A request of which nothing is open.
  void Forget(engine::RequestId request) TDOCK_REQUIRES(mu_) {
    const auto found = open_.find(request);
    if (found == open_.end()) return;
    const bool has_ended = std::all_of(found->second.parts.begin(), found->second.parts.end(),
                                       [](const std::shared_ptr<Part>& part) { return part->has_ended; });
    if (has_ended) open_.erase(found);
  }

  // Ends requests whose deadline has passed, and those that no server has had room for.
  void Expire(absl::Time now) TDOCK_REQUIRES(mu_) {
    std::vector<engine::RequestId> late;
    for (const auto& [id, open] : open_) {
      if (open.deadline <= now) late.push_back(id);
    }
    for (const engine::RequestId id : late) {
      EndAll(open_.at(id), engine::FinishReason::kDeadline);
      Forget(id);
    }
    while (!waiting_.empty() && in_progress_ == 0 && pool_.ready() > 0) {
      const std::shared_ptr<Part> part = waiting_.begin()->second;
      if (now - part->waits_since < options_.timeout) return;
      waiting_.erase(waiting_.begin());
      Fail(*part, absl::UnavailableError(absl::StrCat("for ", absl::FormatDuration(options_.timeout),
                                                      " (rollout.server_timeout) no server had room for a prompt of ",
                                                      part->wire.prompt.size(), " tokens and an answer of ",
                                                      part->wire.max_tokens, ":", pool_.Troubles())));
    }
  }

  // Whether the last answers wait until weights have arrived: after them, the weights may change.
  bool HoldsBack() TDOCK_REQUIRES(mu_) {
    if (open_answers_ > 0 || ended_.empty() || !pool_.sending()) {
      held_since_ = absl::InfiniteFuture();
      return false;
    }
    const absl::Time now = clock_.Now();
    held_since_ = std::min(held_since_, now);
    const bool is_given_up = std::all_of(ended_.begin(), ended_.end(), [](const engine::Answer& answer) {
      return answer.completion.finish_reason == engine::FinishReason::kAborted;
    });
    if (is_given_up || now - held_since_ >= kHeldBack) pool_.StopSending();
    clock_.Wait(changed_, mu_, now + kStep);
    return true;
  }

  const ServerEngineOptions options_;
  Clock& clock_;
  mutable Mutex mu_;
  CondVar changed_;
  std::optional<model::ModelConfig> config_ TDOCK_GUARDED_BY(mu_);
  engine::RequestId next_id_ TDOCK_GUARDED_BY(mu_) = 0;
  uint64_t next_part_ TDOCK_GUARDED_BY(mu_) = 0;
  std::map<engine::RequestId, Open> open_ TDOCK_GUARDED_BY(mu_);
  std::map<Place, std::shared_ptr<Part>> waiting_ TDOCK_GUARDED_BY(mu_);
  std::vector<engine::Answer> ended_ TDOCK_GUARDED_BY(mu_);
  int64_t open_answers_ TDOCK_GUARDED_BY(mu_) = 0;
  int64_t in_progress_ TDOCK_GUARDED_BY(mu_) = 0;  // parts that servers have
  absl::Time busy_since_ TDOCK_GUARDED_BY(mu_);
  absl::Duration busy_ TDOCK_GUARDED_BY(mu_) = absl::ZeroDuration();
  absl::Time held_since_ TDOCK_GUARDED_BY(mu_) = absl::InfiniteFuture();
  int64_t retries_ TDOCK_GUARDED_BY(mu_) = 0, wrong_versions_ TDOCK_GUARDED_BY(mu_) = 0;
  bool is_ending_ TDOCK_GUARDED_BY(mu_) = false;
  ServerPool pool_;
  Tasks tasks_;  // ends first
};

}  // namespace

absl::StatusOr<std::unique_ptr<AnswerEngine>> MakeServerEngine(const ServerEngineOptions& options) {
  if (options.connections < 1 || options.tries < 1 || options.vocab_size < 1) {
    return absl::InvalidArgumentError("connections, tries and vocab_size must be at least 1");
  }
  if (options.weights == ServerWeights::kFolder && options.weights_folder.empty()) {
    return absl::InvalidArgumentError("weights_folder must say where the folders for servers are written");
  }
  if (options.weights == ServerWeights::kNccl && !options.open_group) {
    return absl::InvalidArgumentError("open_group must make the groups that weights are sent through");
  }
  Env& env = options.env == nullptr ? Env::Real() : *options.env;
  Clock& clock = options.clock == nullptr ? Clock::Real() : *options.clock;
  TDOCK_ASSIGN_OR_RETURN(ServerList list, ServerList::Of(options, env));
  return std::make_unique<ServerEngine>(std::move(list), options, env, clock);
}

}  // namespace tdock::trainer
