#include "data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/limited_env.h"
#include "data/loader.h"
#include "data/testing/char_vocabulary.h"
#include "data/token_cache.h"

namespace tdock::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class DatasetTest : public testing::Test {
 protected:
  DatasetTest()
      : folder_(testing::TempDir() + "/data_" + testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(folder_);
    EXPECT_TRUE(env_.CreateFolders(folder_).ok());
  }
  std::string Write(absl::string_view name, absl::string_view bytes) {
    const std::string path = JoinPath(folder_, name);
    EXPECT_TRUE(env_.CreateFolders(std::filesystem::path(path).parent_path()).ok());
    EXPECT_TRUE(WriteFileAtomically(env_, path, bytes).ok());
    return path;
  }
  absl::StatusOr<std::unique_ptr<Dataset>> Open(const std::vector<std::string>& paths,
                                                absl::string_view name = "custom", Phase phase = Phase::kPrompt) {
    return Dataset::Open(env_, paths, std::nullopt, *Adapters().Find(name), phase);
  }
  std::unique_ptr<EncodedDataset> Encode(const Dataset& dataset, EncodingRules rules = {}, uint64_t tokenizer = 1) {
    return std::make_unique<EncodedDataset>(
        dataset, *SampleEncoder::Create(*Adapters().Find("custom"), Phase::kPrompt, *tokenizer_, std::nullopt, rules),
        text::ContentHash{tokenizer, 0}, [&dataset](int64_t index) { return dataset.Place(index); });
  }
  std::vector<std::string> Names(const std::string& folder) { return env_.List(folder).value(); }

  Env& env_ = Env::Real();
  const std::string folder_;
  const std::unique_ptr<text::Tokenizer> tokenizer_ = AsciiTokenizer();
};

// The samples as text, or what is wrong with each.
std::vector<std::string> Prompts(const Source<Sample>& dataset) {
  std::vector<int64_t> indexes(static_cast<size_t>(dataset.size()));
  std::iota(indexes.begin(), indexes.end(), 0);
  std::vector<std::string> prompts;
  for (const auto& sample : dataset.Load(indexes)) {
    prompts.push_back(sample.ok() ? std::get<std::string>(*std::get<Sample>(*sample).prompt)
                                  : std::string(sample.status().message()));
  }
  return prompts;
}

TEST_F(DatasetTest, FilesFollowOneAnother) {
  const std::string one = Write("1.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": 5}\n");
  const std::string none = Write("2.json", "[]");
  const std::string two = Write("3.csv", "id,prompt\n1,b\n2,c\n");
  const auto dataset = Open({one, none, two});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_THAT(Prompts(**dataset), ElementsAre("a", Mentions({one + ":2:", "'prompt'", "number"}), "b", "c"));
  EXPECT_EQ((*dataset)->Place(3), two + ":3");
  const auto jumping = (*dataset)->Load(std::vector<int64_t>{3, 0, 2, 3, 1});
  ASSERT_EQ(jumping.size(), 5u);
  EXPECT_EQ(std::get<Sample>(*jumping[0]).prompt, Sample::Part("c"));
  EXPECT_EQ(std::get<Sample>(*jumping[1]).prompt, Sample::Part("a"));
  EXPECT_EQ(std::get<Sample>(*jumping[2]).prompt, Sample::Part("b"));
  EXPECT_EQ(std::get<Sample>(*jumping[3]).prompt, Sample::Part("c"));
  EXPECT_FALSE(jumping[4].ok());
}

TEST_F(DatasetTest, AMissingColumnIsToldTheOnesThatAreThere) {
  const std::string path = Write("a.jsonl", "{\"question\": \"a\", \"answer\": 1}\n{\"id\": 1}\n");
  EXPECT_THAT(Open({path}).status(), Fails(absl::StatusCode::kInvalidArgument,
                                           {path, "'prompt'", "question, answer, id", "data.columns.prompt"}));
  const std::string csv = Write("a.csv", "prompt\nx\n");
  EXPECT_THAT(Open({csv}, "custom", Phase::kReward).status(),
              Fails(absl::StatusCode::kInvalidArgument, {csv, "'chosen'", ": prompt;", "data.columns.chosen"}));
}

