// Keys of other programs that mean nothing here, and what a lenient Load() does with them.
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

Spec SpecWithForeignKeys(int64_t& steps) {
  Spec spec;
  spec.Int("trainer.steps", &steps, "Steps.").AtLeast(1);
  spec.AliasSection("whole.trainer", "trainer");
  spec.Ignore("trainer.nnodes", "one machine only", {"1"});
  spec.Ignore("trainer.fsdp", "weights are not sharded");
  spec.Ignore("critic", "no critic here");
  spec.Ignore("critic.warmup", "a critic is not warmed up");
  spec.Refuse("trainer.epochs", "each sample is trained on once", {"1", "null"});
  return spec;
}

struct Outcome {
  std::vector<std::string> violations;
  std::vector<std::string> notes;
};

Outcome LoadForeign(absl::string_view yaml, bool lenient, std::vector<std::string> overrides = {},
                    const Limits& limits = {}) {
  int64_t steps = 1;
  Outcome outcome;
  const auto note = [&](const std::string& line) { outcome.notes.push_back(line); };
  const absl::Status loaded =
      Load(SpecWithForeignKeys(steps), yaml, "t.yaml", overrides, {.limits = limits, .lenient = lenient, .note = note});
  if (!loaded.ok()) outcome.violations = absl::StrSplit(loaded.message(), '\n');
  return outcome;
}

constexpr absl::string_view kForeign = R"(
trainer: {nnodes: 2, steps: 3}
whole:
  trainer:
    fsdp: {size: 2, offload: {on: true}}
critic: {optim: {lr: 1}, warmup: 2}
)";

TEST(Ignore, RefusesWithTheReasonByTheNameThatWasWritten) {
  const Outcome outcome = LoadForeign(kForeign, /*lenient=*/false, {"critic.warmup=1"});
  EXPECT_THAT(outcome.violations,
              ElementsAre(Mentions({"t.yaml:2: trainer.nnodes:", "one machine only", "--lenient"}),
                          Mentions({"t.yaml:5: whole.trainer.fsdp:", "weights are not sharded", "--lenient"}),
                          Mentions({"t.yaml:6: critic:", "no critic here", "--lenient"}),
                          Mentions({"command line: critic.warmup:", "a critic is not warmed up", "--lenient"})));
  EXPECT_THAT(outcome.notes, ElementsAre());
}

TEST(Ignore, IsSkippedWithANoteIfLenient) {
  const Outcome outcome = LoadForeign(kForeign, /*lenient=*/true);
  EXPECT_THAT(outcome.violations, ElementsAre());
  EXPECT_THAT(outcome.notes,
              ElementsAre(Mentions({"t.yaml:2: trainer.nnodes:", "skipped", "one machine only"}),
                          Mentions({"t.yaml:5: whole.trainer.fsdp:", "skipped", "weights are not sharded"}),
                          Mentions({"t.yaml:6: critic:", "skipped", "no critic here"}),
                          Mentions({"t.yaml:6: critic.warmup:", "skipped", "a critic is not warmed up"})));
}

TEST(Ignore, AcceptsAValueThatChangesNothing) {
  for (const char* value : {"1", "1.0", "null", "~", "???", "${trainer.steps}"}) {
    const Outcome outcome = LoadForeign(absl::StrCat("trainer.nnodes: ", value, "\ncritic: {}"), false);
    EXPECT_THAT(outcome.violations, ElementsAre()) << value;
    EXPECT_THAT(outcome.notes, ElementsAre()) << value;
  }
}

TEST(Ignore, AcceptsASectionThatIsOffOrHasNoValues) {
  for (const char* contents : {"{size: null, offload: {on: null}}", "{enable: false, size: 2}", "{enabled: False}",
                               "{size: 2, enabled: \"${critic.warmup}\"}"}) {
    const Outcome outcome = LoadForeign(absl::StrCat("trainer.fsdp: ", contents, "\ncritic.warmup: false\n"), true);
    EXPECT_THAT(outcome.notes, ElementsAre(HasSubstr("critic.warmup"))) << contents;
  }
  EXPECT_EQ(LoadForeign("trainer.fsdp: {offload: {enable: false}}", true).notes.size(), 1u) << "a part of it is off";
}

TEST(Ignore, AValueThatAnOverrideReplacesIsNotMentioned) {
  EXPECT_THAT(LoadForeign("trainer: {nnodes: 8}", false, {"trainer.nnodes=1"}).violations, ElementsAre());
  EXPECT_THAT(LoadForeign("trainer: {nnodes: 1}", false, {"trainer.nnodes=8"}).violations,
              ElementsAre(testing::StartsWith("command line: trainer.nnodes: ")));
}

TEST(Ignore, DoesNotFollowReferencesThatNobodyNeeds) {
  const Outcome outcome = LoadForeign("trainer: {nnodes: \"${nowhere.to.be.found}\"}", true);
  EXPECT_THAT(outcome.violations, ElementsAre());
  EXPECT_THAT(outcome.notes, ElementsAre(Mentions({"t.yaml:1: trainer.nnodes:", "skipped", "one machine only"})));
}

TEST(Refuse, IsNotSkippedEvenIfLenient) {
  for (const bool lenient : {false, true}) {
    EXPECT_THAT(
        LoadForeign("trainer: {epochs: 2}", lenient).violations,
        ElementsAre(Mentions({"t.yaml:1: trainer.epochs:", "\"2\"", "expected 1", "each sample is trained on once"})));
    EXPECT_THAT(LoadForeign("trainer: {epochs: 1}", lenient).violations, ElementsAre());
  }
}

