// Keys of other programs whose values are kept, and what is reported of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "core/base/testing/fails.h"
#include "core/config/spec.h"

namespace tdock::config {
namespace {

using testing::ElementsAre;

struct Kept {
  int64_t batch = 8, mini = 4;
  int64_t devices = 0;
  std::vector<std::string> names;
};

Spec SpecOfKept(Kept& c) {
  Spec spec;
  spec.Int("data.batch", &c.batch, "");
  spec.Int("data.mini", &c.mini, "").AtLeast(1);
  spec.Check({"data.mini", "data.batch"}, [&c]() -> std::vector<std::string> {
    if (c.batch % c.mini == 0) return {};
    return {"mini must divide batch"};
  });
  spec.Ignore("trainer", "a process for all", {});
  spec.AliasSection("other.trainer", "trainer");
  spec.kept().Int("trainer.devices", &c.devices, "").AtLeast(1);
  spec.kept().Strings("trainer.names", &c.names, "");
  return spec;
}

std::vector<std::string> Report(const absl::Status& status) {
  if (status.ok()) return {};
  return absl::StrSplit(status.message(), '\n');
}

TEST(KeptKeys, HaveTheirValuesKeptAndAreSkippedAsBefore) {
  Kept c;
  const Spec spec = SpecOfKept(c);
  std::vector<std::string> notes;
  const LoadOptions options{.lenient = true, .note = [&](const std::string& line) { notes.push_back(line); }};
  const std::vector<std::string> overrides = {"trainer.names=[a,b]"};
  EXPECT_EQ(Load(spec, "other.trainer:\n  devices: ${data.batch}\n", "t.yaml", overrides, options), absl::OkStatus());
  EXPECT_EQ(c.devices, 8);
  EXPECT_THAT(c.names, ElementsAre("a", "b"));
  EXPECT_THAT(notes,
              ElementsAre(Mentions({"t.yaml:1: other.trainer:", "skipped", "a process for all", "trainer.names"})));
  EXPECT_EQ(Dump(spec), "data:\n  batch: 8\n  mini: 4\n");
  EXPECT_EQ(ValueOf(spec, "data.batch"), "8");
  EXPECT_EQ(ValueOf(spec, "trainer.devices"), std::nullopt);
}

TEST(KeptKeys, ThatAreNullOrAbsentLeaveTheFieldAsItIs) {
  Kept c;
  EXPECT_EQ(Load(SpecOfKept(c), "trainer: {devices: null}", "t.yaml", {}, {.lenient = true}), absl::OkStatus());
  EXPECT_EQ(c.devices, 0);
}

TEST(KeptKeys, OfTheWrongKindAreViolations) {
  Kept c;
  EXPECT_THAT(Report(Load(SpecOfKept(c), "trainer:\n  devices: many\n", "t.yaml", {}, {.lenient = true})),
              ElementsAre(Mentions({"t.yaml:2: trainer.devices:", "\"many\"", "integer ≥ 1"})));
  EXPECT_THAT(Report(Load(SpecOfKept(c), "trainer:\n  devices: 0\n", "t.yaml", {})),
              ElementsAre(Mentions({"t.yaml:1: trainer:", "a process for all", "--lenient"}),
                          Mentions({"t.yaml:2: trainer.devices:", "\"0\"", "integer ≥ 1"})));
}

TEST(LaterViolations, AreReportedWithOthersAndAlone) {
  Kept c;
  const Spec spec = SpecOfKept(c);
  const LoadOptions options{.lenient = true, .later = [] {
                              return std::vector<Conflict>{{{"data.batch", "trainer.devices"}, "3 do not share 8"}};
                            }};
  EXPECT_THAT(
      Report(Load(spec, "trainer: {devices: 3}", "t.yaml", {}, options)),
      ElementsAre(Mentions({"t.yaml:1:", "data.batch = 8 (default)", "trainer.devices = 3", "3 do not share 8"})));
  EXPECT_THAT(Report(Load(spec, "trainer:\n  devices: 3\ndata: {batch: 8, mini: 0}", "t.yaml", {}, options)),
              ElementsAre(Mentions({"t.yaml:3: data.mini:", "\"0\"", "integer ≥ 1"}),
                          Mentions({"t.yaml:3:", "data.batch = 8,", "trainer.devices = 3", "3 do not share 8"})));
}

TEST(LaterViolations, OfKeysThatAreInvalidOrReportedAlreadyAreLeftOut) {
  Kept c;
  const Spec spec = SpecOfKept(c);
  std::vector<Conflict> conflicts = {{{"data.batch", "trainer.devices"}, "devices"}, {{"data.mini"}, "mini"}};
  const LoadOptions options{.lenient = true, .later = [&] { return conflicts; }};
  EXPECT_THAT(
      Report(Load(spec, "trainer:\n  devices: 0\ndata: {mini: 3}", "t.yaml", {}, options)),
      ElementsAre(Mentions({"t.yaml:2: trainer.devices:", "\"0\"", "integer ≥ 1"}),
                  Mentions({"t.yaml:3:", "data.mini = 3", "data.batch = 8 (default)", "mini must divide batch"})));
}

}  // namespace
}  // namespace tdock::config