TEST_F(DatasetTest, AColumnMayFirstComeLate) {
  std::string lines;
  for (int i = 0; i < 150; ++i) absl::StrAppend(&lines, "{\"prompt\": \"p\", \"chosen\": \"c\"}\n");
  absl::StrAppend(&lines, "broken\n");
  const std::string never = Write("never.jsonl", lines);
  EXPECT_THAT(
      Open({never}, "custom", Phase::kReward).status(),
      Fails(absl::StatusCode::kInvalidArgument, {never, "'rejected'", "prompt, chosen", "data.columns.rejected"}));
  absl::StrAppend(&lines, "{\"prompt\": \"p\", \"chosen\": \"c\", \"rejected\": \"r\"}\n");
  const auto dataset = Open({Write("late.jsonl", lines)}, "custom", Phase::kReward);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 152);
}

TEST_F(DatasetTest, RecordsThatAreAllBrokenAreNoMissingColumn) {
  const std::string path = Write("a.jsonl", "\n{\"prompt\" 1}\nx\n");
  EXPECT_THAT(std::string(Open({path}).status().message()), testing::StartsWith(path + ":2: not JSON: "));
}

TEST_F(DatasetTest, AnEmptySplitIsNamed) {
  const std::string path = Write("a.jsonl", "\n\n");
  EXPECT_THAT(Open({path}).status(), Fails(absl::StatusCode::kInvalidArgument, {"no records", path}));
  EXPECT_THAT(Open({Write("a.bin", "")}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"a.bin", "format", ".jsonl"}));
}

