#include "trainer/rollout_servers/wire/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "nlohmann/json.hpp"

namespace tdock::trainer {
namespace {

using nlohmann::json;
using testing::ElementsAre;

constexpr auto kNonsense = absl::StatusCode::kInvalidArgument;
constexpr int64_t kVocabSize = 30;

WireRequest Asked() {
  return {.prompt = {5, 6}, .samples = 2, .max_tokens = 3, .min_tokens = 1, .ends = {2}, .sampling = {}};
}

json Reply() {
  return json::parse(R"({"system_fingerprint": "tdock-00ff", "choices": [
      {"index": 1, "token_ids": [7, 2], "logprobs": {"token_logprobs": [-0.5, 0]}, "finish_reason": "stop",
       "weight_versions": [{"version": 3, "tokens": 1}, {"version": 4, "tokens": 1}]},
      {"index": 0, "token_ids": [7, 8, 9], "logprobs": {"token_logprobs": [-0.5, -1, -9999.0]},
       "finish_reason": "length"}]})");
}

absl::Status Read(const json& reply, const WireRequest& request = Asked()) {
  return ReadReply(reply.dump(), request, kVocabSize).status();
}

// With one value of a choice replaced.
absl::Status ReadWith(const char* name, json value) {
  json reply = Reply();
  reply["choices"][0][name] = std::move(value);
  return Read(reply);
}

TEST(ReadReply, ReadsAnswersByTheirIndex) {
  const auto reply = ReadReply(Reply().dump(), Asked(), kVocabSize);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->instance, "00ff");
  ASSERT_EQ(reply->answers.size(), 2U);
  EXPECT_THAT(reply->answers[0].tokens, ElementsAre(7, 8, 9));
  EXPECT_THAT(reply->answers[0].log_probs, ElementsAre(-0.5F, -1.0F, -9999.0F));
  EXPECT_TRUE(reply->answers[0].weights.empty());
  EXPECT_THAT(reply->answers[1].tokens, ElementsAre(7, 2));
  EXPECT_THAT(reply->answers[1].weights,
              ElementsAre(WireSpan{.version = 3, .tokens = 1}, WireSpan{.version = 4, .tokens = 1}));
}

TEST(ReadReply, RefusesAnswersThatDoNotFitTheRequest) {
  EXPECT_THAT(ReadReply("[1]", Asked(), kVocabSize).status(), Fails(kNonsense, {"JSON object"}));
  EXPECT_THAT(Read({{"choices", 1}}), Fails(kNonsense, {"0 choices", "and 2"}));
  EXPECT_THAT(Read({{"choices", {1, 2}}}), Fails(kNonsense, {"indices 0 to 1"}));
  json twice = Reply();
  twice["choices"][0]["index"] = 0;
  EXPECT_THAT(Read(twice), Fails(kNonsense, {"each once"}));
  for (const json& index : {json(2), json(-1), json(nullptr), json(1e30)}) {
    EXPECT_THAT(ReadWith("index", index), Fails(kNonsense, {"indices 0 to 1"}));
  }
  EXPECT_THAT(ReadWith("token_ids", {7, 30}), Fails(kNonsense, {"choice 1", "has 30", "token_ids", "0 to 29"}));
  for (const json& token : {json(-1), json(1.5), json("7"), json(nullptr), json(uint64_t{1} << 63)}) {
    EXPECT_THAT(ReadWith("token_ids", {token, 2}), Fails(kNonsense, {"choice 1", "token_ids", "0 to 29"}));
  }
  EXPECT_THAT(ReadWith("token_ids", json::array()), Fails(kNonsense, {"choice 1", "no tokens"}));
  EXPECT_THAT(ReadWith("token_ids", {7, 7, 7, 2}), Fails(kNonsense, {"choice 1", "4 tokens", "at most 3"}));
}

TEST(ReadReply, RefusesLogProbabilitiesThatAreNone) {
  const auto read = [](const json& log_probs) { return ReadWith("logprobs", {{"token_logprobs", log_probs}}); };
  EXPECT_TRUE(read({-1, 0.0005}).ok()) << "a rounding error";
  EXPECT_THAT(read({-1}), Fails(kNonsense, {"choice 1", "2 tokens", "1 log-probabilities"}));
  EXPECT_THAT(read({-1, 0.1}), Fails(kNonsense, {"choice 1", "0.1", "log-probabilities"}));
  EXPECT_THAT(read({-1, -1e300}), Fails(kNonsense, {"choice 1", "-1e", "log-probabilities"}));
  EXPECT_THAT(read({-1, nullptr}), Fails(kNonsense, {"choice 1", "null", "log-probabilities"}));
}

