// Episodes become rows whose tokens and log-probabilities are those that the model saw and gave.
#include "trainer/stages/turns_stage.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/testing/fails.h"
#include "model/decoder/testing/models.h"
#include "nlohmann/json.hpp"
#include "tdock/local_dock.h"
#include "text/char_tokenizer.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/testing/scripted_environment.h"

namespace tdock::trainer {
namespace {

using environment::AgentOutput;
using environment::ChatRequest;
using environment::GenerateRequest;
using environment::Observation;
using environment::OnError;
using testing::ElementsAre;
using Script = ScriptedEnvironment::Script;
using What = ScriptedEnvironment::What;

constexpr int64_t kTurnGroups = 3, kTurnRows = 2 * kTurnGroups;

// One row as it is on the dock.
struct Written {
  std::vector<int32_t> prompt, response;
  std::vector<uint8_t> mask;
  std::vector<float> log_probs;
  std::string text, trace;
  float reward = 0;
  bool finished = false;
  bool operator==(const Written&) const = default;
};

// Says "hg" in the first turns, and is over after the third; each answer is worth its length.
What ThreeTurns(const Script& script) {
  if (script.messages.empty()) return Observation{};
  Observation said{.rewards = {{"length", static_cast<double>(script.messages.back().size())}, {"turn", 1.0}}};
  said.done = script.messages.size() == 3;
  if (!said.done) said.messages = {{.role = text::Role::kUser, .content = "hg"}};
  return said;
}

class TurnsStageTest : public testing::Test {
 protected:
  TurnsStageTest()
      : policy_{model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, false), 3, at::kCPU), 5} {
    policy_.decoder.LimitVocabulary(tokenizer_->vocab_size());
    policy_.decoder.SetBatchInvariant(true);
  }

  static void Fill(Dock& dock) {
    const std::vector<ColumnSpec> columns =
        ColumnsNamed({kInitialPrompt, kPromptText, kTruth, kSource, kMessages, kPrompt, kResponses, kResponseMask,
                      kResponseText, kFinished, kRolloutLogProbs, kRewards, kTrace});
    ASSERT_EQ(dock.CreatePartition({.name = "train", .columns = columns, .group_size = 2}), absl::OkStatus());
    std::vector<std::vector<int32_t>> prompts;
    std::vector<std::string> texts, truths, empty(kTurnRows);
    std::vector<GroupId> groups;
    for (int64_t row = 0; row < kTurnRows; ++row) {
      const auto group = static_cast<size_t>(row / 2);
      prompts.emplace_back(1 + group, static_cast<int32_t>(group));
      texts.emplace_back(1 + group, static_cast<char>('a' + group));
      truths.push_back(absl::StrCat(group));
      groups.push_back(group);
    }
    Batch batch;
    ASSERT_EQ(batch.Add(kInitialPrompt, Column::FromRows(prompts)), absl::OkStatus());
    ASSERT_EQ(batch.Add(kPromptText, Column::FromStrings(texts)), absl::OkStatus());
    ASSERT_EQ(batch.Add(kTruth, Column::FromStrings(truths)), absl::OkStatus());
    ASSERT_EQ(batch.Add(kSource, Column::FromStrings(empty)), absl::OkStatus());
    ASSERT_EQ(batch.Add(kMessages, Column::FromStrings(empty)), absl::OkStatus());
    ASSERT_TRUE(dock.Put({.partition = "train", .batch = batch, .groups = groups}).ok());
  }

  TurnsOptions Options() const {
    TurnsOptions options;
    options.episodes.rules = {.format = environment::TurnFormat::kText,
                              .tool_format = text::ReplyForm::kPlain,
                              .tokenizer = tokenizer_.get()};
    options.episodes.max_response_length = 24;
    options.episodes.retries = 0;
    options.episodes.sampling = {.temperature = 1.3, .seed = 8};
    options.environment_seed = 4;
    options.end_token = 9;
    options.puts.interval = absl::ZeroDuration();
    return options;
  }

