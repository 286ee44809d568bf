#include "data/run_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/testing/fails.h"
#include "data/parquet_file.h"
#include "data/testing/char_vocabulary.h"

namespace tdock::data {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

class RunDataTest : public testing::Test {
 protected:
  RunDataTest() {
    std::filesystem::remove_all(folder_);
    EXPECT_TRUE(env_.CreateFolders(folder_).ok());
    Write("tokenizer.json", "{}");
    config_.chat_template = "chatml";
    config_.num_workers = 0;
  }
  std::string Write(absl::string_view name, absl::string_view bytes) {
    const std::string path = JoinPath(folder_, name);
    EXPECT_TRUE(env_.CreateFolders(std::filesystem::path(path).parent_path()).ok());
    EXPECT_TRUE(WriteFileAtomically(env_, path, bytes).ok());
    return path;
  }
  // A file of prompts "a0", "a1" …, whose answers are their numbers.
  std::string WritePrompts(absl::string_view name, absl::string_view letter, int count) {
    std::string lines;
    for (int i = 0; i < count; ++i) {
      absl::StrAppend(&lines, "{\"prompt\": \"", letter, i, "\", \"answer\": ", i, "}\n");
    }
    return Write(name, lines);
  }
  absl::StatusOr<RunData> Open(Phase phase = Phase::kPrompt) {
    return OpenRunData(env_, config_, phase, *tokenizer_, folder_,
                       [this](const std::string& line) { log_.push_back(line); });
  }
  std::vector<EncodedSample> Samples(const Source<EncodedSample>& source) {
    std::vector<int64_t> indexes(static_cast<size_t>(source.size()));
    std::iota(indexes.begin(), indexes.end(), 0);
    std::vector<EncodedSample> samples;
    for (auto& sample : source.Load(indexes)) {
      EXPECT_TRUE(sample.ok()) << sample.status();
      if (!sample.ok()) continue;
      if (auto* encoded = std::get_if<EncodedSample>(&*sample)) samples.push_back(*std::move(encoded));
    }
    return samples;
  }
  std::vector<std::string> Prompts(const Source<EncodedSample>& source) {
    std::vector<std::string> prompts;
    for (const EncodedSample& sample : Samples(source)) prompts.push_back(sample.prompt_text);
    return prompts;
  }
  std::string Text(const std::vector<int32_t>& ids) { return *tokenizer_->Decode(ids, text::SpecialTokens::kKeep); }
  // The one sample of a file, as the text that is trained on and the one that asks for the last reply.
  std::string OneSft(absl::string_view name, absl::string_view bytes) {
    config_.train_files = {Write(name, bytes)};
    const auto data = Open(Phase::kSft);
    if (!data.ok()) return std::string(data.status().message());
    const std::vector<EncodedSample> samples = Samples(*data->train);
    if (samples.size() != 1) return absl::StrCat(samples.size(), " samples");
    const std::string whole = Text(samples[0].ids);
    const std::string prompt = Text({samples[0].ids.begin(), samples[0].ids.begin() + samples[0].prompt_tokens});
    EXPECT_EQ(whole.substr(0, prompt.size()), prompt);
    return absl::StrCat(prompt, "│", whole.substr(prompt.size()));
  }

