#include "core/config/references.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/testing/fails.h"
#include "core/config/spec.h"

namespace tdock::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Referring {
  int64_t batch = 128;
  int64_t mini = 32;
  double rate = 0.5;
  std::string name = "run";
  std::string out = "out";
  std::vector<std::string> files = {"default.jsonl"};
  std::vector<std::string> other_files;
};

Spec SpecWithReferences(Referring& c) {
  Spec spec;
  spec.Int("data.batch", &c.batch, "Batch.").AtLeast(1);
  spec.Int("actor.mini", &c.mini, "Mini.").AtLeast(1);
  spec.Float("actor.rate", &c.rate, "Rate.");
  spec.String("trainer.name", &c.name, "Name.");
  spec.String("trainer.out", &c.out, "Out.");
  spec.Strings("data.files", &c.files, "Files.");
  spec.Strings("data.other_files", &c.other_files, "Other files.");
  spec.AliasSection("whole.actor", "actor");
  spec.Ignore("extra", "it is not needed");
  return spec;
}

Referring Followed(absl::string_view yaml, std::vector<std::string> overrides = {}) {
  Referring c;
  EXPECT_EQ(Load(SpecWithReferences(c), yaml, "t.yaml", overrides, {.lenient = true}), absl::OkStatus());
  return c;
}

std::vector<std::string> ReferenceViolations(absl::string_view yaml, const Limits& limits = {},
                                             std::vector<std::string> overrides = {}) {
  Referring c;
  const absl::Status loaded =
      Load(SpecWithReferences(c), yaml, "t.yaml", overrides, {.limits = limits, .lenient = true});
  if (loaded.ok()) return {};
  return absl::StrSplit(loaded.message(), '\n');
}

TEST(References, AreTheValueOfAnotherKeyGivenOrDefault) {
  EXPECT_EQ(Followed("data.batch: 64\nactor: {mini: \"${data.batch}\"}").mini, 64);
  EXPECT_EQ(Followed("actor: {mini: \"${data.batch}\"}").mini, 128);
  EXPECT_EQ(Followed("actor: {mini: \"${data.batch}\"}\ndata: {batch: null}").mini, 128);
  EXPECT_EQ(Followed("actor: {mini: \"${extra.size}\"}\nextra: {size: 5}").mini, 5) << "a key without meaning here";
  EXPECT_EQ(Followed("actor.mini: ${whole.actor.rate}\nactor.rate: 7").mini, 7) << "by another name";
}

TEST(References, AreFollowedOnceOverridesAreApplied) {
  EXPECT_EQ(Followed("data.batch: 64\nactor: {mini: \"${data.batch}\"}", {"data.batch=16"}).mini, 16);
  EXPECT_EQ(Followed("data.batch: 64", {"actor.mini=${data.batch}"}).mini, 64);
  EXPECT_EQ(Followed("actor.mini: ${nowhere}", {"actor.mini=3"}).mini, 3);
}

TEST(References, MakeUpTexts) {
  EXPECT_EQ(Followed("trainer: {name: a, out: \"runs/${trainer.name}/${data.batch}-${extra.x}\"}\nextra.x: '0'").out,
            "runs/a/128-0");
  EXPECT_EQ(Followed("actor.rate: 1e-${extra.x}\nextra.x: 3").rate, 1e-3);
  EXPECT_EQ(Followed("data: {files: [a, \"${trainer.name}.jsonl\"]}").files[1], "run.jsonl");
}

TEST(References, MayBeNestedAndRelative) {
  EXPECT_EQ(Followed("extra: {which: batch}\nactor.mini: ${data.${extra.which}}").mini, 128);
  EXPECT_EQ(Followed("whole: {actor: {rate: 3, mini: \"${.rate}\"}}").mini, 3);
  EXPECT_EQ(Followed("whole: {actor: {mini: \"${..size}\"}, size: 9}").mini, 9);
  EXPECT_EQ(Followed("actor: {mini: \"${..data.batch}\"}").mini, 128);
  EXPECT_EQ(Followed("actor: {mini: \"${ data.batch }\"}").mini, 128);
}

