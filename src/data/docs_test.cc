// Runs the examples of docs/data.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/env.h"
#include "core/base/testing/fails.h"
#include "data/data_config.h"
#include "data/parquet_file.h"
#include "data/testing/char_vocabulary.h"

namespace tdock::data {
namespace {

struct Block {
  std::string info;  // after the fence, such as "yaml phase=sft"
  std::string text;
};

std::vector<Block> BlocksOf(const std::string& page) {
  std::vector<Block> blocks;
  bool inside = false;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, "```")) {
      if (!inside) blocks.push_back({std::string(rest), ""});
      inside = !inside;
    } else if (inside) {
      absl::StrAppend(&blocks.back().text, line, "\n");
    }
  }
  EXPECT_FALSE(inside);
  return blocks;
}

std::string After(const std::string& info, const std::string& key) {
  const size_t at = info.find(key);
  return at == std::string::npos ? "" : info.substr(at + key.size());
}

class Page : public testing::Test {
 protected:
  // What an example gives, a line for each record.
  std::string Given(const std::string& yaml, Phase phase) {
    DataConfig config;
    config::Spec spec;
    BindData(spec, config);
    if (absl::Status status = config::Load(spec, yaml, "example", {}); !status.ok())
      return std::string(status.message());
    config.path = JoinPath(folder_, config.path);
    if (!config.adapters.empty()) config.adapters = JoinPath(folder_, config.adapters);
    const auto dataset = OpenDataset(env_, config, phase);
    if (!dataset.ok()) return std::string(dataset.status().message());
    std::optional<text::ChatTemplate> form;
    if (!config.chat_template.empty()) form = *ResolveTemplate(env_, config, "");
    const auto encoder = SampleEncoder::Create((*dataset)->adapter(), phase, *tokenizer_, form, RulesOf(config));
    if (!encoder.ok()) return std::string(encoder.status().message());
    const EncodedDataset encoded(**dataset, *encoder, {}, [&](int64_t index) { return (*dataset)->Place(index); });
    std::vector<int64_t> indexes(static_cast<size_t>(encoded.size()));
    std::iota(indexes.begin(), indexes.end(), 0);
    std::string lines;
    for (const auto& sample : encoded.Load(indexes)) {
      absl::StrAppend(&lines, absl::StrReplaceAll(Line(sample), {{folder_ + "/", ""}, {"\n", "\\n"}}), "\n");
    }
    return lines;
  }

  std::string Line(const absl::StatusOr<OrSkip<EncodedSample>>& loaded) {
    if (!loaded.ok()) return std::string(loaded.status().message());
    if (const Skip* skip = std::get_if<Skip>(&*loaded)) return *skip == Skip::kOverlong ? "overlong" : "incomplete";
    const EncodedSample& sample = std::get<EncodedSample>(*loaded);
    std::string line;
    bool counted = false;
    for (size_t i = 0; i <= sample.ids.size(); ++i) {
      const bool now = i < sample.loss_mask.size() && sample.loss_mask[i] != 0;
      if (now != counted) line += now ? "⟦" : "⟧";
      counted = now;
      if (i < sample.ids.size()) line += Text({sample.ids[i]});
    }
    if (!sample.rejected.empty()) absl::StrAppend(&line, " | ", Text(sample.rejected));
    if (sample.label) absl::StrAppend(&line, " (label ", *sample.label, ")");
    // Of a prompt, what a reward needs.
    if (sample.loss_mask.empty() && !sample.truth.empty()) {
      absl::StrAppend(&line, " (truth ", sample.truth, ", source ", sample.source, ")");
    }
    return line;
  }

  std::string Text(const std::vector<int32_t>& ids) { return *tokenizer_->Decode(ids, text::SpecialTokens::kKeep); }

  Env& env_ = Env::Real();
  const std::string folder_ = testing::TempDir() + "/data_page";
  const std::unique_ptr<text::Tokenizer> tokenizer_ = AsciiTokenizer();
};

TEST_F(Page, EveryExampleGivesWhatIsShown) {
  std::filesystem::remove_all(folder_);
  ASSERT_TRUE(env_.CreateFolders(folder_).ok());
  const std::vector<Block> blocks = BlocksOf(*env_.ReadFile("docs/data.md"));
  int examples = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string file = After(blocks[i].info, "file=");
    if (!file.empty()) {
      ASSERT_TRUE(WriteFileAtomically(env_, JoinPath(folder_, file), blocks[i].text).ok());
    }
    // What Python writes is kept beside the tests; make_parquet.py writes it by the example.
    const std::string written = After(blocks[i].info, "writes=");
    if (!written.empty()) {
      std::filesystem::copy_file(JoinPath("tests/data", written), JoinPath(folder_, written));
    }
    const std::string wanted = After(blocks[i].info, "phase=");
    if (wanted.empty()) continue;
    if (!ReadsParquet() && absl::StrContains(blocks[i].text, ".parquet")) continue;
    std::optional<Phase> phase;
    for (const Phase known : {Phase::kSft, Phase::kReward, Phase::kPrompt, Phase::kUnsupervised}) {
      if (PhaseName(known) == wanted) phase = known;
    }
    ASSERT_TRUE(phase) << wanted;
    ASSERT_LT(i + 1, blocks.size());
    ASSERT_EQ(blocks[i + 1].info, "text gives");
    EXPECT_EQ(Given(blocks[i].text, *phase), blocks[i + 1].text) << blocks[i].text;
    ++examples;
  }
  EXPECT_GE(examples, 9);
}