  Env& env_ = Env::Real();
  const std::string folder_ =
      testing::TempDir() + "/run_data_" + testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::unique_ptr<text::Tokenizer> tokenizer_ = AsciiTokenizer();
  DataConfig config_;
  std::vector<std::string> log_;
};

TEST_F(RunDataTest, FilesFollowOneAnother) {
  config_.train_files = {WritePrompts("a.jsonl", "a", 2), Write("b.csv", "question,answer\nb0,#### 7\n")};
  const auto data = Open();
  ASSERT_TRUE(data.ok()) << data.status();
  const std::vector<EncodedSample> samples = Samples(*data->train);
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_EQ(Text(samples[1].ids), "a1");
  EXPECT_EQ(samples[1].truth, "1");
  EXPECT_EQ(samples[1].source, "prompt_answer");
  EXPECT_EQ(Text(samples[2].ids), "<|im_start|>user\nb0<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(samples[2].truth, "7");
  EXPECT_EQ(samples[2].source, "openai/gsm8k");
  EXPECT_EQ(data->validation, nullptr);
  EXPECT_THAT(data->warnings, ElementsAre());
  EXPECT_THAT(log_, ElementsAre(config_.train_files[0] +
                                    ": 2 samples of \"prompt_answer\", style text, prompt: prompt, chosen: answer, "
                                    "truth: answer",
                                EndsWith("\"openai/gsm8k\", style chat, prompt: question, chosen: answer, truth: "
                                         "answer after \"####\"")));
}

TEST_F(RunDataTest, APathIsTheShortFormOfOneFile) {
  config_.path = WritePrompts("a.jsonl", "a", 2);
  EXPECT_THAT(Prompts(*Open()->train), ElementsAre("a0", "a1"));
}

TEST_F(RunDataTest, AFileComesAsOftenAsItsWeight) {
  config_.train_files = {WritePrompts("a.jsonl", "a", 4), WritePrompts("b.jsonl", "b", 4)};
  config_.train_weights = {"2", "0.5"};
  const auto data = Open();
  ASSERT_TRUE(data.ok()) << data.status();
  const std::vector<std::string> prompts = Prompts(*data->train);
  EXPECT_EQ(prompts.size(), 10u);
  EXPECT_EQ(std::count(prompts.begin(), prompts.end(), "a0"), 2);
  config_.train_weights = {"2"};
  EXPECT_THAT(Open().status(),
              Fails(absl::StatusCode::kInvalidArgument, {"1 data.train_weights", "2 data.train_files"}));
  for (const char* weight : {"nan", "0", "-1", "inf", "x", "1e9"}) {
    config_.train_weights = {"1", weight};
    EXPECT_THAT(Open().status(), Fails(absl::StatusCode::kInvalidArgument,
                                       {absl::StrCat("\"", weight, "\""), "data.train_weights", "1000"}));
  }
}

TEST_F(RunDataTest, AShareIsHeldOut) {
  config_.train_files = {WritePrompts("a.jsonl", "a", 30), WritePrompts("b.jsonl", "b", 10)};
  config_.train_weights = {"1", "2"};
  config_.val_share = 0.25;
  const auto data = Open();
  ASSERT_TRUE(data.ok()) << data.status();
  std::vector<std::string> held = Prompts(*data->validation);
  EXPECT_EQ(held.size(), 10u);
  EXPECT_THAT(data->warnings, ElementsAre());
  std::vector<std::string> all = Prompts(*data->train);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  EXPECT_EQ(all.size(), 30u);
  for (const std::string& prompt : held) EXPECT_EQ(std::count(all.begin(), all.end(), prompt), 0) << prompt;
  EXPECT_EQ(Prompts(*Open()->validation), held);
  config_.seed = 2;
  EXPECT_NE(Prompts(*Open()->validation), held);
  config_.train_files = {WritePrompts("c.jsonl", "c", 1)};
  config_.train_weights = {};
  EXPECT_THAT(Open().status(), Fails(absl::StatusCode::kInvalidArgument, {"data.val_share 0.25", "1 samples"}));
}

TEST_F(RunDataTest, AConversationIsHeldOutWithAllOfItsSamples) {
  // Replies lose what is before their point once more turns follow.
  Write("chat_template.jinja",
        "{% for m in messages %}{% set said = m.content if loop.last else m.content.split('.')[-1] %}"
        "{{ m.role[0] + said + '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}a{% endif %}");
  std::string lines;
  for (int i = 0; i < 8; ++i) {
    const std::string turns =
        absl::StrCat(R"({"role": "user", "content": "q)", i, R"("}, {"role": "assistant", "content": "x.y"})");
    absl::StrAppend(&lines, "{\"messages\": [", turns, ", ", turns, "]}\n");
  }
  config_.chat_template = "";
  config_.train_files = {Write("talk.jsonl", lines)};
  config_.val_share = 0.25;
  for (const std::string& cache : {std::string(), JoinPath(folder_, "cache")}) {
    config_.cache = cache;
    for (int i = 0; i < 2; ++i) {
      const auto data = Open(Phase::kSft);
      ASSERT_TRUE(data.ok()) << data.status();
      std::vector<std::string> held = Prompts(*data->validation), left = Prompts(*data->train);
      EXPECT_EQ(held.size(), 4u);
      EXPECT_EQ(left.size(), 12u);
      for (const std::string& prompt : held) {
        EXPECT_EQ(std::count(held.begin(), held.end(), prompt), 2);
        EXPECT_EQ(std::count(left.begin(), left.end(), prompt), 0);
      }
    }
  }
  EXPECT_THAT(log_, testing::Contains(Mentions({"8 conversations", "16", "samples", "each_reply"})));
  EXPECT_THAT(log_, testing::Contains(Mentions({"talk.jsonl: 16 samples"})));
  EXPECT_THAT(log_, testing::Not(testing::Contains(HasSubstr("warning"))));
}

TEST_F(RunDataTest, SamplesInBothAreAWarning) {
  config_.train_files = {WritePrompts("train.jsonl", "a", 5)};
  config_.val_files = {WritePrompts("validation.jsonl", "a", 2), WritePrompts("other.jsonl", "b", 2)};
  for (const int64_t workers : {0, 2}) {
    config_.num_workers = workers;
    const auto data = Open();
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_THAT(Prompts(*data->validation), ElementsAre("a0", "a1", "b0", "b1"));
    EXPECT_EQ(data->train->size(), 5);
    EXPECT_THAT(data->warnings, ElementsAre(Mentions({"2 of", "4 validation", "training"})));
  }
  config_.val_files.push_back(config_.val_files[0]);
  EXPECT_THAT(Open()->warnings, ElementsAre(Mentions({"4 of", "6 validation", "training"})));
  config_.val_files = {WritePrompts("validation.jsonl", "b", 2)};
  EXPECT_THAT(Open()->warnings, ElementsAre());
}

TEST_F(RunDataTest, OfMuchTrainingDataSomeIsComparedWithTheValidationSamples) {
  config_.train_files = {WritePrompts("train.jsonl", "a", 20'100)};
  config_.val_files = {WritePrompts("validation.jsonl", "a", 200)};
  const absl::Time begin = absl::Now();
  const auto data = Open();
  ASSERT_TRUE(data.ok()) << data.status();
  // The comparison also ends after ten seconds. Opening then took at least as long.
  const std::string compared = absl::Now() - begin < absl::Seconds(10) ? " 20000 of" : " of";
  EXPECT_THAT(data->warnings, ElementsAre(Mentions({"200 validation", "training", compared, "20100 samples"})));
}

TEST_F(RunDataTest, AFolderHasItsSplits) {
  WritePrompts("set/train-00000-of-00002.jsonl", "a", 1);
  WritePrompts("set/train-00001-of-00002.jsonl", "b", 1);
  WritePrompts("set/test.jsonl", "c", 1);
  config_.train_files = {JoinPath(folder_, "set")};
  config_.val_files = config_.train_files;
  const auto data = Open();
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(Prompts(*data->train), ElementsAre("a0", "b0"));
  EXPECT_THAT(Prompts(*data->validation), ElementsAre("c0"));
}

TEST_F(RunDataTest, SamplesComeFromTheCacheAsTheyWere) {
  config_.train_files = {Write(
      "a.jsonl", "{\"prompt\": null, \"answer\": 1}\n{\"prompt\": \"p\", \"answer\": 0.5, \"id\": {\"n\": [1]}}\n")};
  config_.columns.keep = {"id.n", "id"};
  const std::vector<EncodedSample> encoded = Samples(*Open()->train);
  ASSERT_EQ(encoded.size(), 1u);
  EXPECT_EQ(encoded[0].truth, "0.5");
  EXPECT_THAT(encoded[0].kept, ElementsAre("[1]", "{\"n\": [1]}"));
  config_.cache = JoinPath(folder_, "cache");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Samples(*Open()->train), encoded);
}

TEST_F(RunDataTest, EveryFormGivesSamplesToLearn) {
  const std::string chat = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n│a<|im_end|>\n";
  EXPECT_EQ(OneSft("messages.jsonl",
                   R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})"),
            chat);
  EXPECT_EQ(OneSft("sharegpt.json",
                   R"([{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}])"),
            chat);
  EXPECT_EQ(OneSft("turns.jsonl",
                   "{\"prompt\": [{\"role\": \"user\", \"content\": \"q\"}], "
                   "\"completion\": [{\"role\": \"assistant\", \"content\": \"a\"}]}"),
            chat);
  EXPECT_EQ(OneSft("texts.jsonl", R"({"prompt": "The sky is", "completion": " blue."})"), "The sky is│ blue.<eos>");
  EXPECT_EQ(OneSft("preference.jsonl", R"({"prompt": "The sky is", "chosen": " blue.", "rejected": " green."})"),
            "The sky is│ blue.<eos>");
  EXPECT_EQ(OneSft("whole.jsonl",
                   "{\"chosen\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
                   "\"content\": \"a\"}], \"rejected\": [{\"role\": \"user\", \"content\": \"q\"}, "
                   "{\"role\": \"assistant\", \"content\": \"b\"}]}"),
            chat);
  EXPECT_EQ(OneSft("gsm8k.jsonl", R"({"question": "q", "answer": "1\n#### 1"})"),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n│1\n#### 1<|im_end|>\n");
  EXPECT_EQ(OneSft("text.txt", "some text\n"), "│some text<eos>");
  EXPECT_THAT(OneSft("alpaca.json", R"([{"instruction": "Add.", "input": "", "output": "4"}])"),
              EndsWith("### Instruction:\nAdd.\n\n### Response:│4<eos>"));
}

TEST_F(RunDataTest, VerlsParquetGivesPromptsWithTheirTruth) {
  if (!ReadsParquet()) GTEST_SKIP() << "this build does not read Parquet";
  config_.train_files = {"tests/data/verl.parquet"};
  config_.columns.keep = {"extra_info.index", "ability"};
  const auto data = Open();
  ASSERT_TRUE(data.ok()) << data.status();
  const std::vector<EncodedSample> samples = Samples(*data->train);
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(Text(samples[1].ids), "<|im_start|>user\nHow many are a dozen?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(samples[1].prompt_text, "How many are a dozen?");
  EXPECT_EQ(samples[1].truth, "12");
  EXPECT_EQ(samples[1].source, "openai/gsm8k");
  EXPECT_THAT(samples[1].kept, ElementsAre("1", "math"));
}

TEST_F(RunDataTest, AMissingColumnIsToldWhatToSet) {
  const std::string path = Write("a.jsonl", "{\"q\": \"?\", \"meta\": {\"answer\": 4}}\n");
  config_.train_files = {path};
  const auto expect = [this](std::vector<std::string> names, Phase phase = Phase::kPrompt) {
    EXPECT_THAT(Open(phase).status(), Fails(absl::StatusCode::kInvalidArgument, std::move(names)));
  };
  expect({path + ": ", "q, meta.", "messages;", "data.columns.prompt"});
  config_.columns.prompt = "question";
  expect({path + ": ", "'question'", "q, meta;", "data.columns.prompt"});
  config_.columns.prompt = "q";
  config_.columns.truth = "meta.truth";
  expect({path + ": ", "'meta.truth'", ": answer;", "data.columns.truth"});
  config_.columns.truth = "meta.answer";
  EXPECT_EQ(Samples(*Open()->train)[0].truth, "4");
  config_.columns.keep = {"id"};
  expect({path + ": ", "'id'", "q, meta;", "data.keep"});
  config_.columns.keep = {};
  expect({path + ": ", "\"prompt\"", "\"chosen\"", "(sft)", "data.columns.chosen", "q, meta"}, Phase::kSft);
}

TEST_F(RunDataTest, ALaterRecordWithAColumnThatIsNotReadIsAnError) {
  const std::string alpaca = R"({"instruction": "?", "output": "!")";
  std::string lines;
  for (int i = 0; i < 150; ++i) absl::StrAppend(&lines, alpaca, i == 120 ? R"(, "history": [["a", "b"]]})" : "}", "\n");
  config_.train_files = {Write("a.jsonl", lines)};
  const auto data = Open(Phase::kSft);
  ASSERT_TRUE(data.ok()) << data.status();
  const std::vector<int64_t> indexes = {119, 120};
  const auto loaded = data->train->Load(indexes);
  EXPECT_TRUE(loaded[0].ok()) << loaded[0].status();
  EXPECT_THAT(loaded[1].status(), Fails(absl::StatusCode::kInvalidArgument, {"a.jsonl:121: ", "column 'history'"}));
}

TEST_F(RunDataTest, NumbersThatAreNoneAreErrors) {
  config_.train_files = {Write("a.jsonl", "{\"prompt\": \"?\", \"answer\": NaN}\n")};
  const absl::Status refused = Open().status();
  EXPECT_THAT(refused, Fails(absl::StatusCode::kInvalidArgument, {"a.jsonl:1: ", "NaN"}));
  EXPECT_THAT(std::string(refused.message()), testing::Not(HasSubstr("data.columns")))
      << "as of a file whose columns are not known";
}

TEST_F(RunDataTest, NothingToReadIsAnError) {
  EXPECT_THAT(Open().status(), Fails(absl::StatusCode::kInvalidArgument, {"data.train_files", "data.name"}));
  config_.train_files = {Write("a.jsonl", "\n")};
  EXPECT_THAT(Open().status(), Fails(absl::StatusCode::kInvalidArgument, {"no records", config_.train_files[0]}));
  config_.train_files = {JoinPath(folder_, "b.jsonl")};
  EXPECT_THAT(Open().status(), Fails(absl::StatusCode::kNotFound, {config_.train_files[0] + ": ", " a.jsonl?"}));
  config_.train_files = {"openai/gsm8k"};
  EXPECT_THAT(Open().status(), Fails(absl::StatusCode::kNotFound, {"`hf download openai/gsm8k"}));
}

TEST_F(RunDataTest, NoUsableSampleIsToldWhy) {
  const std::string path = WritePrompts("a.jsonl", "long prompt ", 10);
  config_.train_files = {path};
  config_.max_prompt_length = 4;
  const auto expected = Fails(absl::StatusCode::kFailedPrecondition,
                              {path + ": ", "10 records", ": 10 ", "data.max_prompt_length", "4 tokens"});
  EXPECT_THAT(Open().status(), expected);
  config_.cache = JoinPath(folder_, "cache");
  EXPECT_THAT(Open().status(), expected);
  config_.cache = "";
  config_.train_files = {Write("b.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}\n")};
  EXPECT_THAT(Open(Phase::kSft).status(),
              Fails(absl::StatusCode::kFailedPrecondition,
                    {config_.train_files[0] + ": ", "1 records", "reply", "data.train_on"}));
  config_.train_files = {Write("c.jsonl", "{\"prompt\": \"p\"}\n")};
  config_.val_files = {path};
  EXPECT_THAT(Open().status(), expected);
}

TEST(DataConfig, ATildeIsTheHomeFolder) {
  EXPECT_EQ(WithHomeFolder("~/a.jsonl"), JoinPath(std::getenv("HOME"), "a.jsonl"));
  for (const char* path : {"~a", "a/~/b", "~", ""}) EXPECT_EQ(WithHomeFolder(path), path);
}

TEST_F(RunDataTest, TheConfigurationIsChecked) {
  DataConfig config;
  config::Spec spec;
  BindData(spec, config);
  const absl::Status refused = config::Load(
      spec, "data: {path: a, train_files: [a, b], train_weights: [1], val_files: c, val_share: 0.5}", "c", {});
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  const std::vector<std::string> lines = absl::StrSplit(refused.message(), '\n');
  EXPECT_THAT(lines, testing::IsSupersetOf({Mentions({"data.path", "short form", "data.train_files"}),
                                            Mentions({"1 data.train_weights", "2 data.train_files"}),
                                            Mentions({"data.val_share", "data.val_files", "one of"})}));
  const std::vector<std::string> overrides = {"data.val_files=[x]", "data.keep=[id]"};
  const absl::Status loaded = config::Load(
      spec, "data: {path: '', train_files: [a, b], train_weights: [1, 0.5], val_share: 0}", "c", overrides);
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_THAT(config.train_files, ElementsAre("a", "b"));
  EXPECT_THAT(config.columns.keep, ElementsAre("id"));
}

}  // namespace
}  // namespace tdock::data