TEST(ReadReply, SaysWhatAServerLacks) {
  const auto lacks = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(ReadWith("token_ids", nullptr), Fails(lacks, {"choice 1", "no \"token_ids\"", "vLLM", "0.10.2"}));
  EXPECT_THAT(ReadWith("logprobs", nullptr), Fails(lacks, {"choice 1", "no \"logprobs.token_logprobs\""}));
  EXPECT_THAT(ReadWith("finish_reason", "abort"),
              Fails(absl::StatusCode::kUnavailable, {"choice 1", "finish_reason", "\"abort\""}));
  EXPECT_THAT(ReadWith("finish_reason", nullptr),
              Fails(absl::StatusCode::kUnavailable, {"choice 1", "finish_reason", "missing"}));
}

TEST(ReadReply, RefusesAnswersThatEndElsewhereThanTheyShould) {
  json reply = Reply();
  reply["choices"][1]["token_ids"] = {7, 2, 9};
  EXPECT_THAT(Read(reply), Fails(kNonsense, {"choice 0", "token 2", "is 2"}));
  EXPECT_THAT(ReadWith("token_ids", {7, 8}), Fails(kNonsense, {"choice 1", "token 8", "2 of", "at most 3", "(2)"}));
  WireRequest longer = Asked();
  longer.min_tokens = 3;
  EXPECT_THAT(Read(Reply(), longer), Fails(kNonsense, {"2 tokens", "at least 3"}));
  reply["choices"][1]["token_ids"] = {7, 8, 2};
  EXPECT_TRUE(Read(reply).ok()) << "the end token in the last place";
}

TEST(ReadReply, RefusesVersionsThatDoNotAddUp) {
  for (const json& versions : {json::parse(R"([{"version": 1, "tokens": 1}])"),
                               json::parse(R"([{"version": 1, "tokens": 2}, {"version": 1, "tokens": 1}])"),
                               json::parse(R"([{"version": 1, "tokens": -1}])"), json::parse(R"([{"tokens": 2}])")}) {
    EXPECT_THAT(ReadWith("weight_versions", versions), Fails(kNonsense, {"weight_versions"}));
  }
}

TEST(ReadCard, FindsTheModel) {
  const std::string body = R"({"data": [{"id": "a", "owned_by": "vllm", "max_model_len": 100},
      {"id": "b", "owned_by": "tdock", "instance": "0f", "weight_version": 7}]})";
  const auto a = ReadCard(body, "a"), b = ReadCard(body, "b");
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->max_model_len, 100);
  EXPECT_EQ(a->kind, ServerKind::kVllm);
  EXPECT_FALSE(a->says_weights || a->weight_version);
  EXPECT_TRUE(b->is_tdock() && b->says_weights && b->answers_say_weights);
  EXPECT_EQ(b->instance, "0f");
  EXPECT_EQ(b->weight_version, 7);
  const auto missing = absl::StatusCode::kNotFound;
  EXPECT_THAT(ReadCard(body, "c").status(), Fails(missing, {"no model \"c\"", "rollout.server_model", "a, b"}));
  EXPECT_THAT(ReadCard(body, "").status(), Fails(missing, {"several models", "rollout.server_model", "a, b"}));
  EXPECT_EQ(ReadCard(R"({"data": [{"id": "a"}]})", "")->model, "a");
  EXPECT_THAT(ReadCard("{}", "").status(), Fails(kNonsense, {"no models"}));
}

TEST(ReadCard, TakesAnSglangThatIsCalledByTheFolderOfItsWeights) {
  const auto read = [](const std::string& id, const std::string& owner) {
    const json card = {{"id", id}, {"owned_by", owner}};
    return ReadCard(json{{"data", json::array({card})}}.dump(), "a");
  };
  const auto card = read("/run/server_weights/weights-12", "sglang");
  ASSERT_TRUE(card.ok()) << card.status();
  EXPECT_EQ(card->model, "/run/server_weights/weights-12");
  EXPECT_EQ(card->kind, ServerKind::kSglang);
  EXPECT_THAT(read("/run/other", "sglang").status(), Fails(absl::StatusCode::kNotFound, {"\"a\""}));
  EXPECT_THAT(read("/run/weights-12", "vllm").status(), Fails(absl::StatusCode::kNotFound, {"\"a\""}));
}

