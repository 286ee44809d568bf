#include "trainer/recipes/first_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/fails.h"
#include "trainer/recipes/testing/small_run.h"

namespace tdock::trainer {
namespace {

using testing::HasSubstr;

class FirstConfigTest : public testing::Test {
 protected:
  FirstConfigTest() : trained_("sft") { EXPECT_TRUE(trained_.Train().ok()); }

  std::string model() const { return trained_.run_dir() + "/checkpoint"; }
  std::string data() const { return trained_.folder() + "/train.jsonl"; }

  FirstConfigOptions Of(const std::string& recipe) const { return {recipe, model(), data()}; }
  // Data with these lines.
  FirstConfigOptions Of(const std::string& recipe, const std::string& lines) const {
    const std::string path = NewFolder() + "/data.jsonl";
    EXPECT_TRUE(WriteFileAtomically(Env::Real(), path, lines).ok());
    return {recipe, model(), path};
  }

  // Writes the configuration, and trains with it for a few steps.
  absl::StatusOr<RunResult> TrainWith(const std::string& yaml) {
    const std::string path = trained_.folder() + "/first.yaml";
    TDOCK_RETURN_IF_ERROR(WriteFileAtomically(Env::Real(), path, yaml));
    const std::vector<std::string> overrides = {"trainer.run_dir=" + NewFolder() + "/run",
                                                "trainer.total_training_steps=2"};
    TDOCK_ASSIGN_OR_RETURN(const auto recipe, LoadRecipe(Env::Real(), path, overrides));
    Progress progress({.write = [](absl::string_view) {}, .columns = [] { return 0; }}, Clock::Real());
    TDOCK_ASSIGN_OR_RETURN(const auto run, PrepareRun(*recipe, {Env::Real(), Clock::Real(), progress}));
    return run->Train();
  }