TEST(Refuse, HoldsInsideASectionThatIsIgnored) {
  int64_t steps = 1;
  Spec spec;
  spec.Int("trainer.steps", &steps, "Steps.");
  spec.Ignore("reward", "it is built in");
  spec.Refuse("reward.model.path", "it is not loaded");
  EXPECT_THAT(
      Load(spec, "reward:\n  name: x\n  model: {path: y, size: 3}\n", "t.yaml", {}, {.lenient = true}).message(),
      Mentions({"t.yaml:3: reward.model.path:", "\"y\"", "it is not loaded"}));
  EXPECT_EQ(Load(spec, "reward: {model: {path: null}}", "t.yaml", {}, {.lenient = true}), absl::OkStatus());
}

TEST(Lenient, SkipsUnknownKeysAndStillSuggests) {
  const Outcome outcome = LoadForeign("trainer: {stesp: 5}\nquux: {a: 1, b: 2}\n", true, {"zzz=1"});
  EXPECT_THAT(outcome.violations, ElementsAre());
  EXPECT_THAT(outcome.notes, ElementsAre(Mentions({"t.yaml:1: trainer.stesp:", "skipped", "trainer.steps?"}),
                                         Mentions({"t.yaml:2: quux.a:", "skipped", "quux.b, zzz"})));
}

TEST(Lenient, NotesEachReasonOnceAndTheOnesThatMatterMostFirst) {
  int64_t rank = 0, alpha = 1, beta = 1;
  Spec spec;
  spec.Int("rank", &rank, "Rank.");
  spec.Int("alpha", &alpha, "Scale.");
  spec.Int("beta", &beta, "Another.");
  spec.Unused(
      {"alpha", "beta"}, [&] { return rank == 0; }, "there are no adapters");
  spec.Ignore("devices", "one machine only");
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"}) spec.Ignore(absl::StrCat("foreign.", name), "not here");
  const char* yaml = "foreign: {a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1}\ndevices: 8\nalpha: 16\nbeta: 1\nquux: 1\n";
  std::vector<std::string> notes;
  EXPECT_EQ(Load(spec, yaml, "t.yaml", {},
                 {.lenient = true, .note = [&](const std::string& line) { notes.push_back(line); }}),
            absl::OkStatus());
  EXPECT_THAT(
      notes,
      ElementsAre(Mentions({"t.yaml:5: quux:"}), Mentions({"t.yaml:3: alpha:"}), Mentions({"t.yaml:2: devices:"}),
                  Mentions({"t.yaml:1: foreign.a:", "foreign.b, foreign.c, foreign.d, foreign.e and 2 more"})))
      << "beta has its default";
}

TEST(Lenient, StillRefusesWrongValues) {
  const Outcome outcome = LoadForeign("trainer: {steps: 0, other: 1}", true);
  EXPECT_THAT(outcome.violations, ElementsAre(Mentions({"t.yaml:1: trainer.steps:", "\"0\"", "integer ≥ 1"})));
  EXPECT_EQ(outcome.notes.size(), 1u);
}

TEST(Lenient, SkipsWhatMeansNothingBesideOtherKeys) {
  int64_t rank = 0, alpha = 1;
  Spec spec;
  spec.Int("rank", &rank, "Rank.");
  spec.Int("alpha", &alpha, "Scale.");
  spec.Unused(
      {"alpha"}, [&] { return rank == 0; }, "there are no adapters");
  std::vector<std::string> notes;
  EXPECT_EQ(Load(spec, "alpha: 16", "t.yaml", {},
                 {.lenient = true, .note = [&](const std::string& line) { notes.push_back(line); }}),
            absl::OkStatus());
  EXPECT_THAT(notes, ElementsAre(Mentions({"t.yaml:1: alpha:", "skipped", "there are no adapters"})));
}

TEST(Lenient, BoundsTheNumberOfNotes) {
  const Outcome outcome = LoadForeign(kForeign, true, {}, {.max_notes = 2});
  ASSERT_EQ(outcome.notes.size(), 3u);
  EXPECT_EQ(outcome.notes.back(), "and 2 more");
}

TEST(Lenient, NeedsNobodyToReadItsNotes) {
  int64_t steps = 1;
  EXPECT_EQ(Load(SpecWithForeignKeys(steps), "quux: 1", "t.yaml", {}, {.lenient = true}), absl::OkStatus());
}

TEST(Hydra, WhatIsItsOwnIsRefusedByNameAndSkippedIfLenient) {
  const char* yaml = R"(
defaults:
- actor@whole.actor: dp_actor
- _self_
hydra: {searchpath: [x], run: {dir: y}}
trainer: {_target_: verl.Trainer, steps: 2}
)";
  EXPECT_THAT(LoadForeign(yaml, false).violations,
              ElementsAre(Mentions({"t.yaml:2: defaults:", "Hydra"}), Mentions({"t.yaml:5: hydra:", "Hydra"}),
                          Mentions({"t.yaml:6: trainer._target_:", "Python"})));
  EXPECT_THAT(LoadForeign(yaml, true).notes,
              ElementsAre(HasSubstr("defaults: skipped"), HasSubstr("hydra: skipped"), HasSubstr("_target_: skipped")));
}

}  // namespace
}  // namespace tdock::config