TEST(BodyOf, SaysEverythingThatAServerHasDefaultsFor) {
  WireRequest request = Asked();
  request.sampling = {.temperature = 0.5, .logit_bias = {{4, -2.0}}, .seed = ~uint64_t{0}};
  request.identity = ~uint64_t{0};
  const json ours = json::parse(BodyOf(request, {.model = "m", .kind = ServerKind::kTdock}));
  EXPECT_EQ(ours["model"], "m");
  EXPECT_EQ(ours["prompt"], json({5, 6}));
  EXPECT_EQ(ours["n"], 2);
  EXPECT_EQ(ours["max_tokens"], 3);
  EXPECT_EQ(ours["min_tokens"], 1);
  EXPECT_EQ(ours["temperature"], 0.5);
  EXPECT_EQ(ours["top_k"], -1);
  EXPECT_EQ(ours["top_p"], 1.0);
  EXPECT_EQ(ours["repetition_penalty"], 1.0);
  EXPECT_EQ(ours["logit_bias"], json({{"4", -2.0}}));
  EXPECT_EQ(ours["stop_token_ids"], json({2}));
  EXPECT_EQ(ours["ignore_eos"], true);
  EXPECT_EQ(ours["logprobs"], 0);
  EXPECT_EQ(ours["return_token_ids"], true);
  EXPECT_EQ(ours["seed"], -1) << "the same 64 bits";
  EXPECT_EQ(ours["identity"], "18446744073709551615");
  const json other = json::parse(BodyOf(request, {.model = "m"}));
  EXPECT_FALSE(other.contains("identity"));
  EXPECT_GE(other["seed"], 0);
  EXPECT_LT(other["seed"], int64_t{1} << 31);
  request.identity = 1;
  EXPECT_NE(json::parse(BodyOf(request, {.model = "m"}))["seed"], other["seed"]);
}

// vLLM's answer from tokens to tokens.
json TokensReply() {
  return json::parse(R"({"choices": [
      {"index": 1, "token_ids": [7, 2], "finish_reason": "stop",
       "logprobs": {"content": [{"token_id": 7, "logprob": -0.5}, {"token_id": 2, "logprob": -1}]},
       "weight_versions": [{"version": "3", "start": 0, "end": 1}, {"version": "default", "start": 1, "end": 2}]},
      {"index": 0, "token_ids": [7, 8, 9], "finish_reason": "length", "weight_versions": null,
       "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -1}, {"logprob": -9999.0}]}}]})");
}

absl::Status ReadTokens(const json& reply) {
  return ReadReply(reply.dump(), Asked(), kVocabSize, AnswerForm::kTokens).status();
}

TEST(ReadReply, ReadsTokensOfVllm) {
  const auto reply = ReadReply(TokensReply().dump(), Asked(), kVocabSize, AnswerForm::kTokens);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_THAT(reply->answers[0].log_probs, ElementsAre(-0.5F, -1.0F, -9999.0F));
  EXPECT_TRUE(reply->answers[0].weights.empty());
  EXPECT_THAT(reply->answers[1].tokens, ElementsAre(7, 2));
  EXPECT_THAT(reply->answers[1].weights,
              ElementsAre(WireSpan{.version = 3, .tokens = 1}, WireSpan{.version = kUnknownVersion, .tokens = 1}));
  json lacks = TokensReply();
  lacks["choices"][0].erase("token_ids");
  EXPECT_THAT(ReadTokens(lacks), Fails(absl::StatusCode::kFailedPrecondition, {"choice 1", "token_ids"}));
  lacks = TokensReply();
  lacks["choices"][0]["logprobs"] = nullptr;
  EXPECT_THAT(ReadTokens(lacks), Fails(absl::StatusCode::kFailedPrecondition, {"choice 1", "logprobs.content"}));
  lacks = TokensReply();
  lacks["choices"][0]["logprobs"]["content"][0] = 1;
  EXPECT_THAT(ReadTokens(lacks), Fails(kNonsense, {"choice 1", "null", "log-probabilities"}));
}

TEST(ReadReply, RefusesRangesOfVersionsWithGaps) {
  for (const json& versions : {json::parse(R"([{"version": "1", "start": 1, "end": 2}])"),
                               json::parse(R"([{"version": "1", "start": 0, "end": 1}])"),
                               json::parse(R"([{"version": "1", "start": 0, "end": 9}])"),
                               json::parse(R"([{"version": "1", "start": 0, "end": 0}])"),
                               json::parse(R"([{"version": 1.5, "start": 0, "end": 2}])")}) {
    json reply = TokensReply();
    reply["choices"][0]["weight_versions"] = versions;
    EXPECT_THAT(ReadTokens(reply), Fails(kNonsense, {"choice 1", "weight_versions"}));
  }
}

TEST(ReadReply, ReadsAnswersOfSglang) {
  const json answer = json::parse(R"({"text": "", "output_ids": [7, 2], "meta_info": {"finish_reason": {"type": "stop",
      "matched": 2}, "output_token_logprobs": [[-0.5, 7, null], [-1.0, 2, null]], "weight_version": "4"}})");
  WireRequest one = Asked();
  one.samples = 1;
  const auto single = ReadReply(answer.dump(), one, kVocabSize, AnswerForm::kGenerate);
  ASSERT_TRUE(single.ok()) << single.status();
  EXPECT_THAT(single->answers[0].log_probs, ElementsAre(-0.5F, -1.0F));
  EXPECT_THAT(single->answers[0].weights, ElementsAre(WireSpan{.version = 4, .tokens = 2}));
  json other = answer;
  other["meta_info"]["weight_versions"] =
      json::parse(R"([{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}])");
  const auto two = ReadReply(json::array({answer, other}).dump(), Asked(), kVocabSize, AnswerForm::kGenerate);
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_THAT(two->answers[1].weights,
              ElementsAre(WireSpan{.version = 3, .tokens = 1}, WireSpan{.version = 4, .tokens = 1}));
  const auto read = [&](const json& reply) {
    return ReadReply(reply.dump(), one, kVocabSize, AnswerForm::kGenerate).status();
  };
  other["meta_info"].erase("output_token_logprobs");
  EXPECT_THAT(read(other), Fails(absl::StatusCode::kFailedPrecondition, {"output_token_logprobs"}));
  other["meta_info"]["output_token_logprobs"] = json::parse("[[], -1]");
  EXPECT_THAT(read(other), Fails(kNonsense, {"null", "log-probabilities"}));
  other["meta_info"]["finish_reason"] = json{{"type", "abort"}};
  EXPECT_THAT(read(other), Fails(absl::StatusCode::kUnavailable, {"finish_reason", "\"abort\""}));
  EXPECT_THAT(read(json::array({answer, answer})), Fails(kNonsense, {"2 choices", "and 1"}));
  EXPECT_THAT(ReadReply("1}, {", one, kVocabSize, AnswerForm::kGenerate).status(), Fails(kNonsense));
}