  SmallRun trained_;
};

TEST_F(FirstConfigTest, RunsAsItIs) {
  for (const char* recipe : {"sft", "ppo", "grpo"}) {
    const auto yaml = FirstConfig(Env::Real(), Of(recipe));
    ASSERT_TRUE(yaml.ok()) << yaml.status();
    EXPECT_THAT(*yaml, HasSubstr("Recognised as prompt_answer, style text"));
    EXPECT_THAT(*yaml, Mentions({"val_share: 0.05", "4 of 80"}));
    const auto result = TrainWith(*yaml);
    ASSERT_TRUE(result.ok()) << result.status() << "\n" << *yaml;
    EXPECT_EQ(result->steps, 2);
    EXPECT_FALSE(result->last.empty());
  }
}

TEST_F(FirstConfigTest, RunsOnPreferences) {
  for (const char* recipe : {"rm", "dpo"}) {
    const auto yaml = FirstConfig(Env::Real(), Of(recipe, DigitPreferences(false)));
    ASSERT_TRUE(yaml.ok()) << yaml.status();
    const auto result = TrainWith(*yaml);
    ASSERT_TRUE(result.ok()) << result.status() << "\n" << *yaml;
    EXPECT_TRUE(result->last.contains("val/accuracy"));
  }
}

TEST_F(FirstConfigTest, LengthsFitTheDataAndTheModel) {
  const auto sft = FirstConfig(Env::Real(), Of("sft"));
  ASSERT_TRUE(sft.ok()) << sft.status();
  EXPECT_THAT(*sft, Mentions({"max_length: 32 ", "has 6,", "takes 64"}));
  const auto grpo = FirstConfig(Env::Real(), Of("grpo"));
  ASSERT_TRUE(grpo.ok()) << grpo.status();
  EXPECT_THAT(*grpo, HasSubstr("max_prompt_length: 8"));
  EXPECT_THAT(*grpo, HasSubstr("max_response_length: 56"));
}

TEST(FirstConfig, ResponsesAreAsLongAsAnswersWithRoomToReasonBeforeShortOnes) {
  const std::string model =
      TrainedModel("sft", {"model.max_position_embeddings=1024", "trainer.total_training_steps=1"});
  const auto length = [&](const std::string& answer, const std::string& environment) {
    const std::string data = NewFolder() + "/data.jsonl";
    const std::string line = absl::StrCat(R"({"prompt": "12>", "answer": ")", answer, "\"}\n");
    EXPECT_TRUE(WriteFileAtomically(Env::Real(), data, line).ok());
    const auto yaml =
        FirstConfig(Env::Real(), {.recipe = "grpo", .model = model, .data = data, .environment = environment});
    EXPECT_TRUE(yaml.ok()) << yaml.status();
    const size_t at = yaml->find("max_response_length: ");
    return yaml->substr(at, yaml->find(' ', yaml->find(' ', at) + 1) - at);
  };
  EXPECT_EQ(length("21", ""), "max_response_length: 256");
  EXPECT_EQ(length(std::string(300, '7'), ""), "max_response_length: 320");
  EXPECT_EQ(length("21", "calculator"), "max_response_length: 512");
}

TEST_F(FirstConfigTest, BatchesFitTheDataAndRatesTheModel) {
  std::string lines;
  for (int i = 0; i < 2000; ++i) absl::StrAppend(&lines, R"({"prompt": "12>", "answer": "21"})", "\n");
  const auto many = FirstConfig(Env::Real(), Of("grpo", lines));
  ASSERT_TRUE(many.ok()) << many.status();
  EXPECT_THAT(*many, Mentions({"train_batch_size: 47 ", "ppo_mini_batch_size: 47 ", "    lr: 1.0e-5 "}));
  const auto few = FirstConfig(Env::Real(), Of("grpo"));
  ASSERT_TRUE(few.ok()) << few.status();
  EXPECT_THAT(*few, HasSubstr("train_batch_size: 8 "));

  const std::string path = model() + "/config.json";
  auto config = nlohmann::json::parse(*ReadFileUpTo(Env::Real(), path, 1 << 20));
  config["hidden_size"] = 8192;
  config["intermediate_size"] = 32768;
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), path, config.dump()).ok());
  const auto large = FirstConfig(Env::Real(), Of("grpo"));
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_THAT(*large, HasSubstr("    lr: 1.0e-6 "));
}

TEST_F(FirstConfigTest, NumbersAsRightAnswersGetTheRuleForNumbers) {
  const auto numbers = FirstConfig(Env::Real(), Of("grpo"));
  ASSERT_TRUE(numbers.ok()) << numbers.status();
  EXPECT_THAT(*numbers, Mentions({"80 of 80", "\nreward:\n  number:\n    weight: 1\n"}));
  const auto words = FirstConfig(Env::Real(), Of("grpo", "{\"prompt\": \"12>\", \"answer\": \"two\"}\n"));
  ASSERT_TRUE(words.ok()) << words.status();
  EXPECT_THAT(*words, testing::Not(HasSubstr("\nreward:")));
}

TEST_F(FirstConfigTest, HaveNoKlButThatOfPpo) {
  for (const char* recipe : {"grpo", "dapo"}) {
    const auto yaml = FirstConfig(Env::Real(), Of(recipe));
    ASSERT_TRUE(yaml.ok()) << yaml.status();
    EXPECT_THAT(*yaml, testing::Not(HasSubstr("kl_")));
  }
}

