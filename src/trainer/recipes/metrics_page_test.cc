// Holds the table of metrics in docs/training.md against what runs write.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "trainer/recipes/testing/small_run.h"

namespace tdock::trainer {
namespace {

// "a/{b,c}" as "a/b" and "a/c".
std::vector<std::string> Expanded(const std::string& name) {
  const size_t begin = name.find('{'), end = name.find('}');
  if (begin == std::string::npos) return {name};
  std::vector<std::string> names;
  for (const absl::string_view part : absl::StrSplit(name.substr(begin + 1, end - begin - 1), ',')) {
    for (const std::string& more : Expanded(absl::StrCat(name.substr(0, begin), part, name.substr(end + 1)))) {
      names.push_back(more);
    }
  }
  return names;
}

struct Documented {
  std::set<std::string> always;       // in runs of the recipe
  std::vector<std::regex> sometimes;  // as the column says
};

// `stages` stand for STAGE in names.
Documented ReadTable(const std::string& recipe, const std::string& stages) {
  const std::string page = *Env::Real().ReadFile("docs/training.md");
  const size_t begin = page.find("| metric | in | meaning |\n");
  EXPECT_NE(begin, std::string::npos);
  Documented found;
  for (const absl::string_view row : absl::StrSplit(page.substr(begin, page.find("\n\n", begin) - begin), '\n')) {
    const std::vector<std::string> cells = absl::StrSplit(row, " | ");
    if (!absl::StartsWith(row, "| `") || cells.size() < 3) continue;
    const std::vector<std::string> quoted = absl::StrSplit(cells[0], '`');
    for (size_t i = 1; i < quoted.size(); i += 2) {
      for (const std::string& name : Expanded(absl::StrReplaceAll(quoted[i], {{"STAGE", "{" + stages + "}"}}))) {
        if (cells[1] == "all" || cells[1] == "`" + recipe + "`") {
          found.always.insert(name);
        } else if (cells[1] != "`grpo`" && cells[1] != "`sft`") {
          found.sometimes.emplace_back(absl::StrReplaceAll(name, {{"RULE", "[^/]+"}, {"SOURCE", ".+"}}));
        }
      }
    }
  }
  return found;
}

void ExpectTheDocumentedNames(SmallRun& run, const std::string& recipe, const std::string& stages) {
  ASSERT_TRUE(run.Train().ok());
  const Documented documented = ReadTable(recipe, stages);
  std::set<std::string> written;
  for (const nlohmann::json& record : run.Metrics()) {
    for (const auto& [name, value] : record.items()) {
      if (absl::StrContains(name, '/')) written.insert(name);
    }
  }
  for (const std::string& name : documented.always) EXPECT_TRUE(written.contains(name)) << "not written: " << name;
  for (const std::string& name : written) {
    const bool described = std::any_of(documented.sometimes.begin(), documented.sometimes.end(),
                                       [&](const std::regex& form) { return std::regex_match(name, form); });
    EXPECT_TRUE(described || documented.always.contains(name)) << "not documented: " << name;
  }
}

TEST(MetricsPage, NamesWhatRunsOfGrpoWrite) {
  SmallRun run("grpo", {"trainer.save_freq=1", "algorithm.rollout_correction.bypass_mode=false"});
  ExpectTheDocumentedNames(run, "grpo", "rollout,reward,ref,old_log_prob,advantage,actor");
}

TEST(MetricsPage, NamesWhatRunsOfSftWrite) {
  SmallRun run("sft", {"trainer.save_freq=1"});
  ExpectTheDocumentedNames(run, "sft", "actor");
}

}  // namespace
}  // namespace tdock::trainer