  struct Played {
    absl::Status status;
    std::vector<Written> rows;  // of those that were not dropped
    std::map<std::string, double> metrics;
    int64_t dropped = 0;
  };
  Played Play(std::unique_ptr<environment::Environment> environment, const TurnsOptions& options,
              int64_t max_rows = 64) {
    const std::unique_ptr<Dock> dock = MakeLocalDock();
    Fill(*dock);
    StageRunner runner(*dock, "train");
    engine::EngineOptions engine;
    engine.max_rows = max_rows;
    engine.end_tokens = {9, 4};
    const auto stage =
        MakeTurnsStage(policy_, MakeLocalEngine(policy_.decoder, engine), std::move(environment), options);
    EXPECT_EQ(runner.Add(*stage), absl::OkStatus());
    StepMetrics metrics;
    StageContext context{.step = 1, .metrics = metrics};
    const auto run = runner.Run(*stage, kTurnGroups, context);
    Played played{.status = run.status(), .rows = {}, .metrics = metrics.Values()};
    if (!run.ok()) return played;
    played.dropped = *run;
    for (RowId row = 0; row < kTurnRows; ++row) {
      const auto rows = dock->Fetch({.partition = "train",
                                     .rows = {row},
                                     .columns = {kPrompt, kResponses, kResponseMask, kRolloutLogProbs, kResponseText,
                                                 kTrace, kRewards, kFinished}});
      if (!rows.ok()) continue;  // it was dropped
      const auto list = [&]<class T>(const char* name, std::vector<T>& values) {
        const auto cell = *rows->Get<T>(0, name);
        values.assign(cell.begin(), cell.end());
      };
      Written& written = played.rows.emplace_back();
      list(kPrompt, written.prompt);
      list(kResponses, written.response);
      list(kResponseMask, written.mask);
      list(kRolloutLogProbs, written.log_probs);
      written.text = std::string(*rows->Text(0, kResponseText));
      written.trace = std::string(*rows->Text(0, kTrace));
      written.reward = rows->Get<float>(0, kRewards)->front();
      written.finished = rows->Get<uint8_t>(0, kFinished)->front() != 0;
    }
    return played;
  }
  Played Play(ScriptedEnvironment::Says says, const TurnsOptions& options, ScriptedEnvironment::Options script = {}) {
    return Play(std::make_unique<ScriptedEnvironment>(std::move(says), std::move(script)), options);
  }

  // The log-probabilities of what the model said, computed from the whole row at once.
  void ExpectTeacherForced(const std::vector<Written>& rows) {
    std::vector<Sequence> sequences;
    for (const Written& row : rows) sequences.push_back({row.prompt, row.response});
    const at::Tensor given =
        LogProbs(policy_.decoder, sequences, {.workers = workers_, .temperature = 1.3}).to(at::kFloat).contiguous();
    const float* next = given.const_data_ptr<float>();
    for (const Written& row : rows) {
      ASSERT_EQ(row.mask.size(), row.response.size());
      ASSERT_EQ(row.log_probs.size(), row.response.size());
      for (size_t i = 0; i < row.response.size(); ++i, ++next) {
        EXPECT_EQ(row.log_probs[i], row.mask[i] != 0 ? *next : 0.0F) << "token " << i;
      }
    }
  }

  // 0 … 7 are a … h, 8 is <pad>, 9 <eos>. An 'e' ends an answer, too.
  const std::unique_ptr<text::CharTokenizer> tokenizer_ = *text::CharTokenizer::Create("abcdefgh");
  Policy policy_;
  Workers workers_{1, [] {}};
};

TEST_F(TurnsStageTest, LogProbsAreThoseOfTheWholeRowBehindWhatTheEnvironmentSays) {
  const Played played = Play(ThreeTurns, Options());
  ASSERT_EQ(played.status, absl::OkStatus());
  ASSERT_EQ(played.rows.size(), kTurnRows);
  ExpectTeacherForced(played.rows);
  size_t whole = 0;
  for (const Written& row : played.rows) {
    if (!row.finished) continue;
    ++whole;
    EXPECT_EQ(std::count(row.mask.begin(), row.mask.end(), 0), 4) << "hg, twice";
    const nlohmann::json trace = nlohmann::json::parse(row.trace);
    ASSERT_EQ(trace.size(), 5u);
    std::vector<int32_t> ids;
    double rewards = 0;
    for (const auto& turn : trace) {
      for (const auto& id : turn["ids"]) ids.push_back(id);
      if (turn["by"] == "environment") {
        EXPECT_EQ(turn["ids"], (std::vector<int>{7, 6}));
      } else {
        EXPECT_EQ(turn["weights"][0]["version"], 5);
        rewards += turn["rewards"]["length"].get<double>() + 1;
      }
    }
    EXPECT_EQ(ids, row.response);
    EXPECT_FLOAT_EQ(row.reward, static_cast<float>(rewards));
  }
  EXPECT_GT(whole, 0u);
  EXPECT_EQ(played.metrics.at("reward/turn/mean") > 1, true);
  for (const char* name : {"reward/length/std", "critic/score/mean", "episode/turns", "timing_s/environment"}) {
    EXPECT_TRUE(played.metrics.contains(name)) << name;
  }
}