TEST_F(DatasetTest, SplitsAreFoundByTheirNames) {
  Write("hub/data/train-00000-of-00002.jsonl", "");
  Write("hub/data/train-00001-of-00002.jsonl", "");
  Write("hub/data/trainer.jsonl", "");
  Write("hub/data/test.jsonl", "");
  const std::string hub = JoinPath(folder_, "hub");
  EXPECT_THAT(*FindSplit(env_, hub, "train"),
              ElementsAre(hub + "/data/train-00000-of-00002.jsonl", hub + "/data/train-00001-of-00002.jsonl"));
  EXPECT_THAT(*FindSplit(env_, hub, "eval"), ElementsAre(hub + "/data/test.jsonl"));
  EXPECT_THAT(FindSplit(env_, hub, "dev").status(),
              Fails(absl::StatusCode::kNotFound,
                    {hub + "/data", "\"dev.\"",
                     "test.jsonl, train-00000-of-00002.jsonl, train-00001-of-00002.jsonl, trainer.jsonl"}));
  const std::string file = hub + "/data/test.jsonl";
  EXPECT_THAT(*FindSplit(env_, file, "train"), ElementsAre(file));
  EXPECT_EQ(FindSplit(env_, folder_ + "/nowhere", "train").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(DatasetTest, AHubsNameIsFoundInItsCache) {
  Write("hub/datasets--Dahoas--rm-static/refs/main", "0123abcd\n");
  const std::string hub = JoinPath(folder_, "hub");
  EXPECT_EQ(*FindInHubCache(env_, hub, "Dahoas/rm-static"), hub + "/datasets--Dahoas--rm-static/snapshots/0123abcd");
  EXPECT_THAT(FindInHubCache(env_, hub, "a/b").status(),
              Fails(absl::StatusCode::kNotFound, {"\"a/b\"", hub, "data.path"}));
  EXPECT_EQ(FindInHubCache(env_, hub, "../b").status().code(), absl::StatusCode::kInvalidArgument);
  Write("hub/datasets--Dahoas--rm-static/refs/main", "../../x");
  EXPECT_EQ(FindInHubCache(env_, hub, "Dahoas/rm-static").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(DatasetTest, TheHubsCacheIsWhereTheEnvironmentSays) {
  std::map<std::string, std::string> set;
  const auto variable = [&](const char* name) { return set.contains(name) ? set[name].c_str() : nullptr; };
  EXPECT_EQ(DefaultHubCache(variable), "");
  set["HOME"] = "/home/me";
  EXPECT_EQ(DefaultHubCache(variable), "/home/me/.cache/huggingface/hub");
  set["HF_HOME"] = "/big/hf";
  EXPECT_EQ(DefaultHubCache(variable), "/big/hf/hub");
  set["HF_HUB_CACHE"] = "/big/cache";
  EXPECT_EQ(DefaultHubCache(variable), "/big/cache");
  set["HF_HUB_CACHE"] = "";
  EXPECT_EQ(DefaultHubCache(variable), "/big/hf/hub");
}

TEST_F(DatasetTest, ItsContentDependsOnTheLimits) {
  const std::vector<std::string> paths = {Write("a.jsonl", "{\"prompt\": \"a\"}\n")};
  const auto content = [&](const RecordLimits& limits) {
    return (*Dataset::Open(env_, paths, std::nullopt, *Adapters().Find("custom"), Phase::kPrompt, limits))->content();
  };
  EXPECT_EQ(content({}), content({}));
  EXPECT_NE(content({}), content({.max_record_bytes = 100}));
  EXPECT_NE(content({}), content({.max_depth = 10}));
}

TEST_F(DatasetTest, AnEmptyCellOfCsvIsAbsent) {
  const auto dataset =
      Open({Write("a.csv", "prompt,chosen,rejected\np,c,\np,c,\"\"\np,c,r\n")}, "custom", Phase::kReward);
  const auto samples = (*dataset)->Load(std::vector<int64_t>{0, 1, 2});
  EXPECT_EQ(std::get<Sample>(*samples[0]).rejected, std::nullopt);
  EXPECT_EQ(std::get<Sample>(*samples[1]).rejected, std::nullopt);
  EXPECT_EQ(std::get<Sample>(*samples[2]).rejected, Sample::Part("r"));
}

TEST_F(DatasetTest, ATokenizersContentIsThatOfItsFiles) {
  EXPECT_EQ(TokenizerContent(env_, folder_).status().code(), absl::StatusCode::kNotFound);
  Write("tokenizer.json", "{}");
  const auto one = *TokenizerContent(env_, folder_);
  Write("tokenizer_config.json", "{}");
  EXPECT_NE(*TokenizerContent(env_, folder_), one);
}

class CacheTest : public DatasetTest {
 protected:
  CacheTest()
      : path_(Write("p.jsonl",
                    "{\"prompt\": \"a\"}\n{\"prompt\": null}\n{\"prompt\": \"bcdef\"}\n{\"prompt\": \"g\"}\n")) {
    options_ = {.folder = JoinPath(folder_, "cache"),
                .report = [](const absl::Status&) {},
                .log = [this](const std::string& line) { log_.push_back(line); }};
  }
  static absl::StatusOr<std::unique_ptr<TokenCache>> OpenOrBuild(Env& env, const Source<EncodedSample>& source,
                                                                 const CacheOptions& options) {
    auto cache = OpenCache(env, source, options);
    return cache.ok() && *cache == nullptr ? BuildCache(env, source, options) : std::move(cache);
  }
  // The samples in the cache, as text.
  std::vector<std::string> Cached(const Source<EncodedSample>& source) {
    auto cache = OpenOrBuild(env_, source, options_);
    if (!cache.ok()) return {std::string(cache.status().message())};
    counts_ = (*cache)->counts();
    std::vector<int64_t> indexes(static_cast<size_t>((*cache)->size()));
    std::iota(indexes.begin(), indexes.end(), 0);
    std::vector<std::string> texts;
    for (const auto& sample : (*cache)->Load(indexes)) {
      EXPECT_TRUE(sample.ok()) << sample.status();
      texts.push_back(*tokenizer_->Decode(std::get<EncodedSample>(*sample).ids));
    }
    return texts;
  }

  const std::string path_;
  CacheOptions options_;
  LoaderCounts counts_;
  std::vector<std::string> log_;
};

// Counts what is asked of another source.
class Counting final : public Source<EncodedSample> {
 public:
  explicit Counting(const Source<EncodedSample>& source) : source_(source) {}
  int64_t size() const override { return source_.size(); }
  std::vector<absl::StatusOr<OrSkip<EncodedSample>>> Load(std::span<const int64_t> indexes) const override {
    loads += static_cast<int>(indexes.size());
    return source_.Load(indexes);
  }
  text::ContentHash content() const override { return source_.content(); }
  mutable int loads = 0;

 private:
  const Source<EncodedSample>& source_;
};

TEST_F(CacheTest, SamplesAreEncodedOnce) {
  const auto dataset = *Open({path_});
  const auto encoded = Encode(*dataset, {.max_prompt_len = 4});
  const Counting counting(*encoded);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(Cached(counting), ElementsAre("a", "g"));
    EXPECT_EQ(counts_, (LoaderCounts{.samples = 2, .bad = 0, .incomplete = 1, .overlong = 1, .truncated = 0}));
  }
  EXPECT_EQ(counting.loads, 4);
  EXPECT_THAT(log_, ElementsAre());
  EXPECT_THAT(Names(options_.folder), ElementsAre(testing::EndsWith(".tokens")));
}

TEST_F(CacheTest, WhateverShapesTheSamplesMakesAnotherFile) {
  const auto dataset = *Open({path_});
  Cached(*Encode(*dataset));
  Cached(*Encode(*dataset, {.max_prompt_len = 4}));
  Cached(*Encode(*dataset, {.keep_messages = true}));
  Cached(*Encode(*dataset, {}, 2));
  options_.skip_bad_records = true;
  Cached(*Encode(*dataset));
  Write("p.jsonl", "{\"prompt\": \"b\"}\n");
  EXPECT_THAT(Cached(*Encode(**Open({path_}))), ElementsAre("b"));
  EXPECT_EQ(Names(options_.folder).size(), 6u);
}

TEST_F(CacheTest, ASealedFileWithoutSamplesIsRebuilt) {
  const auto dataset = *Open({path_});
  const auto encoded = Encode(*dataset);
  Cached(*encoded);
  const std::string file = JoinPath(options_.folder, Names(options_.folder)[0]);
  const std::string whole = *env_.ReadFile(file);
  constexpr size_t kHeader = 32;
  std::string empty = whole.substr(0, kHeader);
  const auto put = [&](uint64_t number) { empty.append(reinterpret_cast<const char*>(&number), sizeof number); };
  put(kHeader);                        // where samples would end
  for (int i = 0; i < 6; ++i) put(0);  // how many there are, and the counts
  text::ContentHasher hasher;
  hasher.Add(empty);
  put(hasher.Value().high);
  put(hasher.Value().low);
  empty += whole.substr(whole.size() - 8);
  ASSERT_TRUE(WriteFileAtomically(env_, file, empty).ok());
  EXPECT_THAT(Cached(*encoded), ElementsAre("a", "bcdef", "g"));
  ASSERT_THAT(log_, ElementsAre(Mentions({file, "no samples"})));
}

TEST_F(CacheTest, ACorruptFileIsRebuiltWithALogLine) {
  const auto dataset = *Open({path_});
  const auto encoded = Encode(*dataset);
  Cached(*encoded);
  const std::string file = JoinPath(options_.folder, Names(options_.folder)[0]);
  const std::string whole = *env_.ReadFile(file);
  Rng rng(1);
  for (int i = 0; i < 60; ++i) {
    std::string damaged = whole;
    if (i % 3 == 0) {
      damaged.resize(rng.Below(whole.size()));
    } else if (i % 3 == 1) {
      damaged[rng.Below(whole.size())] ^= static_cast<char>(1 + rng.Below(255));
    } else {
      damaged += static_cast<char>(rng.Below(256));
    }
    ASSERT_TRUE(WriteFileAtomically(env_, file, damaged).ok());
    log_.clear();
    EXPECT_THAT(Cached(*encoded), ElementsAre("a", "bcdef", "g"));
    ASSERT_THAT(log_, ElementsAre(Mentions({"corrupt cache", file + ": it"})));
    ASSERT_EQ(*env_.ReadFile(file), whole);
  }
}

TEST_F(CacheTest, AFullDiskLeavesNothingBehind) {
  const auto dataset = *Open({path_});
  const auto encoded = Encode(*dataset);
  for (const int64_t room : {0, 10, 100}) {
    LimitedEnv full(env_, room);
    EXPECT_EQ(OpenOrBuild(full, *encoded, options_).status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(Names(options_.folder), ElementsAre());
  }
}

TEST_F(CacheTest, ABadRecordStopsItUnlessSkipped) {
  const std::string bad = Write("bad.jsonl", "{\"prompt\": \"a\"}\nx\n");
  const auto dataset = *Open({bad});
  const auto encoded = Encode(*dataset);
  EXPECT_THAT(Cached(*encoded), ElementsAre(HasSubstr("bad.jsonl:2: not JSON")));
  EXPECT_THAT(Names(options_.folder), ElementsAre());
  options_.skip_bad_records = true;
  EXPECT_THAT(Cached(*encoded), ElementsAre("a"));
  EXPECT_EQ(counts_.bad, 1);
}

// Samples of every shape.
class Shapes final : public Source<EncodedSample> {
 public:
  static EncodedSample At(int64_t index) {
    Rng rng(static_cast<uint64_t>(index));
    EncodedSample sample;
    for (uint64_t i = rng.Below(9); i > 0; --i) sample.ids.push_back(static_cast<int32_t>(rng.Next()));
    if (rng.Below(2) == 0) sample.loss_mask.assign(sample.ids.size(), static_cast<uint8_t>(rng.Below(2)));
    for (uint64_t i = rng.Below(9); i > 0; --i) sample.rejected.push_back(static_cast<int32_t>(rng.Next()));
    sample.rejected_mask.assign(sample.rejected.size(), static_cast<uint8_t>(rng.Below(2)));
    if (rng.Below(2) == 0) sample.label = rng.Uniform();
    sample.truncated = rng.Below(2) == 0;
    sample.prompt_tokens = static_cast<int64_t>(rng.Below(sample.ids.size() + 1));
    for (std::string* text : {&sample.prompt_text, &sample.truth, &sample.source}) text->assign(rng.Below(9), 'x');
    if (rng.Below(2) == 0) sample.messages = "[]";
    for (uint64_t i = rng.Below(3); i > 0; --i) sample.kept.push_back(absl::StrCat("é", i));
    sample.rewritten = rng.Below(2) == 0;
    sample.is_part = rng.Below(2) == 0;
    return sample;
  }
  int64_t size() const override { return 500; }
  std::vector<absl::StatusOr<OrSkip<EncodedSample>>> Load(std::span<const int64_t> indexes) const override {
    std::vector<absl::StatusOr<OrSkip<EncodedSample>>> samples;
    for (const int64_t index : indexes) samples.emplace_back(At(index));
    return samples;
  }
  text::ContentHash content() const override { return {1, 2}; }
};

TEST_F(CacheTest, KeepsEverySampleAsItWas) {
  for (const int workers : {0, 2}) {
    options_.workers = workers;
    options_.folder = JoinPath(folder_, absl::StrCat("cache", workers));
    const auto cache = *OpenOrBuild(env_, Shapes(), options_);
    ASSERT_EQ(cache->size(), 500);
    for (const int64_t index : {int64_t{499}, int64_t{0}, int64_t{7}}) {
      EXPECT_EQ(std::get<EncodedSample>(**cache->Load(std::vector{index}).begin()), Shapes::At(index));
    }
    for (int64_t index = 0; index < 500; ++index) {
      const auto samples = cache->Load(std::vector{index});
      ASSERT_EQ(std::get<EncodedSample>(*samples[0]), Shapes::At(index));
      ASSERT_EQ(cache->BeginsRecord(index), index == 0 || !Shapes::At(index).is_part);
    }
  }
}

}  // namespace
}  // namespace tdock::data