TEST_F(FirstConfigTest, PlainPromptsOfAModelWithAChatTemplateBecomeTurns) {
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), model() + "/chat_template.jinja",
                                  "{% for turn in messages %}{% if turn.role == 'assistant' %}>{% endif %}"
                                  "{{ turn.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}")
                  .ok());
  std::vector<std::string> notes;
  const auto yaml = FirstConfig(Env::Real(), Of("grpo"), [&](const std::string& line) { notes.push_back(line); });
  ASSERT_TRUE(yaml.ok()) << yaml.status();
  EXPECT_THAT(*yaml, Mentions({"\n  style: chat\n", "Recognised as prompt_answer, style chat"}));
  EXPECT_THAT(notes, testing::ElementsAre(Mentions({"data.style"})));
  const auto result = TrainWith(*yaml);
  ASSERT_TRUE(result.ok()) << result.status() << "\n" << *yaml;
  // Turns are turns in any case.
  notes.clear();
  const std::string turns = R"({"prompt": [{"role": "user", "content": "12>"}], "answer": "21"})";
  const auto of_turns =
      FirstConfig(Env::Real(), Of("grpo", turns + "\n"), [&](const std::string& line) { notes.push_back(line); });
  ASSERT_TRUE(of_turns.ok()) << of_turns.status();
  EXPECT_THAT(*of_turns, testing::Not(HasSubstr("\n  style: ")));
  EXPECT_TRUE(notes.empty());
}

TEST_F(FirstConfigTest, RunsWithAnEnvironment) {
  for (const char* recipe : {"ppo", "grpo"}) {
    FirstConfigOptions options = Of(recipe);
    options.environment = "calculator";
    const auto yaml = FirstConfig(Env::Real(), options);
    ASSERT_TRUE(yaml.ok()) << yaml.status();
    EXPECT_THAT(*yaml, Mentions({"name: \"calculator\"", "format: text"}));
    const auto result = TrainWith(*yaml);
    EXPECT_TRUE(result.ok()) << result.status() << "\n" << *yaml;
  }
}

TEST_F(FirstConfigTest, AnEnvironmentOrAFunctionOfOnesOwnNeedsNoRightAnswers) {
  const auto told = [&](const std::string& lines, const std::string& environment, const std::string& function) {
    FirstConfigOptions options = Of("grpo", lines);
    options.environment = environment;
    options.reward_function = function;
    const auto yaml = FirstConfig(Env::Real(), options);
    return yaml.ok() ? *yaml : std::string(yaml.status().message());
  };
  const std::string prompts = "{\"prompt\": \"12>\"}\n{\"prompt\": \"34>\"}\n";
  EXPECT_THAT(told(prompts, "games.py:Game", ""), HasSubstr("  function: \"games.py:Game\"\n"));
  EXPECT_THAT(told(prompts, "http://localhost:80", ""), HasSubstr("  url: \"http://localhost:80\"\n"));
  EXPECT_THAT(told(prompts, "", "rewards.py:score"), HasSubstr("\nreward:\n  function: \"rewards.py:score\"\n"));
  EXPECT_THAT(told(prompts, "calculator", ""), Mentions({"--environment"}));
  EXPECT_THAT(told(Reversals(false), "abacus", ""), Mentions({"environment.name", "abacus", "calculator"}));
  EXPECT_THAT(told(prompts, "games.py:Game", "rewards.py:score"), Mentions({"environment", "reward.function"}));
}

TEST_F(FirstConfigTest, RefusesModelsDataAndOptionsThatItCannotTrainWith) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto refused = [](const FirstConfigOptions& options) { return FirstConfig(Env::Real(), options).status(); };
  EXPECT_THAT(refused(Of("stf")), Fails(kInvalid, {"stf", "sft, rm, dpo, ppo, grpo"}));
  EXPECT_THAT(refused({"sft", "/nonexistent", data()}), Fails(absl::StatusCode::kNotFound, {"/nonexistent"}));
  EXPECT_THAT(refused({"sft", model(), "/nonexistent.jsonl"}),
              Fails(absl::StatusCode::kNotFound, {"/nonexistent.jsonl"}));
  const FirstConfigOptions prompts = Of("grpo", "{\"prompt\": \"12>\"}\n");
  EXPECT_THAT(refused(prompts),
              Fails(kInvalid, {prompts.data, "--reward-function", "--environment", "data.columns.truth"}));
  EXPECT_THAT(refused({"sft", model(), data(), "calculator"}), Fails(kInvalid, {"ppo, grpo, dapo", "sft"}));
}

}  // namespace
}  // namespace tdock::trainer