TEST_F(TurnsStageTest, TheOrderOfAnswersAndTriesThatFailChangeNoBit) {
  const Played in_order = Play(ThreeTurns, Options());
  TurnsOptions retrying = Options();
  retrying.episodes.retries = 1;
  const auto flaky = [](const Script& script) -> What {
    // The second message of each first try.
    if (script.attempt == 0 && script.messages.size() == 2) return absl::UnavailableError("not now");
    return ThreeTurns(script);
  };
  const Played other = Play(
      std::make_unique<ScriptedEnvironment>(
          flaky, ScriptedEnvironment::Options{.delay = [](int64_t said) { return said * 7 % 5; }, .last_first = true}),
      retrying, /*max_rows=*/2);
  ASSERT_EQ(other.status, absl::OkStatus());
  EXPECT_TRUE(other.rows == in_order.rows);
  EXPECT_GT(other.metrics.at("episode/failed_tries"), 0);
  EXPECT_EQ(other.metrics.at("episode/failed"), 0);
}

TEST_F(TurnsStageTest, SamplesOfAGroupShareTheSeedOfTheirEnvironment) {
  std::map<std::string, std::vector<uint64_t>> seeds;
  const auto says = [&](const Script& script) {
    if (script.messages.empty()) seeds[script.row.prompt].push_back(script.seed);
    return ThreeTurns(script);
  };
  ASSERT_EQ(Play(says, Options()).status, absl::OkStatus());
  ASSERT_EQ(seeds.size(), kTurnGroups);
  std::set<uint64_t> different;
  for (const auto& [prompt, both] : seeds) {
    EXPECT_THAT(both, ElementsAre(both[0], both[0]));
    different.insert(both[0]);
  }
  EXPECT_EQ(different.size(), kTurnGroups);
}

TEST_F(TurnsStageTest, AFailedEpisodeIsDroppedWithItsGroupOrWorthNothingOrTheEnd) {
  const auto says = [](const Script& script) -> What {
    if (script.row.truth == "1") return absl::InternalError("no such task");
    return ThreeTurns(script);
  };
  TurnsOptions options = Options();
  options.episodes.retries = 2;
  EXPECT_THAT(Play(says, options).status,
              Fails(absl::StatusCode::kInternal, {"prompt group 1", "script", "3 tries", "no such task"}));
  options.on_error = OnError::kDrop;
  const Played dropped = Play(says, options);
  ASSERT_EQ(dropped.status, absl::OkStatus());
  EXPECT_EQ(dropped.dropped, 2);
  EXPECT_EQ(dropped.rows.size(), 4u);
  options.on_error = OnError::kZero;
  const Played zero = Play(says, options);
  ASSERT_EQ(zero.status, absl::OkStatus());
  ASSERT_EQ(zero.rows.size(), kTurnRows);
  EXPECT_THAT(zero.rows[2].response, ElementsAre(9));
  EXPECT_THAT(zero.rows[2].mask, ElementsAre(0));
  EXPECT_EQ(zero.rows[2].reward, 0);
  EXPECT_TRUE(zero.rows[0] == dropped.rows[0]);
  options.on_error = OnError::kDrop;
  EXPECT_THAT(Play([](const Script&) -> What { return absl::InternalError("never"); }, options).status,
              Fails(absl::StatusCode::kFailedPrecondition, {"3 prompts", "never"}));
}

TEST_F(TurnsStageTest, LimitsOfTurnsAndTokensEndAnEpisodeAsTruncated) {
  const auto endless = [](const Script& script) -> What {
    if (script.messages.empty()) return Observation{};
    return Observation{.messages = {{.role = text::Role::kUser, .content = "hg"}}, .rewards = {{"turn", 1.0}}};
  };
  TurnsOptions options = Options();
  options.episodes.max_turns = 2;
  const Played two = Play(endless, options);
  ASSERT_EQ(two.status, absl::OkStatus());
  for (const Written& row : two.rows) {
    EXPECT_FALSE(row.finished);
    EXPECT_LE(row.reward, 2);
    EXPECT_EQ(row.mask.back(), 1) << "nothing is appended that nobody answers";
  }
  EXPECT_EQ(two.metrics.at("episode/truncated"), 1);
  options.episodes.max_turns = 100;
  options.episodes.max_response_length = 9;
  const Played short_ones = Play(endless, options);
  for (const Written& row : short_ones.rows) {
    EXPECT_LE(row.response.size(), 9u);
    EXPECT_EQ(row.mask.back(), 1);
  }
  ExpectTeacherForced(short_ones.rows);
}

