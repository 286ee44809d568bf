// Keys whose value is a list of texts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "core/config/spec.h"

namespace tdock::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct FileLists {
  std::vector<std::string> train = {"default.jsonl"};
  std::vector<std::string> stop;
};

Spec SpecOfLists(FileLists& lists) {
  Spec spec;
  spec.Strings("data.train_files", &lists.train, "Train files.").NotEmpty();
  spec.Strings("rollout.stop", &lists.stop, "Stop texts.");
  return spec;
}

std::string ListViolations(absl::string_view yaml, std::vector<std::string> overrides = {}, const Limits& limits = {}) {
  FileLists lists;
  return std::string(Load(SpecOfLists(lists), yaml, "t.yaml", overrides, {.limits = limits}).message());
}

std::vector<std::string> TrainFiles(absl::string_view yaml, std::vector<std::string> overrides = {}) {
  FileLists lists;
  EXPECT_EQ(Load(SpecOfLists(lists), yaml, "t.yaml", overrides), absl::OkStatus());
  return lists.train;
}

TEST(Lists, AreReadInEitherFormOfYaml) {
  EXPECT_THAT(TrainFiles("data: {train_files: [a.jsonl, 'b c', \"d\", 5]}"), ElementsAre("a.jsonl", "b c", "d", "5"));
  EXPECT_THAT(TrainFiles("data:\n  train_files:\n  - a.jsonl\n  - b c\nrollout:\n"), ElementsAre("a.jsonl", "b c"));
}

TEST(Lists, OneTextIsAListOfOne) {
  EXPECT_THAT(TrainFiles("data.train_files: a.jsonl"), ElementsAre("a.jsonl"));
  EXPECT_THAT(TrainFiles("data.train_files: \"[a, b]\""), ElementsAre("[a, b]"));
  EXPECT_THAT(TrainFiles("", {"data.train_files=a,b"}), ElementsAre("a,b"));
}

// PEFT's configurations have `target_modules: [q_proj, v_proj]`.
TEST(Lists, AreTextsWithCommasWhereAKeySaysSo) {
  std::string modules = "none", path = "here";
  Spec spec;
  spec.String("modules", &modules, "").OrList();
  spec.String("path", &path, "");
  spec.AliasValue("modules", "all", "");
  for (const char* yaml : {"modules: [q, v]", "modules: q,v", "modules:\n- q\n- v\n"}) {
    EXPECT_EQ(Load(spec, yaml, "t.yaml", {}), absl::OkStatus());
    EXPECT_EQ(modules, "q,v") << yaml;
  }
  EXPECT_EQ(Load(spec, "", "t.yaml", std::vector<std::string>{"modules=[k, 'o']"}), absl::OkStatus());
  EXPECT_EQ(modules, "k,o");
  EXPECT_EQ(Dump(spec), "modules: \"k,o\"\npath: here\n");
  EXPECT_EQ(Load(spec, "modules: ALL", "t.yaml", {}), absl::OkStatus());
  EXPECT_EQ(modules, "");
  EXPECT_EQ(Load(spec, "modules: q, v", "t.yaml", {}), absl::OkStatus());
  EXPECT_EQ(modules, "q, v") << "a text is left as it is";
  EXPECT_EQ(Load(spec, "modules: []", "t.yaml", {}), absl::OkStatus());
  EXPECT_EQ(modules, "");
  EXPECT_EQ(Load(spec, "", "t.yaml", std::vector<std::string>{"modules=a,b"}), absl::OkStatus());
  EXPECT_EQ(modules, "a,b");
  EXPECT_THAT(Load(spec, "path: [a, b]\nmodules: [a, ~]\n", "t.yaml", std::vector<std::string>{}).message(),
              Mentions({"t.yaml:1: path:", "a list", "t.yaml:2: modules:", "null item"}));
  EXPECT_THAT(Load(spec, "", "t.yaml", std::vector<std::string>{"modules=[a"}).message(),
              Mentions({"modules", "[a, b]"}));
}

TEST(Lists, AnEmptyTextIsAnEmptyList) {
  FileLists lists;
  lists.stop = {"x"};
  EXPECT_EQ(Load(SpecOfLists(lists), "rollout.stop: a", "t.yaml", std::vector<std::string>{"rollout.stop="}),
            absl::OkStatus());
  EXPECT_THAT(lists.stop, ElementsAre());
  EXPECT_EQ(ListViolations("rollout.stop: ''"), "");
  EXPECT_THAT(ListViolations("", {"data.train_files="}), Mentions({"data.train_files", "not empty"}));
}

