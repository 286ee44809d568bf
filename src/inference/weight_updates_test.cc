#include "inference/weight_updates.h"

#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "core/base/testing/fake_clock.h"
#include "core/base/testing/patience.h"
#include "core/tensor/checksum.h"
#include "model/decoder/testing/models.h"
#include "nlohmann/json.hpp"

namespace tdock::inference {
namespace {

using Json = nlohmann::json;
using model::Decoder;
using testing::AllOf;
using testing::HasSubstr;

class WeightUpdatesTest : public testing::Test {
 protected:
  WeightUpdatesTest() {
    auto first = std::make_shared<const Decoder>(model::TinyDecoder(config_, 1, at::kCPU));
    first_ = first;
    for (auto& engine : engines_) {
      engine = std::make_unique<engine::Engine>(*first, engine::EngineOptions{});
      engine->Serve(first, 0);
      replicas_.push_back(std::make_unique<Replica>(*engine));
      model_.engines.push_back(engine.get());
    }
    model_.instance = "0123456789abcdef";
    model_.load = [this](const std::string& folder) -> absl::StatusOr<Decoder> {
      if (folder != "there") return absl::NotFoundError("no such folder");
      Decoder decoder = model::TinyDecoder(config_, 50, at::kCPU);
      decoder.SetBatchInvariant(true);
      return decoder;
    };
    model_.blank = [this]() -> absl::StatusOr<Decoder> {
      ++made_;
      return Decoder::Uninitialised(config_, at::kCPU);
    };
    updates_ = std::make_unique<WeightUpdates>(model_, replicas_, metrics_, AskLimits(), 1 << 20, clock_);
  }

  std::pair<int, Json> Ask(std::string query, std::string body) {
    http::Request request{.method = "POST", .path = "/update_weights"};
    request.query = std::move(query);
    request.body = std::move(body);
    const http::Response response = updates_->Update(request);
    return {response.status, Json::parse(response.body)};
  }
  static std::string TensorsOf(const Decoder& decoder) {
    Json tensors = Json::array();
    for (const auto& [name, weight] : decoder.NamedWeights()) {
      tensors.push_back({{"name", name}, {"dtype", "F32"}, {"shape", weight.sizes().vec()}});
    }
    return Json{{"tensors", tensors}}.dump();
  }
  static std::string BytesOf(const Decoder& decoder) {
    std::string bytes;
    for (const auto& [name, weight] : decoder.NamedWeights()) {
      const at::Tensor numbers = weight.contiguous();
      bytes.append(static_cast<const char*>(numbers.const_data_ptr()), numbers.nbytes());
    }
    return bytes;
  }
  std::string Begin(const Decoder& decoder) {
    const auto [status, answer] = Ask("", TensorsOf(decoder));
    EXPECT_EQ(status, 200) << answer;
    return answer.value("upload", "");
  }
  std::pair<int, Json> SendAndEnd(const std::string& upload, const Decoder& decoder) {
    const std::string bytes = BytesOf(decoder);
    EXPECT_EQ(Ask(absl::StrCat("upload=", upload, "&offset=0"), bytes).first, 200);
    const uint64_t checksum = Checksum(std::as_bytes(std::span(bytes)));
    return Ask(absl::StrCat("upload=", upload, "&checksum=", absl::Hex(checksum, absl::kZeroPad16)), "");
  }
  uint64_t HashOf(const Decoder& decoder) {
    engine::Engine engine(decoder, {});
    return engine.weights().hash;
  }
  void ExpectServed(const Decoder& decoder, int64_t version) {
    EXPECT_EQ(updates_->version(), version);
    for (const auto& engine : engines_) {
      EXPECT_EQ(engine->weights().version, version);
      EXPECT_EQ(engine->weights().hash, HashOf(decoder));
    }
  }