TEST_F(TurnsStageTest, AnEnvironmentThatConcludesIsAskedWhatACutEpisodeWasWorth) {
  const auto endless = [](const Script& script) -> What {
    if (script.concluded) return Observation{.rewards = {{"cut", 0.25}}};
    return Observation{.messages = {{.role = text::Role::kUser, .content = "hg"}}};
  };
  for (const bool concludes : {true, false}) {
    for (const int64_t max_turns : {2, 100}) {
      TurnsOptions options = Options();
      options.episodes.max_turns = max_turns;
      options.episodes.max_response_length = 9;
      const Played played = Play(std::make_unique<ScriptedEnvironment>(
                                     endless, ScriptedEnvironment::Options{.description = {.concludes = concludes}}),
                                 options);
      ASSERT_EQ(played.status, absl::OkStatus());
      ASSERT_EQ(std::ssize(played.rows), kTurnRows);
      for (const Written& row : played.rows) {
        EXPECT_EQ(row.reward, concludes ? 0.25F : 0.0F);
        EXPECT_FALSE(row.finished);
        EXPECT_EQ(row.mask.back(), 1) << "nothing is appended that nobody answers";
      }
      EXPECT_EQ(played.metrics.at("episode/truncated"), 1);
    }
  }
}

TEST_F(TurnsStageTest, SpecialTokensThatTheModelSaysDisturbNothing) {
  const TurnRules rules{
      .format = environment::TurnFormat::kText, .tool_format = text::ReplyForm::kPlain, .tokenizer = tokenizer_.get()};
  Transcript transcript(rules);
  ASSERT_EQ(transcript.Begin({.prompt = "a", .prompt_ids = {0}}), absl::OkStatus());
  ASSERT_EQ(transcript.AddFirst({}), absl::OkStatus());
  engine::Completion completion;
  completion.tokens = {1, 8, 2, 9};  // b <pad> c <eos>
  completion.log_probs = {-1, -1, -1, -1};
  completion.finish_reason = engine::FinishReason::kEndToken;
  transcript.AddReply(completion, {.role = text::Role::kAssistant, .content = *ReplyText(*tokenizer_, completion)});
  EXPECT_EQ(transcript.turns()[0].text, "b<pad>c");
  const auto next = transcript.Render({{.role = text::Role::kUser, .content = "hg"}});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_THAT(next->ids, ElementsAre(7, 6));
}

TEST_F(TurnsStageTest, ALongObservationIsCutAndSaysSo) {
  const auto tokenizer = *text::CharTokenizer::Create("abcdefgh\n[]: umotrkns0123456789");
  TurnRules rules{.format = environment::TurnFormat::kText,
                  .tool_format = text::ReplyForm::kPlain,
                  .tokenizer = tokenizer.get(),
                  .max_observation_tokens = 4};
  Transcript transcript(rules);
  environment::EpisodeRow row{.prompt = "a", .prompt_ids = {0}};
  ASSERT_EQ(transcript.Begin(row), absl::OkStatus());
  const auto next = transcript.Render(
      {{.role = text::Role::kUser, .content = "abc"}, {.role = text::Role::kUser, .content = "defgh"}});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->text, "abcd\n[cut: 4 more tokens]");
}

TEST_F(TurnsStageTest, StoppedItGivesUpWhatIsOpenAndKeepsWhatWasPut) {
  const std::unique_ptr<Dock> dock = MakeLocalDock();
  Fill(*dock);
  StageRunner runner(*dock, "train");
  engine::EngineOptions engine;
  engine.end_tokens = {9, 4};
  // The last group hears nothing.
  const auto delay = [](int64_t said) { return said == 4 || said == 5 ? int64_t{1} << 40 : 0; };
  auto owned = std::make_unique<ScriptedEnvironment>(ThreeTurns, ScriptedEnvironment::Options{.delay = delay});
  const ScriptedEnvironment& environment = *owned;
  const auto stage = MakeTurnsStage(policy_, MakeLocalEngine(policy_.decoder, engine), std::move(owned), Options());
  ASSERT_EQ(runner.Add(*stage), absl::OkStatus());
  StepMetrics metrics;
  StageContext context{.step = 1, .metrics = metrics};
  context.check_stop = [&] { return context.published == 4 ? absl::CancelledError("stop") : absl::OkStatus(); };
  EXPECT_THAT(runner.Run(*stage, kTurnGroups, context).status(), Fails(absl::StatusCode::kCancelled, {"stop"}));
  EXPECT_EQ(environment.ended.size(), 2u);
  EXPECT_EQ(dock->GetConsumerStatus("train", "rollout")->completed, 4);
}

