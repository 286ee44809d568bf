#include "trainer/reward/external/http_source.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/mutex.h"
#include "core/base/retry.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/base/workers.h"
#include "trainer/reward/external/http_post.h"
#include "trainer/reward/external/protocol.h"

namespace tdock::reward {
namespace {

constexpr absl::Duration kMostWait = absl::Seconds(30);  // that a server may ask for
constexpr int kDeepestAnswer = 16;

// What came of a request.
struct Outcome {
  absl::Status status = {};           // OK if each sample has a score
  std::vector<size_t> unscored = {};  // of the indexes that were sent
  bool repeat = false;                // it may be different for the same samples
  bool one_by_one = false;            // it may be the fault of one of them
  absl::Duration wait = absl::ZeroDuration();
};

class HttpSource final : public ScoreSource {
 public:
  HttpSource(HttpOptions options, HttpServer server) : options_(std::move(options)), server_(std::move(server)) {}

  const std::string& name() const override { return options_.name; }

  absl::Status Score(std::span<const Answer> answers, const StopCheck& check_stop, const SourceSink& sink) override {
    const auto batch = static_cast<size_t>(options_.batch_size);
    const size_t batches = (answers.size() + batch - 1) / batch;
    std::atomic<size_t> next = 0;
    Mutex mu;
    absl::Status failed;
    const auto serve = [&] {
      for (size_t i = next++; i < batches; i = next++) {
        std::vector<size_t> indexes;
        for (size_t k = i * batch; k < std::min(answers.size(), (i + 1) * batch); ++k) indexes.push_back(k);
        const absl::Status status = ScoreBatch(answers, indexes, check_stop, sink);
        if (status.ok()) continue;
        next = batches;
        MutexLock lock(mu);
        if (failed.ok()) failed = status;
      }
    };
    const int threads = static_cast<int>(std::min(batches, static_cast<size_t>(options_.connections)));
    if (threads > 0) Workers(threads).Run(threads, [&](int) { serve(); });
    return failed;
  }

 private:
  // Fails only with the error of `check_stop`.
  absl::Status ScoreBatch(std::span<const Answer> answers, const std::vector<size_t>& indexes,
                          const StopCheck& check_stop, const SourceSink& sink) {
    const Outcome whole = SendRepeatedly(answers, indexes, check_stop, sink);
    TDOCK_RETURN_IF_ERROR(check_stop());
    for (const size_t index : whole.unscored) {
      if (!whole.one_by_one || indexes.size() == 1) {
        sink(index, whole.status);
        continue;
      }
      const Outcome alone = SendRepeatedly(answers, {index}, check_stop, sink);
      TDOCK_RETURN_IF_ERROR(check_stop());
      if (!alone.status.ok()) sink(index, alone.status);
    }
    return absl::OkStatus();
  }

  // A batch of several is repeated only for what is nobody's fault.
  Outcome SendRepeatedly(std::span<const Answer> answers, std::vector<size_t> indexes, const StopCheck& check_stop,
                         const SourceSink& sink) {
    Outcome outcome;
    absl::Time not_before = absl::InfinitePast();
    int64_t tries = 0;
    // The tries bound it; each of them has a deadline.
    const absl::Status status = Retry(
        options_.clock, absl::InfiniteFuture(),
        Backoff({.initial = absl::Milliseconds(100), .max = absl::Seconds(1)}, ++seed_),
        [&](const absl::Status&) {
          const bool blameless = outcome.repeat && (!outcome.one_by_one || indexes.size() == 1);
          return blameless && tries <= options_.retries && check_stop().ok();
        },
        [&]() -> absl::Status {
          const Patience waiting{.clock = options_.clock, .deadline = absl::InfiniteFuture(), .check_stop = check_stop};
          TDOCK_RETURN_IF_ERROR(waiting.SleepUntil(not_before, "the server to be ready"));
          ++tries;
          outcome = Send(answers, indexes, check_stop, sink);
          not_before = options_.clock.Now() + std::min(outcome.wait, kMostWait);
          return outcome.status;
        });
    if (!status.ok() && tries > 1) {
      outcome.status = Annotate(outcome.status, absl::StrCat("after ", tries, " tries"));
    }
    if (outcome.unscored.empty() && !outcome.status.ok()) outcome.unscored = std::move(indexes);
    return outcome;
  }

