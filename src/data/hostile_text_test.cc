// Every message quotes the texts and the names of files of records.
#include "core/base/testing/hostile_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/base/json_text.h"
#include "data/adapter.h"
#include "data/column_path.h"
#include "data/dataset.h"
#include "data/known_forms.h"
#include "data/parquet_file.h"
#include "data/record_file.h"
#include "data/testing/bytes_file.h"
#include "data/token_cache.h"

namespace tdock::data {
namespace {

void ExpectQuotedError(const absl::Status& status, size_t* errors) {
  if (!status.ok()) ++*errors;
  for (const absl::string_view line : absl::StrSplit(status.message(), '\n')) {
    EXPECT_TRUE(IsSafeForTerminals(line)) << EscapeForTerminal(line);
    EXPECT_FALSE(absl::StartsWith(line, "FAKE")) << status;
  }
}

std::vector<int64_t> AllOf(int64_t size) {
  std::vector<int64_t> indexes(static_cast<size_t>(size));
  std::iota(indexes.begin(), indexes.end(), int64_t{0});
  return indexes;
}

// Reads a file in every way that there is, and returns how many errors there were.
size_t ErrorsOf(Format format, const std::string& bytes) {
  size_t errors = 0;
  const RecordLimits limits{.max_record_bytes = 1000, .max_depth = 4, .max_columns = 64};
  const auto open = [&] {
    auto file = OpenRecordFile(std::make_unique<BytesFile>(bytes), kHostileText, format, limits);
    ExpectQuotedError(file.status(), &errors);
    return file.ok() ? *std::move(file) : nullptr;
  };
  const std::unique_ptr<RecordFile> file = open();
  if (file == nullptr) return errors;
  for (const auto& record : file->Read(AllOf(file->size()), file->columns())) {
    ExpectQuotedError(record.status(), &errors);
  }
  std::vector<Adapter> adapters = {
      {.name = kHostileText, .prompt = kHostileText, .chosen = absl::StrCat(kHostileText, ".", kHostileText)},
      {.name = kHostileText, .style = Adapter::Style::kChat, .conversation = kHostileText, .label = kHostileText},
      {.name = kHostileText, .prompt = "prompt", .truth = "prompt", .truth_after = kHostileText},
      {.name = kHostileText}};
  const absl::StatusOr<Adapter> found = RecogniseForm(*file, {});
  ExpectQuotedError(found.status(), &errors);
  if (found.ok()) adapters.push_back(*found);
  for (const Adapter& adapter : adapters) {
    for (const Phase phase : {Phase::kSft, Phase::kReward, Phase::kPrompt, Phase::kUnsupervised}) {
      std::vector<DataFile> files;
      files.push_back({.path = kHostileText, .format = format, .records = open()});
      const auto dataset = Dataset::Open(std::move(files), adapter, phase, limits);
      ExpectQuotedError(dataset.status(), &errors);
      if (!dataset.ok()) continue;
      for (const auto& sample : (*dataset)->Load(AllOf((*dataset)->size())))
        ExpectQuotedError(sample.status(), &errors);
    }
  }
  return errors;
}

TEST(HostileText, IsQuotedInMessagesAboutJson) {
  const std::string hostile = AsciiJsonText(nlohmann::json(kHostileText));
  for (const char* record : {R"({H: 1, H: 2})",
                             R"({H: {H: {H: {H: {H: 1}}}}})",
                             R"({"prompt": H, "messages": H})",
                             R"({"prompt": {H: 1, H: 2}})",
                             R"({"messages": [{"role": H, "content": H}]})",
                             R"({"messages": [{"role": "user", H: H}], "tools": H})",
                             R"({"messages": [{"from": "user", "value": H, "train": H}]})",
                             R"({"prompt": "a", "answer": H, "system": H})",
                             R"({"prompt": [{"role": "user", "content": "a"}], "chosen": H, "rejected": H})",
                             R"({H: H})",
                             R"({"a": 1} H)",
                             R"({H: 99999999999999999999})",
                             R"({H H})",
                             R"([H])",
                             R"(H)",
                             R"({H: [{"role": 1}]})",
                             R"({"a": RAW})",
                             R"({"RAW": 1})",
                             R"(RAW)",
                             "{\"a\": \"\xFF\"}"}) {
    const std::string text = absl::StrReplaceAll(record, {{"H", hostile}, {"RAW", kHostileText}});
    EXPECT_GT(ErrorsOf(Format::kJsonLines, text), 0u) << text;
    EXPECT_GT(ErrorsOf(Format::kJson, absl::StrCat("[", text, "]")), 0u) << text;
    EXPECT_GT(ErrorsOf(Format::kJson, text), 0u) << text;
  }
}

TEST(HostileText, IsQuotedInMessagesAboutTables) {
  const std::string quoted = absl::StrCat("\"", kHostileText, "\"");
  for (const char* text : {"H\n1\n", "H,H\n1,2\n", "prompt,H\nH,H\n", "H,b\nH\n", "prompt\nx\"H\n", "prompt\n\"x\"H\n",
                           "\"H", "prompt,answer\nH,H,H\n", ""}) {
    EXPECT_GT(ErrorsOf(Format::kCsv, absl::StrReplaceAll(text, {{"H", quoted}})), 0u) << text;
    EXPECT_GT(ErrorsOf(Format::kCsv, absl::StrReplaceAll(text, {{"H", kHostileText}})), 0u) << text;
  }
  EXPECT_GT(ErrorsOf(Format::kText, absl::StrCat(kHostileText, "\xFF")), 0u);
  if (ReadsParquet()) {
    EXPECT_GT(ErrorsOf(Format::kParquet, kHostileText), 0u);
  }
}

TEST(HostileText, IsQuotedInNamesOfFilesAndDataSets) {
  size_t errors = 0;
  ExpectQuotedError(FormatOfPath(kHostileText).status(), &errors);
  ExpectQuotedError(FormatOfPath(absl::StrCat(kHostileText, ".gz")).status(), &errors);
  ExpectQuotedError(FindSplit(Env::Real(), kHostileText, kHostileText).status(), &errors);
  ExpectQuotedError(FindSplit(Env::Real(), absl::StrCat("/", kHostileText, "/a"), "train").status(), &errors);
  ExpectQuotedError(FindInHubCache(Env::Real(), kHostileText, kHostileText).status(), &errors);
  ExpectQuotedError(TokenizerContent(Env::Real(), kHostileText).status(), &errors);
  ExpectQuotedError(TokenCache::Open(std::make_unique<BytesFile>(""), kHostileText, {1, 2}).status(), &errors);
  const std::vector<std::string> paths = {kHostileText};
  ExpectQuotedError(OpenDataFiles(Env::Real(), paths, Format::kText, {}).status(), &errors);
  EXPECT_EQ(errors, 8u);
}

TEST(HostileText, IsQuotedInMessagesAboutAdapters) {
  constexpr char kInYaml[] = R"(\e]0;PWNED\a\e[2J\nFAKE LOG LINE\u202e)";
  for (const char* yaml : {R"("H": 1)", R"("H": {"H": "H"})", R"(a: {style: "H"})", R"("H": {prompt: ["H"]})",
                           "\"H\": {prompt: a}\n\"H\": {prompt: b}"}) {
    size_t errors = 0;
    Adapters adapters;
    ExpectQuotedError(adapters.AddYaml(absl::StrReplaceAll(yaml, {{"H", kInYaml}}), kHostileText), &errors);
    EXPECT_EQ(errors, 1u) << yaml;
  }
  size_t errors = 0;
  Adapters adapters;
  adapters.Set({.name = kHostileText, .prompt = "p"});
  ExpectQuotedError(adapters.Find("other").status(), &errors);
  ExpectQuotedError(adapters.Find(absl::StrCat("other", kHostileText)).status(), &errors);
  EXPECT_EQ(errors, 2u);
  EXPECT_TRUE(IsSafeForTerminals(
      DescribeAdapter({.name = kHostileText, .prompt = kHostileText, .truth = "t", .truth_after = kHostileText})));
}

}  // namespace
}  // namespace tdock::data