// Asks twice, and puts "a" between both answers.
What Agent(const Script& script) {
  const auto& given = script.generated;
  GenerateRequest ask{
      .request = static_cast<int64_t>(given.size()), .prompt_ids = script.row.prompt_ids, .max_tokens = 3};
  AgentOutput output;
  output.prompt_ids = script.row.prompt_ids;
  output.rewards = {{"reward", 2}};
  for (size_t i = 0; i < given.size(); ++i) {
    output.response_ids.insert(output.response_ids.end(), given[i].token_ids.begin(), given[i].token_ids.end());
    output.response_mask.resize(output.response_ids.size(), 1);
    if (i > 0) continue;
    output.response_ids.push_back(0);
    output.response_mask.push_back(0);
  }
  if (given.size() == 2) return output;
  ask.prompt_ids.insert(ask.prompt_ids.end(), output.response_ids.begin(), output.response_ids.end());
  return ask;
}

TEST_F(TurnsStageTest, AnAgentsTokensHaveTheLogProbsThatTheyWereSampledWith) {
  const ScriptedEnvironment::Options script{.description = {.is_agent = true}};
  const Played played = Play(Agent, Options(), script);
  ASSERT_EQ(played.status, absl::OkStatus());
  ASSERT_EQ(played.rows.size(), kTurnRows);
  ExpectTeacherForced(played.rows);
  for (const Written& row : played.rows) {
    EXPECT_EQ(row.reward, 2);
    EXPECT_EQ(std::count(row.mask.begin(), row.mask.end(), 0), 1);
  }
  const auto forges = [](const Script& asked) -> What {
    What what = Agent(asked);
    if (auto* const output = std::get_if<AgentOutput>(&*what))
      output->response_mask.assign(output->response_ids.size(), 1);
    return what;
  };
  EXPECT_THAT(Play(forges, Options(), script).status,
              Fails(absl::StatusCode::kInvalidArgument, {"mask", "said token "}));
}

text::Turn Says(const std::string& text, text::Role role = text::Role::kUser) {
  return {.role = role, .content = text};
}

std::string TextOf(const environment::Generated& generated) {
  std::string text;
  for (const text::ReplyDelta& delta : generated.said) text += delta.text;
  return text;
}

// Asks, then something else, then goes on with the first conversation. Ends where it is refused anything.
What Client(const Script& script) {
  const auto& given = script.generated;
  if (given.size() == 3 || !script.refused.empty()) return Observation{.rewards = {{"reward", 2}}, .done = true};
  ChatRequest ask{.request = std::ssize(given), .turns = {Says(given.size() == 1 ? "fed" : script.row.prompt)}};
  if (given.size() < 2) return ask;
  ask.turns.push_back(Says(TextOf(given[0]), text::Role::kAssistant));
  ask.turns.push_back(Says("hg"));
  return ask;
}

class ClientTest : public TurnsStageTest {
 protected:
  Played PlayClient(const ScriptedEnvironment::Says& says, const TurnsOptions& options, bool last_first = false) {
    ScriptedEnvironment::Options script{.description = {.is_client = true}, .last_first = last_first};
    if (last_first) script.delay = [](int64_t said) { return said * 7 % 5; };
    return Play(std::make_unique<ScriptedEnvironment>(says, script), options);
  }
};

