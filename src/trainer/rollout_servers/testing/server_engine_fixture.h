// For tests: an engine of servers, and what an engine of this process would answer.
#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/testing/patience.h"
#include "engine/engine.h"
#include "model/decoder/testing/models.h"
#include "trainer/rollout_servers/server_engine.h"
#include "trainer/rollout_servers/testing/fake_server.h"

namespace tdock::trainer {

inline const std::function<absl::Status()> kNoStop = {};

// A socket of its own on the loopback interface. Only if it listens are connections made, which nobody accepts.
class SilentPort {
 public:
  explicit SilentPort(bool listens) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_TRUE(!listens || ::listen(socket_, 64) == 0);
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    url_ = absl::StrCat("http://127.0.0.1:", ntohs(address.sin_port));
  }
  ~SilentPort() { ::close(socket_); }
  SilentPort(const SilentPort&) = delete;
  SilentPort& operator=(const SilentPort&) = delete;

  const std::string& url() const { return url_; }

 private:
  const int socket_;
  std::string url_;
};

// By request and sample.
using Answers = std::map<std::pair<engine::RequestId, int64_t>, engine::Answer>;

class ServerEngineTest : public testing::Test {
 protected:
  static model::Decoder Model(uint64_t seed) {
    return model::TinyDecoder(model::TinyConfig(model::Architecture::kQwen2, false), seed, at::kCPU);
  }
  // The policy, as it is at the time.
  std::shared_ptr<const model::Decoder> Policy() const { return {std::shared_ptr<void>(), &policy_}; }

  ServerEngineOptions Options(std::vector<std::string> urls) const {
    return {.urls = std::move(urls),
            .timeout = kNever,
            .answer_timeout = kNever,
            .tries = 3,
            .end_tokens = {2, 3},
            .vocab_size = 29};
  }

  std::unique_ptr<AnswerEngine> Make(const ServerEngineOptions& options, int64_t version = 7) {
    auto engine = MakeServerEngine(options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    if (!engine.ok()) return nullptr;
    const absl::Status served = (*engine)->Serve(Policy(), version, false, kNoStop);
    EXPECT_TRUE(served.ok()) << served;
    return *std::move(engine);
  }

  static engine::Request Ask(int32_t first, int64_t samples = 2) {
    return {.prompt = {.tokens = {first, 5, 6}, .samples = samples, .identity = ~uint64_t{0} - first},
            .sampling = {.temperature = 0.9, .max_new_tokens = 20, .seed = ~uint64_t{9}, .top_p = 0.97}};
  }

  static std::vector<engine::Request> Some(int32_t count = 6) {
    std::vector<engine::Request> requests;
    requests.reserve(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) requests.push_back(Ask(7 + i, 1 + i % 3));
    return requests;
  }

  // What an engine of this process answers.
  Answers Expected(std::vector<engine::Request> requests, int64_t version = 7) const {
    engine::Engine engine(policy_, {.end_tokens = {2, 3}});
    engine.Update([] {}, version);
    Answers answers;
    const absl::Status done = engine.AnswerAll(std::move(requests), [&](std::span<engine::Answer> ended) {
      for (engine::Answer& answer : ended) answers[{answer.request, answer.sample}] = std::move(answer);
      return absl::OkStatus();
    });
    EXPECT_TRUE(done.ok()) << done;
    return answers;
  }

  static void StepInto(AnswerEngine& engine, Answers& answers) {
    auto ended = engine.Step();
    ASSERT_TRUE(ended.ok()) << ended.status();
    for (engine::Answer& answer : *ended) answers[{answer.request, answer.sample}] = std::move(answer);
  }

  static void Finish(AnswerEngine& engine, Answers& answers) {
    const absl::Time until = absl::Now() + kPatience;
    while (engine.HasWork() && absl::Now() < until) ASSERT_NO_FATAL_FAILURE(StepInto(engine, answers));
    EXPECT_FALSE(engine.HasWork());
  }

  static Answers AnswersOf(AnswerEngine& engine, std::vector<engine::Request> requests) {
    std::map<engine::RequestId, engine::RequestId> numbers;
    for (engine::Request& request : requests) {
      const auto id = engine.Add(std::move(request));
      EXPECT_TRUE(id.ok()) << id.status();
      if (id.ok()) numbers.emplace(*id, numbers.size());
    }
    Answers answers, by_number;
    Finish(engine, answers);
    for (auto& [key, answer] : answers) by_number[{numbers.at(key.first), key.second}] = std::move(answer);
    return by_number;
  }

  static void ExpectSame(const Answers& answers, const Answers& expected) {
    ASSERT_EQ(answers.size(), expected.size());
    for (const auto& [key, answer] : expected) {
      const auto found = answers.find(key);
      ASSERT_TRUE(found != answers.end());
      ASSERT_TRUE(found->second.status.ok()) << found->second.status;
      const engine::Completion &has = found->second.completion, &wants = answer.completion;
      EXPECT_EQ(has.tokens, wants.tokens);
      EXPECT_EQ(has.log_probs, wants.log_probs) << "every bit";
      EXPECT_EQ(has.finished, wants.finished);
      EXPECT_EQ(has.finish_reason, wants.finish_reason);
      EXPECT_EQ(has.weights, wants.weights);
      EXPECT_EQ(found->second.version, wants.weights.back().version);
    }
  }

  static std::map<std::string, double> ReportOf(AnswerEngine& engine) {
    StepMetrics metrics;
    engine.Report(metrics);
    return metrics.Values();
  }

  model::Decoder policy_ = Model(21);
  const model::Decoder other_ = Model(22);
};

}  // namespace tdock::trainer