  // One request.
  Outcome Send(std::span<const Answer> answers, const std::vector<size_t>& indexes, const StopCheck& check_stop,
               const SourceSink& sink) {
    nlohmann::json samples = nlohmann::json::array();
    for (const size_t index : indexes) samples.push_back(SampleJson(answers[index], index));
    const nlohmann::json request = {{"protocol", kProtocolVersion}, {"samples", std::move(samples)}};
    const std::string text = JsonText(request);
    const absl::Time begun = options_.clock.Now();
    const Patience patience{.clock = options_.clock,
                            .deadline = begun + options_.timeout * static_cast<double>(indexes.size()),
                            .check_stop = check_stop};
    const absl::StatusOr<HttpReply> reply = PostJson(server_, text, patience);
    const double seconds = absl::ToDoubleSeconds(options_.clock.Now() - begun);
    Outcome outcome = reply.ok() ? Judge(*reply, indexes, seconds, sink) : NoReply(reply.status());
    if (!outcome.status.ok()) outcome.status = OfServer(server_, outcome.status);
    return outcome;
  }

  static Outcome NoReply(const absl::Status& status) {
    // An answer that is too long or late may be due to one sample.
    const bool lost = absl::IsUnavailable(status);
    const bool blamed =
        absl::IsDeadlineExceeded(status) || absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status);
    return {.status = status, .unscored = {}, .repeat = lost || blamed, .one_by_one = blamed};
  }

  Outcome Judge(const HttpReply& reply, const std::vector<size_t>& indexes, double seconds,
                const SourceSink& sink) const {
    if (reply.code == 200) return Take(reply.body, indexes, seconds, sink);
    const absl::Status error = CodeError(reply, "reward.url");
    const bool overload = IsOverload(reply.code);
    const bool refused = absl::IsFailedPrecondition(error);
    return {.status = error,
            .unscored = {},
            .repeat = !refused,
            .one_by_one = !refused && !overload,
            .wait = overload ? reply.wait.value_or(absl::ZeroDuration()) : absl::ZeroDuration()};
  }

  // Passes on the scores of an answer. Samples are sent again for an error that the server says itself, and for what is
  // no JSON; an answer that has no score for one of them, or one too many, would only hide that.
  Outcome Take(const std::string& body, const std::vector<size_t>& indexes, double seconds,
               const SourceSink& sink) const {
    Outcome outcome{.status = {}, .unscored = indexes, .repeat = true, .one_by_one = true};
    const absl::StatusOr<nlohmann::json> json = ParseJsonObject(body, kDeepestAnswer);
    if (!json.ok()) {
      outcome.status =
          absl::InvalidArgumentError(absl::StrCat("answered ", Quoted(body), ", which is ", json.status().message()));
      return outcome;
    }
    absl::StatusOr<std::vector<ScoredSample>> scores = ParseScores(*json);
    outcome.status = scores.ok() ? CheckSamples(*scores, indexes) : scores.status();
    if (!outcome.status.ok()) {
      outcome.repeat = outcome.one_by_one = false;
      return outcome;
    }
    outcome.unscored.clear();
    for (ScoredSample& scored : *scores) {
      const auto index = static_cast<size_t>(scored.sample);
      if (scored.score.ok()) {
        scored.score->seconds = seconds;
        sink(index, std::move(scored.score));
        continue;
      }
      const absl::Status bad = Annotate(scored.score.status(), absl::StrCat("sample ", index));
      if (IsRepeatable(bad)) {
        outcome.status = bad;
        outcome.unscored.push_back(index);
      } else {
        sink(index, OfServer(server_, bad));
      }
    }
    return outcome;
  }

  // Checks that each sample that was asked for is there, once, and no other one.
  static absl::Status CheckSamples(const std::vector<ScoredSample>& scores, const std::vector<size_t>& asked) {
    absl::flat_hash_set<size_t> due(asked.begin(), asked.end());
    for (const ScoredSample& scored : scores) {
      if (scored.sample >= 0 && due.erase(static_cast<size_t>(scored.sample)) == 1) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("answered for sample ", scored.sample, ", which was not asked for, or more than once"));
    }
    if (due.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("answered for ", scores.size(), " of ", asked.size(),
                     " samples; it must give a score, null or an error for each, also for ",
                     *std::min_element(due.begin(), due.end())));
  }

  const HttpOptions options_;
  const HttpServer server_;
  std::atomic<uint64_t> seed_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ScoreSource>> MakeHttpSource(const HttpOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(HttpServer server, MakeHttpServer({.url = options.url,
                                                            .token_env = options.token_env,
                                                            .ca_file = options.ca_file,
                                                            .verify = options.verify,
                                                            .key = "reward.url"}));
  return std::make_unique<HttpSource>(options, std::move(server));
}

absl::StatusOr<std::string> HttpSourceName(const std::string& url) {
  TDOCK_ASSIGN_OR_RETURN(const HttpUrl parsed, ParseHttpUrl(url));
  return absl::StrCat(parsed.host, parsed.target.substr(0, parsed.target.find('?')));
}

}  // namespace tdock::reward