TEST_F(ClientTest, WhatAnAgentOfAUrlWasAnsweredIsTrainedOn) {
  const Played played = PlayClient(Client, Options());
  ASSERT_EQ(played.status, absl::OkStatus());
  ASSERT_EQ(played.rows.size(), kTurnRows);
  ExpectTeacherForced(played.rows);
  size_t whole = 0;
  for (const Written& row : played.rows) {
    EXPECT_EQ(row.reward, 2);
    std::vector<std::string> by;
    for (const auto& turn : nlohmann::json::parse(row.trace)) by.push_back(turn["by"]);
    if (by.size() < 6) continue;  // no room was left
    ++whole;
    EXPECT_THAT(by, ElementsAre("template", "model", "template", "model", "environment", "model"));
    EXPECT_EQ(std::count(row.mask.begin(), row.mask.end(), 0), 2) << "hg";
  }
  EXPECT_GT(whole, 0u);
  EXPECT_GT(played.metrics.at("episode/forks"), 0);
  const Played other = PlayClient(Client, Options(), /*last_first=*/true);
  ASSERT_EQ(other.status, absl::OkStatus());
  EXPECT_TRUE(other.rows == played.rows) << "the order of answers changes nothing";
}

TEST_F(ClientTest, ALimitRefusesRepliesAndTruncatesTheEpisode) {
  TurnsOptions options = Options();
  options.episodes.max_turns = 1;
  absl::Status refused;
  const auto says = [&](const Script& script) {
    if (!script.refused.empty()) refused = script.refused.back();
    return Client(script);
  };
  const Played played = PlayClient(says, options);
  ASSERT_EQ(played.status, absl::OkStatus());
  EXPECT_THAT(refused, Fails(absl::StatusCode::kOutOfRange, {"environment.max_turns"}));
  EXPECT_EQ(played.metrics.at("episode/truncated"), 1);
  EXPECT_EQ(played.metrics.at("episode/turns"), 1);
  for (const Written& row : played.rows) EXPECT_EQ(row.reward, 2);
  // An agent that fails there is no failure of the environment.
  const auto fails = [](const Script& script) -> What {
    if (!script.refused.empty()) return absl::UnknownError("400");
    return Client(script);
  };
  const Played failing = PlayClient(fails, options);
  ASSERT_EQ(failing.status, absl::OkStatus());
  for (const Written& row : failing.rows) EXPECT_EQ(row.reward, 0);
}

TEST_F(ClientTest, AReplyThatNobodyWaitsForIsNoneAndIsAskedAgain) {
  const auto says = [](const Script& script) -> What {
    if (!script.generated.empty()) return Observation{.done = true};
    ChatRequest ask{.request = std::ssize(script.refused), .turns = {Says(script.row.prompt)}};
    if (script.refused.empty()) ask.gone = [] { return true; };
    return ask;
  };
  const Played played = PlayClient(says, Options());
  ASSERT_EQ(played.status, absl::OkStatus());
  ExpectTeacherForced(played.rows);
  EXPECT_EQ(played.metrics.at("episode/turns"), 1);
  EXPECT_EQ(played.metrics.at("episode/forks"), 0);
}

TEST_F(ClientTest, AnErrorThatIsNotTheAgentsIsAFailedTryAlsoAtALimit) {
  TurnsOptions options = Options();
  options.episodes.max_turns = 1;
  const auto says = [](const Script& script) -> What {
    if (!script.refused.empty()) return absl::AbortedError("killed");
    return Client(script);
  };
  EXPECT_THAT(PlayClient(says, options).status, Fails(absl::StatusCode::kAborted, {"killed"}));
}

TEST_F(ClientTest, AnAgentThatAsksWithoutEndIsStopped) {
  TurnsOptions options = Options();
  options.episodes.max_turns = 1;
  const auto ask = [](const Script& script, bool gone) {
    ChatRequest request{.request = std::ssize(script.refused) + std::ssize(script.generated),
                        .turns = {Says(script.row.prompt)}};
    if (gone) request.gone = [] { return true; };
    return request;
  };
  const Played limited = PlayClient([&](const Script& script) -> What { return ask(script, false); }, options);
  ASSERT_EQ(limited.status, absl::OkStatus());
  EXPECT_EQ(limited.metrics.at("episode/truncated"), 1);
  EXPECT_EQ(limited.metrics.at("episode/turns"), 1);
  EXPECT_THAT(PlayClient([&](const Script& script) -> What { return ask(script, true); }, options).status,
              Fails(absl::StatusCode::kResourceExhausted, {"prompt group 0", "256"}));
}

TEST_F(ClientTest, AnAgentThatAsksForNothingHasFailed) {
  const auto says = [](const Script&) -> What { return Observation{.done = true}; };
  EXPECT_THAT(PlayClient(says, Options()).status,
              Fails(absl::StatusCode::kInvalidArgument, {"prompt group 0", "ended", "reply"}));
}

}  // namespace
}  // namespace tdock::trainer