TEST(References, SelectHasADefaultForKeysThatDoNotExist) {
  EXPECT_EQ(Followed("actor.mini: ${oc.select:data.batch,5}").mini, 128);
  EXPECT_EQ(Followed("actor.mini: ${oc.select:no.such.key,5}").mini, 5);
  EXPECT_EQ(Followed("actor.mini: ${oc.select:no.such.key, ${data.batch}}").mini, 128);
  EXPECT_EQ(Followed("actor.mini: ${oc.select:no.such.key}").mini, 32) << "null, and so the default";
  EXPECT_EQ(Followed("actor.mini: ${oc.select:no.such.key,null}").mini, 32);
  EXPECT_EQ(Followed("actor.mini: ${oc.select:extra.x,5}\nextra.x: ???").mini, 5);
  EXPECT_EQ(Followed("trainer.out: '${oc.select:no.such.key,\"~/a, }b\"}'").out, "~/a, }b");
  EXPECT_THAT(Followed("data.other_files: '${oc.select:no.key,[a, \"${trainer.name}\"]}'").other_files,
              ElementsAre("a", "run"));
}

TEST(References, MayBeListsAsAWholeOnly) {
  EXPECT_THAT(Followed("data: {files: [a, b], other_files: \"${data.files}\"}").other_files, ElementsAre("a", "b"));
  EXPECT_THAT(Followed("data: {other_files: \"${data.files}\"}").other_files, ElementsAre("default.jsonl"));
  EXPECT_THAT(ReferenceViolations("trainer.out: x${data.files}"),
              ElementsAre(Mentions({"t.yaml:1: trainer.out: ${data.files}:", "a list"})));
  EXPECT_THAT(ReferenceViolations("data.other_files: [x, \"${data.files}\"]"),
              ElementsAre(Mentions({"t.yaml:1: data.other_files:", "\"${data.files}\"", "a list"})));
  EXPECT_THAT(ReferenceViolations("trainer.out: ${data.files}"),
              ElementsAre(Mentions({"t.yaml:1: trainer.out:", "a list (from ${data.files})", "text"})));
}

TEST(References, ABackslashMakesThemText) {
  EXPECT_EQ(Followed(R"(trainer.out: a\${b})").out, "a${b}");
  EXPECT_EQ(Followed(R"(trainer.out: a\\${trainer.name})").out, "a\\run");
  EXPECT_EQ(Followed(R"(trainer.out: a\b$c\\$d{})").out, R"(a\b$c\\$d{})");
  for (const char* text : {"${a}", "\\${a}", "\\\\${a}", "a$${b", "${", "$", "{}"}) {
    Referring c;
    c.out = text;
    c.files = {text, "${data.files}"};
    const std::string dumped = Dump(SpecWithReferences(c));
    const Referring back = Followed(dumped);
    EXPECT_EQ(back.out, text) << dumped;
    EXPECT_EQ(back.files, c.files) << dumped;
  }
}

TEST(References, SayWhereTheyLeadIfNowhere) {
  EXPECT_THAT(ReferenceViolations("actor:\n  mini: ${data.bacth}\n"),
              ElementsAre(Mentions({"t.yaml:2: actor.mini: ${data.bacth}:", "no key data.bacth", "data.batch?"})));
  EXPECT_THAT(ReferenceViolations("actor.mini: ${extra.x}\nextra.x: ???"),
              ElementsAre(Mentions({"t.yaml:1: actor.mini: ${extra.x}:", "extra.x is ???"})));
  EXPECT_THAT(ReferenceViolations("trainer.out: a${extra.x}\nextra.x: null"),
              ElementsAre(Mentions({"t.yaml:1: trainer.out: ${extra.x}:", "nothing"})));
  EXPECT_THAT(ReferenceViolations("actor.mini: ${trainer.name}"),
              ElementsAre(Mentions({"t.yaml:1: actor.mini:", "\"run\" (from ${trainer.name})", "integer ≥ 1"})));
  EXPECT_THAT(ReferenceViolations("actor.mini: ${extra}\nextra: {x: 1}"),
              ElementsAre(Mentions({"t.yaml:1: actor.mini:", "keys (from ${extra})", "integer"})));
  for (const char* text : {"${data.batch", "x${", "${a[}", "${'}", "${oc.select:a,'}"}) {
    EXPECT_THAT(ReferenceViolations("", {}, {absl::StrCat("trainer.out=", text)}),
                ElementsAre(Mentions({"command line: trainer.out:", "not closed", "\\${"})))
        << text;
  }
  EXPECT_THAT(ReferenceViolations("", {}, {"trainer.out=${oc.select:a,[b}"}), ElementsAre(HasSubstr("not closed")));
  EXPECT_THAT(ReferenceViolations("", {}, {"trainer.out=${}"}),
              ElementsAre(Mentions({"command line: trainer.out:", "no key"})));
}