TEST_F(Page, NamesEveryTemplate) {
  const std::string page = *env_.ReadFile("docs/data.md");
  for (const std::string& name : text::ChatTemplate::Names()) {
    EXPECT_NE(page.find(absl::StrCat("| `", name, "` |")), std::string::npos) << name;
  }
}

TEST(DataConfig, ReportsWhatIsWrong) {
  DataConfig config;
  config::Spec spec;
  BindData(spec, config);
  EXPECT_THAT(config::Load(spec, "data: {phase_shares: '2,4', phase_index: 2, overlong_prompts: cut}", "c", {}),
              Fails(absl::StatusCode::kInvalidArgument, {"2 phases", "drop, truncate_left or error"}));
}

class PhaseSamplesTest : public testing::Test {
 protected:
  PhaseSamplesTest() {
    std::filesystem::remove_all(folder_);
    EXPECT_TRUE(env_.CreateFolders(folder_).ok());
    EXPECT_TRUE(WriteFileAtomically(env_, JoinPath(folder_, "tokenizer.json"), "{}").ok());
    std::string lines;
    for (int i = 0; i < 10; ++i) absl::StrAppend(&lines, "{\"prompt\": \"", i, i == 7 ? "7777\"}\n" : "\"}\n");
    config_.path = JoinPath(folder_, "p.jsonl");
    EXPECT_TRUE(WriteFileAtomically(env_, config_.path, lines).ok());
    config_.max_prompt_length = 4;
  }
  absl::StatusOr<std::unique_ptr<PhaseSamples>> Open(const std::string& shares, int64_t index) {
    config_.phase_shares = shares;
    config_.phase_index = index;
    return PhaseSamples::Open(env_, config_, Phase::kPrompt, *tokenizer_, folder_,
                              [this](const std::string& line) { log_.push_back(line); });
  }
  // The prompts, in their order.
  std::vector<std::string> Prompts(const PhaseSamples& samples) {
    std::vector<int64_t> indexes(static_cast<size_t>(samples.size()));
    std::iota(indexes.begin(), indexes.end(), 0);
    std::vector<std::string> prompts;
    for (const auto& sample : samples.Load(indexes)) {
      if (!sample.ok()) {
        prompts.emplace_back(sample.status().message());
      } else if (const auto* encoded = std::get_if<EncodedSample>(&*sample)) {
        prompts.push_back(*tokenizer_->Decode(encoded->ids));
      }
    }
    return prompts;
  }

  Env& env_ = Env::Real();
  const std::string folder_ = testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::unique_ptr<text::Tokenizer> tokenizer_ = AsciiTokenizer();
  DataConfig config_;
  std::vector<std::string> log_;
};

TEST_F(PhaseSamplesTest, EachPhaseHasItsShareOfTheRecords) {
  std::vector<std::string> all;
  for (const auto& [phase, size] : {std::pair(0, 2), {1, 4}, {2, 4}}) {
    const auto samples = Open("2,4,4", phase);
    ASSERT_TRUE(samples.ok()) << samples.status();
    EXPECT_EQ((*samples)->size(), size);
    for (const std::string& prompt : Prompts(**samples)) all.push_back(prompt);
  }
  std::sort(all.begin(), all.end());
  const std::vector<std::string> expected = {"0", "1", "2", "3", "4", "5", "6", "8", "9"};
  EXPECT_EQ(all, expected);
  EXPECT_EQ(Prompts(**Open("1", 0)), expected);
  EXPECT_THAT(Open("5,0,5", 1).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"data.phase_shares", "\"5,0,5\"", "phase 1", "10 records"}));
  EXPECT_THAT(Open("1,1", 2).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"data.phase_shares", "\"1,1\"", "phase 2", "from 0"}));
}

TEST_F(PhaseSamplesTest, ABadRecordOfAPhaseIsToldWithItsPlace) {
  config_.overlong_prompts = OverlongPrompts::kError;
  std::vector<std::string> bad;
  for (const int phase : {0, 1}) {
    for (const std::string& prompt : Prompts(**Open("1,1", phase))) {
      if (prompt.size() > 1) bad.push_back(prompt);
    }
  }
  EXPECT_THAT(
      bad, testing::ElementsAre(Mentions({config_.path + ":8: ", "5 tokens", "at most 4", "data.max_prompt_length"})));
}

TEST_F(PhaseSamplesTest, AreEncodedOnceWithACache) {
  config_.cache = JoinPath(folder_, "cache");
  config_.skip_bad_records = true;
  ASSERT_TRUE((*env_.OpenForWriting(config_.path, WriteMode::kAppend))->Append("broken\n").ok());
  for (int i = 0; i < 2; ++i) {
    const auto samples = Open("1", 0);
    ASSERT_TRUE(samples.ok()) << samples.status();
    ASSERT_NE((*samples)->cache(), nullptr);
    EXPECT_EQ((*samples)->cache()->counts(),
              (LoaderCounts{.samples = 9, .bad = 1, .incomplete = 0, .overlong = 1, .truncated = 0}));
    EXPECT_EQ(Prompts(**samples).size(), 9u);
  }
  // Told while it was encoded, which was once.
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_THAT(log_[0], Mentions({"left out", config_.path + ":11: not JSON"}));
  EXPECT_TRUE(Open("1,1", 1).ok());
  EXPECT_EQ(env_.List(config_.cache)->size(), 2u) << "a phase has a cache of its own";
}

TEST(DataConfig, WithoutAPathTheHubsCacheIsLookedIn) {
  DataConfig config;
  config.name = "Dahoas/rm-static";
  config.hub_cache = "/nowhere";
  EXPECT_EQ(OpenDataset(Env::Real(), config, Phase::kReward).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tdock::data