  const model::ModelConfig config_ = model::TinyConfig(model::Architecture::kQwen2, false);
  std::weak_ptr<const Decoder> first_;
  std::unique_ptr<engine::Engine> engines_[2];
  WeightUpdates::Replicas replicas_;
  ServedModel model_;
  int made_ = 0;
  Metrics metrics_;
  FakeClock clock_;
  std::unique_ptr<WeightUpdates> updates_;
};

TEST_F(WeightUpdatesTest, UploadsTakeTurnsWithTwoCopiesAndTheFirstWeightsAreFreed) {
  for (int64_t version = 1; version <= 5; ++version) {
    const Decoder decoder = model::TinyDecoder(config_, static_cast<uint64_t>(10 + version), at::kCPU);
    const auto [status, answer] = SendAndEnd(Begin(decoder), decoder);
    EXPECT_EQ(status, 200) << answer;
    EXPECT_EQ(answer["weight_version"], absl::StrCat(version));
    EXPECT_EQ(answer["instance"], "0123456789abcdef");
    ExpectServed(decoder, version);
    EXPECT_TRUE(first_.expired());
  }
  EXPECT_EQ(made_, 2);
  EXPECT_EQ(Ask("", R"({"model_path": "there"})").first, 200);
  ExpectServed(model::TinyDecoder(config_, 50, at::kCPU), 6);
  const Decoder decoder = model::TinyDecoder(config_, 51, at::kCPU);
  EXPECT_EQ(SendAndEnd(Begin(decoder), decoder).first, 200);
  ExpectServed(decoder, 7);
  EXPECT_EQ(made_, 2);
}

TEST_F(WeightUpdatesTest, AnUploadThatNobodyGoesOnWithGivesWayAfterAMinute) {
  const Decoder decoder = model::TinyDecoder(config_, 3, at::kCPU);
  const std::string left = Begin(decoder);
  clock_.Advance(absl::Seconds(40));
  EXPECT_EQ(Ask(absl::StrCat("upload=", left, "&offset=0"), "some").first, 200) << "touches it";
  clock_.Advance(absl::Seconds(59));
  EXPECT_EQ(Ask("", TensorsOf(decoder)).first, 409);
  clock_.Advance(absl::Seconds(2));
  const std::string next = Begin(decoder);
  EXPECT_NE(next, left);
  EXPECT_EQ(Ask(absl::StrCat("upload=", left, "&offset=4"), "more").first, 404);
  EXPECT_EQ(SendAndEnd(next, decoder).first, 200);
  ExpectServed(decoder, 1);
  EXPECT_EQ(made_, 1) << "in the memory of the one that was left";
}

TEST_F(WeightUpdatesTest, WhatFailsServesNothing) {
  const Decoder decoder = model::TinyDecoder(config_, 3, at::kCPU);
  const auto [missing, why] = Ask("", R"({"model_path": "not there"})");
  EXPECT_EQ(missing, 400);
  EXPECT_THAT(why.dump(), HasSubstr("no such folder"));
  const std::string upload = Begin(decoder);
  const std::string bytes = BytesOf(decoder);
  EXPECT_EQ(Ask(absl::StrCat("upload=", upload, "&offset=0"), std::string((1 << 20) + 1, 'x')).first, 400);
  EXPECT_EQ(Ask(absl::StrCat("upload=", upload, "&offset=0"), bytes).first, 200);
  EXPECT_EQ(Ask(absl::StrCat("upload=", upload, "&checksum=0000000000000000"), "").first, 400);
  EXPECT_EQ(updates_->version(), 0);
  EXPECT_FALSE(first_.expired());
  model_.blank = [] { return absl::ResourceExhaustedError("no memory"); };
  EXPECT_EQ(SendAndEnd(Begin(decoder), decoder).first, 200) << "in the memory that is there";
  EXPECT_EQ(Ask("", TensorsOf(decoder)).first, 503);
}

TEST_F(WeightUpdatesTest, AnUploadIsGoneOnceAPieceHasFailed) {
  const Decoder decoder = model::TinyDecoder(config_, 3, at::kCPU);
  model_.blank = [this]() -> absl::StatusOr<Decoder> {
    const c10::InferenceMode mode;  // whoever writes to these weights outside of it gets an exception
    return Decoder::Uninitialised(config_, at::kCPU);
  };
  const std::string first = absl::StrCat("upload=", Begin(decoder), "&offset=0");
  const auto [status, why] = Ask(first, BytesOf(decoder));
  EXPECT_EQ(status, 500) << why;
  EXPECT_EQ(Ask(first, BytesOf(decoder)).first, 404) << "what follows would be written to another place";
  EXPECT_EQ(updates_->version(), 0);
}

TEST_F(WeightUpdatesTest, NumbersThatAreNotFiniteAreRefusedAndTheOldWeightsStay) {
  const Decoder good = model::TinyDecoder(config_, 3, at::kCPU), broken = good.Clone();
  const auto [name, weight] = broken.NamedWeights()[2];
  weight.view({-1})[1] = std::numeric_limits<float>::infinity();
  const std::string upload = absl::StrCat("upload=", Begin(broken), "&offset=0");
  const auto [status, why] = Ask(upload, BytesOf(broken));
  EXPECT_EQ(status, 400) << why;
  EXPECT_THAT(why.dump(), AllOf(HasSubstr(name), HasSubstr("inf"), HasSubstr("served")));
  EXPECT_EQ(Ask(upload, BytesOf(broken)).first, 404);
  EXPECT_EQ(updates_->version(), 0);
  EXPECT_FALSE(first_.expired());
  EXPECT_EQ(SendAndEnd(Begin(good), good).first, 200);
  ExpectServed(good, 1);
  EXPECT_EQ(made_, 1) << "in the memory of the one that was refused";
  EXPECT_EQ(updates_->health(), absl::OkStatus());
}

TEST_F(WeightUpdatesTest, AnswersInProgressAreReadAgainOnlyIfThatIsAskedFor) {
  for (const bool flush : {false, true}) {
    const int64_t version = updates_->version() + 1;
    absl::Notification begun, ended;
    int tokens = 0;
    engine::Request request;
    request.prompt.tokens = {1, 2, 3};
    request.sampling.max_new_tokens = 40;
    // The first replica has the new weights a moment before the second, which answers. Its steps become longer until it
    // has them as well.
    absl::Duration step = absl::Milliseconds(1);
    request.on_token = [&](int64_t, const engine::NewToken& token) {
      if (++tokens == 2) begun.Notify();
      if (tokens < 3 || token.version == version) return;
      EXPECT_TRUE(Eventually([&] { return engines_[0]->weights().version >= version; }));
      absl::SleepFor(step);
      step = std::min(2 * step, kPatience);
    };
    const int64_t before = engines_[1]->stats().computed_tokens;
    engine::Completion completion;
    ASSERT_TRUE(replicas_[1]
                    ->Add(std::move(request),
                          [&](engine::Answer answer) {
                            completion = std::move(answer.completion);
                            ended.Notify();
                          })
                    .ok());
    ASSERT_TRUE(begun.WaitForNotificationWithTimeout(kPatience));
    EXPECT_EQ(Ask("", Json{{"model_path", "there"}, {"flush_cache", flush}}.dump()).first, 200);
    ASSERT_TRUE(ended.WaitForNotificationWithTimeout(kPatience));
    ASSERT_EQ(completion.weights.size(), 2u);
    EXPECT_EQ(completion.weights[1].version, version);
    const int64_t read_again = flush ? 2 + completion.weights[0].tokens : 0;
    EXPECT_EQ(engines_[1]->stats().computed_tokens - before, 3 + 39 + read_again) << flush;
  }
}

TEST_F(WeightUpdatesTest, ReplicasServeOneDecoderThatIsPackedBefore) {
  ASSERT_EQ(Ask("", R"({"model_path": "there"})").first, 200);
  const auto other = std::make_shared<const Decoder>(model::TinyDecoder(config_, 51, at::kCPU));
  const auto served = engines_[0]->Serve(other, 2);
  EXPECT_TRUE(served->is_packed());
  EXPECT_EQ(engines_[1]->Serve(other, 2), served);
}

}  // namespace
}  // namespace tdock::inference