TEST(References, ThatGoRoundInACircleAreRefusedWithTheirPath) {
  EXPECT_THAT(ReferenceViolations("trainer.name: ${trainer.out}\ntrainer.out: ${extra.x}\nextra.x: a${trainer.name}\n"),
              testing::Contains(Mentions({"t.yaml:1: trainer.name: ${trainer.name}:",
                                          "trainer.name → trainer.out → extra.x → trainer.name"})));
  EXPECT_THAT(ReferenceViolations("actor.mini: ${actor.mini}"),
              ElementsAre(Mentions({"t.yaml:1: actor.mini:", "actor.mini → actor.mini"})));
  EXPECT_THAT(ReferenceViolations("data.files: [a, \"${data.files}\"]"),
              ElementsAre(Mentions({"t.yaml:1: data.files:", "data.files → data.files"})));
}

TEST(References, AskForKeysOnly) {
  EXPECT_THAT(ReferenceViolations("trainer.out: ${oc.env:HOME}/runs"),
              ElementsAre(Mentions({"t.yaml:1: trainer.out: ${oc.env:HOME}:", "environment"})));
  EXPECT_THAT(ReferenceViolations("trainer.out: ${now:%Y}"),
              ElementsAre(Mentions({"t.yaml:1: trainer.out: ${now:%Y}:", "${key}", "${oc.select:key,default}"})));
}

TEST(References, AddABoundedAmountOfText) {
  std::string laughs = "extra.l0: \"ha ha ha ha\"\n";
  for (int i = 1; i < 30; ++i) {
    absl::StrAppend(&laughs, "extra.l", i, ": \"");
    for (int j = 0; j < 10; ++j) absl::StrAppend(&laughs, "${extra.l", i - 1, "}");
    laughs += "\"\n";
  }
  EXPECT_THAT(ReferenceViolations(laughs + "trainer.out: ${extra.l29}\n"), ElementsAre(Mentions({"1048576 bytes"})));
  std::string list = "data.files: [x";
  for (int i = 0; i < 5'000; ++i) absl::StrAppend(&list, ", \"${trainer.out}\"");
  EXPECT_THAT(ReferenceViolations(absl::StrCat(list, "]\ntrainer.out: ", std::string(1'000, 'o'), "\n")),
              ElementsAre(Mentions({"1048576 bytes"})));
}

TEST(References, AreFollowedABoundedNumberOfTimes) {
  std::string chain = "extra.c0: 1\n";
  for (int i = 5'000; i > 0; --i) absl::StrAppend(&chain, "extra.c", i, ": ${extra.c", i - 1, "}\n");
  EXPECT_THAT(ReferenceViolations(chain + "actor.mini: ${extra.c5000}\n"), ElementsAre(Mentions({"more than 32"})));
  std::string nested = "trainer.out=";
  for (int i = 0; i < 5'000; ++i) nested += "${";
  EXPECT_THAT(ReferenceViolations("", {}, {nested}), ElementsAre(HasSubstr("not closed")));
  nested += "a" + std::string(5'000, '}');
  EXPECT_THAT(ReferenceViolations("", {}, {nested}), ElementsAre(Mentions({"more than 32"})));
}

}  // namespace
}  // namespace tdock::config
