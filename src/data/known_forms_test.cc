#include "data/known_forms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "data/parquet_file.h"
#include "data/testing/bytes_file.h"

namespace tdock::data {
namespace {

// The name and the columns of the form that a file is recognised as, or why it is not.
std::string FormOf(const RecordFile& file, const Adapter& given = {}) {
  const absl::StatusOr<Adapter> adapter = RecogniseForm(file, given);
  if (!adapter.ok()) return std::string(adapter.status().message());
  return absl::StrCat(adapter->name, ": ", DescribeAdapter(*adapter));
}

std::string FormOf(absl::string_view objects, const Adapter& given = {}) {
  const auto file = OpenRecordFile(std::make_unique<BytesFile>(absl::StrCat("[", objects, "]")), "f", Format::kJson);
  EXPECT_TRUE(file.ok()) << file.status();
  return FormOf(**file, given);
}

TEST(KnownForms, Verl) {
  const std::string expected =
      "verl: style chat, prompt: prompt, truth: reward_model.ground_truth, source: data_source";
  EXPECT_EQ(FormOf(R"({"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "2+2?"}],
                       "ability": "math", "reward_model": {"style": "rule", "ground_truth": "4"},
                       "extra_info": {"split": "train"}})"),
            expected);
  if (!ReadsParquet()) GTEST_SKIP() << "this build does not read Parquet";
  const auto file = OpenRecordFile(Env::Real(), "tests/data/verl.parquet", Format::kParquet);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(FormOf(**file), expected);
}

// The examples of TRL's page on the formats of data sets.
TEST(KnownForms, Trl) {
  EXPECT_EQ(FormOf(R"({"text": "The sky is blue."})"), "text: style text, text: text");
  EXPECT_EQ(FormOf(R"({"messages": [{"role": "user", "content": "What color is the sky?"},
                                    {"role": "assistant", "content": "It is blue."}]})"),
            "messages: style chat, conversation: messages");
  EXPECT_EQ(FormOf(R"({"prompt": "The sky is"})"), "prompt: style text, prompt: prompt");
  EXPECT_EQ(FormOf(R"({"prompt": [{"role": "user", "content": "What color is the sky?"}]})"),
            "prompt: style chat, prompt: prompt");
  EXPECT_EQ(FormOf(R"({"prompt": "The sky is", "completion": " blue."})"),
            "prompt_completion: style text, prompt: prompt, chosen: completion, truth: completion");
  EXPECT_EQ(FormOf(R"({"prompt": "The sky is", "chosen": " blue.", "rejected": " green."})"),
            "preference: style text, prompt: prompt, chosen: chosen, rejected: rejected");
  EXPECT_EQ(FormOf(R"({"prompt": [{"role": "user", "content": "What color is the sky?"}],
                       "chosen": [{"role": "assistant", "content": "It is blue."}],
                       "rejected": [{"role": "assistant", "content": "It is green."}]})"),
            "preference: style chat, prompt: prompt, chosen: chosen, rejected: rejected");
  EXPECT_EQ(FormOf(R"({"chosen": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "It is blue."}],
                       "rejected": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "Green."}]})"),
            "preference: style chat, chosen: chosen, rejected: rejected");
}

TEST(KnownForms, ACompletionOfTurnsIsNoTruth) {
  EXPECT_EQ(FormOf(R"({"prompt": [{"role": "user", "content": "What color is the sky?"}],
                       "completion": [{"role": "assistant", "content": "It is blue."}]})"),
            "prompt_completion: style chat, prompt: prompt, chosen: completion");
}

TEST(KnownForms, ShareGpt) {
  EXPECT_EQ(FormOf(R"({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}],
                       "system": "", "tools": null})"),
            "sharegpt: style chat, conversation: conversations, tools: tools");
  EXPECT_THAT(FormOf(R"({"conversations": [], "system": ""}, {"conversations": [], "system": "Be brief."})"),
              Mentions({"column 'system'", "data.name to chat", "data.columns"}));
}

TEST(KnownForms, ASystemTextBesideThePromptIsNotLeftOut) {
  EXPECT_THAT(FormOf(R"({"prompt": [{"role": "user", "content": "Hi"}], "system": "Be brief.",
                         "chosen": [{"role": "assistant", "content": "Hello."}]})"),
              Mentions({"column 'system'", "data.name to custom"}));
}

TEST(KnownForms, Alpaca) {
  EXPECT_EQ(FormOf(R"({"instruction": "Give three tips.", "input": "", "output": "1. Eat."})"),
            "alpaca: style alpaca, prompt: instruction, input: input, chosen: output, truth: output");
  EXPECT_EQ(FormOf(R"({"instruction": "Give three tips.", "output": "1. Eat."})"),
            "alpaca: style alpaca, prompt: instruction, chosen: output, truth: output");
}

TEST(KnownForms, Gsm8k) {
  EXPECT_EQ(FormOf(R"({"question": "2+2?", "answer": "2+2 = <<2+2=4>>4\n#### 4"})"),
            "openai/gsm8k: style chat, prompt: question, chosen: answer, truth: answer after \"####\"");
  EXPECT_EQ(FormOf(R"({"question": "2+2?", "answer": "4"})"),
            "question_answer: style chat, prompt: question, chosen: answer, truth: answer");
}

TEST(KnownForms, PromptsWithAnAnswer) {
  for (const char* answer : {"answer", "truth", "response"}) {
    EXPECT_EQ(FormOf(absl::StrCat("{\"prompt\": \"37+85=\", \"", answer, "\": 122}")),
              absl::StrCat("prompt_", answer, ": style text, prompt: prompt, chosen: ", answer, ", truth: ", answer));
  }
}

TEST(KnownForms, GivenColumnsStandForThoseThatWouldBeFound) {
  EXPECT_EQ(
      FormOf(R"({"q": [{"role": "user", "content": "?"}], "a": "x"})", {.name = "", .prompt = "q", .chosen = "a"}),
      "prompt: style chat, prompt: q, chosen: a");
  EXPECT_EQ(FormOf(R"({"prompt": "?", "meta": {"solution": "4"}})", {.name = "", .truth = "meta.solution"}),
            "prompt: style text, prompt: prompt, truth: meta.solution");
}

TEST(KnownForms, OtherColumnsAreToldWithTheKnownForms) {
  EXPECT_THAT(FormOf(R"({"problem": "2+2?", "solution": "4"})"),
              Mentions({"problem, solution", "messages;", "data.columns.prompt"}));
}

TEST(KnownForms, RecordsThatCannotBeReadArePassedOver) {
  EXPECT_EQ(FormOf(R"({broken}, {"prompt": null}, {"prompt": [{"role": "user", "content": "?"}]})"),
            "prompt: style chat, prompt: prompt");
}

}  // namespace
}  // namespace tdock::data