TEST(BodyOf, AsksVllmAndSglangThroughTheirOwnInterfaces) {
  WireRequest request = Asked();
  request.sampling = {.temperature = 0.5, .logit_bias = {{4, -2.0}}};
  const json tokens = json::parse(
      BodyOf(request, {.model = "m", .weight_version = 7, .kind = ServerKind::kVllm, .form = AnswerForm::kTokens}));
  EXPECT_EQ(tokens["token_ids"], json({5, 6}));
  EXPECT_EQ(tokens["cache_salt"], "tdock-7");
  const json& sampling = tokens["sampling_params"];
  EXPECT_EQ(sampling["max_tokens"], 3);
  EXPECT_EQ(sampling["logprobs"], 0);
  EXPECT_EQ(sampling["n"], 2);
  EXPECT_EQ(sampling["logit_bias"], json({{"4", -2.0}}));
  const json native =
      json::parse(BodyOf(request, {.weight_version = 7, .kind = ServerKind::kSglang, .form = AnswerForm::kGenerate}));
  EXPECT_EQ(native["input_ids"], json({5, 6}));
  EXPECT_EQ(native["return_logprob"], true);
  EXPECT_EQ(native["extra_key"], "tdock-7");
  EXPECT_EQ(native["sampling_params"]["max_new_tokens"], 3);
  EXPECT_EQ(native["sampling_params"]["min_new_tokens"], 1);
  EXPECT_EQ(native["sampling_params"]["sampling_seed"], sampling["seed"]);
  EXPECT_FALSE(native["sampling_params"].contains("max_tokens"));
}

TEST(ReadUpload, RefusesWhatCannotBeInAnAddress) {
  EXPECT_EQ(ReadUpload(R"({"upload": "0af", "most_piece_bytes": 8})")->id, "0af");
  EXPECT_THAT(ReadUpload(R"({"upload": "a&b", "most_piece_bytes": 8})").status(), Fails(kNonsense, {"upload"}));
  EXPECT_THAT(ReadUpload(R"({"upload": "0af", "most_piece_bytes": 0})").status(), Fails(kNonsense, {"upload"}));
}

TEST(ReadUpdate, BelievesAServerThatSaysNo) {
  EXPECT_THAT(ReadUpdate(R"({"success": false, "message": "no such folder"})").status(),
              Fails(absl::StatusCode::kUnavailable, {"no such folder"}));
  const auto update = ReadUpdate(R"({"success": true, "weight_version": "12", "instance": "0f"})");
  ASSERT_TRUE(update.ok());
  EXPECT_EQ(update->weight_version, 12);
  EXPECT_EQ(update->instance, "0f");
  EXPECT_TRUE(ReadUpdate("").ok());
}

}  // namespace
}  // namespace tdock::trainer