TEST(Lists, AnOverrideInBracketsIsAListAndReplacesTheOneOfTheFile) {
  const std::string yaml = "data.train_files: [x, y, z]";
  EXPECT_THAT(TrainFiles(yaml, {"data.train_files=[a.parquet,b.parquet]"}), ElementsAre("a.parquet", "b.parquet"));
  EXPECT_THAT(TrainFiles(yaml, {"data.train_files=['a','b, c']"}), ElementsAre("a", "b, c"));
  EXPECT_THAT(TrainFiles(yaml, {"data.train_files=[\"[a]\"]"}), ElementsAre("[a]"));
}

TEST(Lists, BracketsThatAreNoListAreRefused) {
  for (const char* value : {"[a", "[a] b", "[a]\nc: d", "[a]]", "[&x a]", "[*x]", "[a, 'b]", "[a]\n---\nx: [b]"}) {
    EXPECT_THAT(ListViolations("", {absl::StrCat("rollout.stop=", value)}),
                Mentions({"command line: rollout.stop: \"[", "list", "[a, b]"}))
        << value;
  }
}

TEST(Lists, OnlyTextsAreItems) {
  const auto refused = [](const char* given) {
    return Mentions({"t.yaml:1: data.train_files:", given, "list", "not empty"});
  };
  EXPECT_THAT(ListViolations("data.train_files: []"), refused("empty list"));
  EXPECT_THAT(ListViolations("data.train_files: [a, ~]"), refused("null item"));
  EXPECT_THAT(ListViolations("data.train_files: [a, '']"), refused("empty item"));
  EXPECT_THAT(ListViolations("data.train_files: [a, [b], c]"), refused("nested list"));
  EXPECT_THAT(ListViolations("data.train_files: [{a: b}, c]"), refused("nested list"));
  EXPECT_THAT(ListViolations("data.train_files: {a: b}"), refused("section"));
  EXPECT_THAT(ListViolations("data.train_files: ''"), refused("\"\""));
  EXPECT_EQ(ListViolations("rollout.stop: ['', \"\\n\"]"), "") << "empty texts are refused only where it says so";
  EXPECT_EQ(ListViolations("rollout.stop: []"), "");
}

TEST(Lists, AreDumpedInAFormThatLoadsBack) {
  FileLists lists;
  lists.train = {"a.jsonl", "", "b c", "[d]", "e, f", "null", "12", "cuda:1", "g:", "\n\"\\", "é", "#h", "- i", "{j}"};
  const std::string dumped = Dump(SpecOfLists(lists));
  EXPECT_THAT(dumped, testing::StartsWith("data:\n  train_files: [a.jsonl, \"\", \"b c\", \"[d]\", \"e, f\", "));
  EXPECT_THAT(dumped, HasSubstr("rollout:\n  stop: []\n"));
  FileLists back;
  Spec spec;
  spec.Strings("data.train_files", &back.train, "Any texts.");
  spec.Strings("rollout.stop", &back.stop, "Any texts.");
  ASSERT_EQ(Load(spec, dumped, "dump.yaml", {}), absl::OkStatus());
  EXPECT_EQ(back.train, lists.train);
  EXPECT_THAT(back.stop, ElementsAre());
}

TEST(Lists, HaveTheirTypeInTheReference) {
  FileLists lists;
  EXPECT_THAT(Reference(SpecOfLists(lists)),
              Mentions({"| `data.train_files` | list", "not empty | `[default.jsonl]` | Train files. |\n"}));
}

TEST(Lists, HaveABoundedNumberOfItems) {
  std::string list = "[";
  for (int i = 0; i < 11; ++i) absl::StrAppend(&list, "a,");
  list += "]";
  const Limits limits{.max_items = 10};
  EXPECT_THAT(ListViolations("rollout.stop: " + list, {}, limits), Mentions({"more than 10"}));
  EXPECT_THAT(ListViolations("a: [a, b, c, d, e, f]\nb: [a, b, c, d, e, f]", {}, limits), HasSubstr("more than 10"));
  EXPECT_THAT(ListViolations("", {"rollout.stop=" + list}, limits), Mentions({"rollout.stop", "list"}));
}

}  // namespace
}  // namespace tdock::config
