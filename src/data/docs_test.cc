// Runs the examples of docs/data.md.
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/env.h"
#include "data/char_vocabulary.h"
#include "data/data_config.h"

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
    const auto encoder =
        SampleEncoder::Create(*ResolveAdapter(env_, config), phase, *tokenizer_, form, RulesOf(config));
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
    const std::string wanted = After(blocks[i].info, "phase=");
    if (wanted.empty()) continue;
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
  const std::string message(
      config::Load(spec, "data: {phase_shares: '2,4', phase_index: 2, overlong_prompts: cut}", "c", {}).message());
  EXPECT_NE(message.find("there are only 2 phases"), std::string::npos) << message;
  EXPECT_NE(message.find("drop, truncate_left or error"), std::string::npos) << message;
}

TEST(DataConfig, WithoutAPathTheHubsCacheIsLookedIn) {
  DataConfig config;
  config.name = "Dahoas/rm-static";
  config.hub_cache = "/nowhere";
  EXPECT_EQ(OpenDataset(Env::Real(), config, Phase::kReward).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tdock::data
