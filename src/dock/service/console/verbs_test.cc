#include "dock/service/console/verbs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "dock/service/console/testing/example_dock.h"
#include "dock/service/console/text_table.h"
#include "nlohmann/json.hpp"

namespace tdock::console {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// What a verb writes.
template <class Verb>
std::string Output(Verb verb) {
  std::ostringstream out;
  EXPECT_EQ(verb(out), absl::OkStatus());
  return out.str();
}

template <class Verb>
nlohmann::json Parsed(Verb verb) {
  return nlohmann::json::parse(Output(verb));
}

TEST(Status, ShowsAPartitionAsATable) {
  ExampleDock example;
  EXPECT_EQ(Output([&](std::ostream& out) { return PrintStatus(*example.dock, {.partition = "train"}, out); }),
            R"(train: 8 rows in 2 groups, 0.0 MiB held, weights 2
rows retained for actor

COLUMN     TYPE             READY CELLS  OF ROWS
prompts    ragged int32[*]            8     100%
responses  ragged int32[*]            4      50%
rewards    float32[]                  4      50%

CONSUMER  TAKEABLE  WAITING  READY  LEASED  QUARANT.  DONE  COMPLETED  EXPIRED
rollout          2        0      2       2         0     4          4        0
reward           0        4      0       0         0     4          4        0
actor            3        4      3       0         0     1          1        0
actor: 1 uncommitted
)");
}

TEST(Status, ShowsAllPartitionsOneLineEach) {
  ExampleDock example;
  ASSERT_EQ(example.dock->CreatePartition({.name = "held-out", .growing = true}), absl::OkStatus());
  ASSERT_EQ(example.dock->Seal("held-out"), absl::OkStatus());
  EXPECT_EQ(Output([&](std::ostream& out) { return PrintStatus(*example.dock, {}, out); }),
            R"(PARTITION  ROWS  GROUPS     HELD  WEIGHTS  COLUMNS  CONSUMERS  STATE
held-out      0       0  0.0 MiB        -        0          0  sealed
train         8       2  0.0 MiB        2        3          3  open
)");
}

TEST(Status, OfAnEmptyDockSaysSo) {
  const std::unique_ptr<Dock> dock = MakeLocalDock();
  EXPECT_EQ(Output([&](std::ostream& out) { return PrintStatus(*dock, {}, out); }), "no partitions\n");
}

TEST(Status, AsJsonHasEveryFigureUnderItsName) {
  ExampleDock example;
  const auto status =
      Parsed([&](std::ostream& out) { return PrintStatus(*example.dock, {.partition = "train", .json = true}, out); });
  EXPECT_EQ(status["name"], "train");
  EXPECT_EQ(status["rows"], 8);
  EXPECT_EQ(status["groups"], 2);
  EXPECT_EQ(status["incomplete_groups"], 0);
  EXPECT_EQ(status["sealed"], false);
  EXPECT_EQ(status["weights_version"], 2);
  EXPECT_EQ(status["retain_for"], nlohmann::json({"actor"}));
  EXPECT_GT(status["held_bytes"], 0);
  EXPECT_EQ(status["columns"][1],
            nlohmann::json({{"name", "responses"}, {"type", "ragged int32[*]"}, {"ready_cells", 4}}));
  EXPECT_EQ(status["consumers"][2], nlohmann::json({{"name", "actor"},
                                                    {"waiting", 4},
                                                    {"ready", 3},
                                                    {"leased", 0},
                                                    {"quarantined", 0},
                                                    {"done", 1},
                                                    {"uncommitted", 1},
                                                    {"committed_step", nullptr},
                                                    {"takeable", 3},
                                                    {"completed", 1},
                                                    {"expired", 0},
                                                    {"unfinished", 0},
                                                    {"sent_back", 0},
                                                    {"stale_dropped", 0},
                                                    {"reset", 0}}));
  const auto all = Parsed([&](std::ostream& out) { return PrintStatus(*example.dock, {.json = true}, out); });
  EXPECT_EQ(all["partitions"], nlohmann::json::array({status}));
}

TEST(Status, OfAnUnknownPartitionWritesNothing) {
  ExampleDock example;
  std::ostringstream out;
  EXPECT_EQ(PrintStatus(*example.dock, {.partition = "nowhere"}, out).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(out.str(), "");
}

TEST(Explain, SaysWhatIsMissingInLinesThatFit) {
  ExampleDock example;
  const std::string text = Output([&](std::ostream& out) {
    return PrintExplanation(*example.dock, {"train", "actor"}, out);
  });
  EXPECT_THAT(text, HasSubstr("'rollout' has held"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  const auto json = Parsed([&](std::ostream& out) {
    return PrintExplanation(*example.dock, {"train", "actor", true}, out);
  });
  EXPECT_EQ(json["consumer"], "actor");
  EXPECT_EQ(json["explanation"], *example.dock->Explain("train", "actor"));
}

std::string RowText(ExampleDock& example, RowId row) {
  return Output([&](std::ostream& out) {
    return PrintRow(*example.dock, {.partition = "train", .row = row, .clock = example.clock}, out);
  });
}

TEST(Row, ShowsItsCellsAndHowItStandsWithEachConsumer) {
  ExampleDock example;
  EXPECT_EQ(RowText(example, 4), R"(row 4 of train: group 8, age 0, epoch 0

COLUMN     STATE  BYTES  WEIGHTS  PUT BY
prompts    ready     12        -  -
responses  empty      -        -  -
rewards    empty      -        -  -

CONSUMER  STATE    REDELIVERED  DETAILS
rollout   leased             0  lease 4 for 1m30s, ends in 8m30s
reward    waiting            0  lacks responses
actor     waiting            0  lacks responses, rewards
)");
  EXPECT_EQ(RowText(example, 0), R"(row 0 of train: group 7, age 0, epoch 0
key a/0
tags split=hard

COLUMN     STATE  BYTES  WEIGHTS  PUT BY
prompts    ready     12        -  -
responses  ready      4        2  rollout
rewards    ready      4        -  reward

CONSUMER  STATE  REDELIVERED  DETAILS
rollout   done             0
reward    done             0
actor     done             0  step 3, uncommitted
)");
}

TEST(Row, WithoutCellsAndConsumersIsOneLine) {
  const std::unique_ptr<Dock> dock = MakeLocalDock();
  ASSERT_EQ(dock->CreatePartition({.name = "p", .growing = true}), absl::OkStatus());
  ASSERT_EQ(dock->Put({.partition = "p", .new_rows = 1}).status(), absl::OkStatus());
  EXPECT_EQ(Output([&](std::ostream& out) { return PrintRow(*dock, {.partition = "p"}, out); }),
            "row 0 of p: no group, age 0, epoch 0\n");
}

TEST(Row, HeldForEverSaysSo) {
  FakeClock clock;
  const std::unique_ptr<Dock> dock = MakeLocalDock({.clock = &clock});
  ASSERT_EQ(dock->CreatePartition({.name = "p", .growing = true}), absl::OkStatus());
  ASSERT_EQ(dock->RegisterConsumer("p", {.name = "x", .lease_duration = absl::InfiniteDuration()}), absl::OkStatus());
  ASSERT_EQ(dock->Put({.partition = "p", .new_rows = 1}).status(), absl::OkStatus());
  ASSERT_EQ(dock->Take({.partition = "p", .consumer = "x"}).status(), absl::OkStatus());
  clock.Advance(absl::Hours(2));
  const RowOptions text{.partition = "p", .clock = clock};
  EXPECT_THAT(Output([&](std::ostream& out) { return PrintRow(*dock, text, out); }),
              HasSubstr("lease 1 for 2h0m, ends never\n"));
  const RowOptions json{.partition = "p", .json = true, .clock = clock};
  const auto consumer = Parsed([&](std::ostream& out) { return PrintRow(*dock, json, out); })["consumers"][0];
  EXPECT_EQ(consumer["held_seconds"], 7200);
  EXPECT_EQ(consumer["remaining_seconds"], nullptr);
}

TEST(Row, AsJsonHasEveryFigureUnderItsName) {
  ExampleDock example;
  const auto row = [&](RowId id) {
    return Parsed([&](std::ostream& out) {
      return PrintRow(*example.dock, {.partition = "train", .row = id, .json = true, .clock = example.clock}, out);
    });
  };
  const auto done = row(0), held = row(4);
  EXPECT_EQ(done["row"], 0);
  EXPECT_EQ(done["group"], 7);
  EXPECT_EQ(done["key"], "a/0");
  EXPECT_EQ(done["tags"], nlohmann::json({{"split", "hard"}}));
  EXPECT_EQ(done["age"], 0);
  EXPECT_EQ(done["epoch"], 0);
  EXPECT_EQ(
      done["cells"][1],
      nlohmann::json(
          {{"column", "responses"}, {"state", "ready"}, {"bytes", 4}, {"weights_version", 2}, {"writer", "rollout"}}));
  EXPECT_EQ(held["cells"][1], nlohmann::json({{"column", "responses"},
                                              {"state", "empty"},
                                              {"bytes", nullptr},
                                              {"weights_version", nullptr},
                                              {"writer", nullptr}}));
  EXPECT_EQ(done["consumers"][2]["uncommitted_step"], 3);
  EXPECT_EQ(held["consumers"][0], nlohmann::json({{"name", "rollout"},
                                                  {"state", "leased"},
                                                  {"missing", nlohmann::json::array()},
                                                  {"redeliveries", 0},
                                                  {"lease", example.held.lease},
                                                  {"held_seconds", 90},
                                                  {"remaining_seconds", 510},
                                                  {"uncommitted_step", nullptr}}));
  EXPECT_EQ(held["consumers"][2]["missing"], nlohmann::json({"responses", "rewards"}));
}

TEST(Row, ThatIsNotThereWritesNothing) {
  ExampleDock example;
  std::ostringstream out;
  EXPECT_EQ(PrintRow(*example.dock, {.partition = "train", .row = 8}, out).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(out.str(), "");
}

TEST(List, ShowsRowsAndWhereToGoOn) {
  ExampleDock example;
  EXPECT_EQ(Output([&](std::ostream& out) {
              return PrintList(*example.dock, {.request = {.partition = "train", .limit = 2}}, out);
            }),
            "ROW  GROUP  AGE  EPOCH  KEY  TAGS\n"
            "  0      7    0      0  a/0  split=hard\n"
            "  1      7    0      0  -\n"
            "there may be more rows: use --from 2\n");
}

TEST(List, AppliesEveryFilter) {
  ExampleDock example;
  const auto rows = [&](ListRequest request) {
    request.partition = "train";
    std::vector<RowId> found;
    const auto list =
        Parsed([&](std::ostream& out) { return PrintList(*example.dock, {.request = request, .json = true}, out); });
    for (const auto& row : list["rows"]) found.push_back(row["row"]);
    return found;
  };
  EXPECT_THAT(rows({.ready_for = "actor"}), ElementsAre(1, 2, 3));
  EXPECT_THAT(rows({.having = {"rewards"}, .from = 2}), ElementsAre(2, 3));
  EXPECT_THAT(rows({.tags = {{"split", "hard"}}}), ElementsAre(0));
  EXPECT_THAT(rows({.from = 7}), ElementsAre(7));
}

TEST(List, OfNoRowsSaysSo) {
  ExampleDock example;
  EXPECT_EQ(Output([&](std::ostream& out) {
              return PrintList(*example.dock, {.request = {.partition = "train", .from = 100}}, out);
            }),
            "no rows\n");
}

TEST(List, GoesOnOverPagesUntilItsLimit) {
  const std::unique_ptr<Dock> dock = MakeLocalDock();
  ASSERT_EQ(dock->CreatePartition({.name = "big", .growing = true}), absl::OkStatus());
  ASSERT_EQ(dock->Put({.partition = "big", .new_rows = 20'000}).status(), absl::OkStatus());
  const auto list = Parsed([&](std::ostream& out) {
    return PrintList(*dock, {.request = {.partition = "big", .limit = 15'000}, .json = true}, out);
  });
  EXPECT_EQ(list["rows"].size(), 15'000u);
  EXPECT_EQ(list["rows"][14'999]["row"], 14'999);
  EXPECT_EQ(list["rows"][0]["group"], nullptr);
  EXPECT_EQ(list["next"], 15'000);
}

TEST(Clear, RemovesWhatIsNamed) {
  ExampleDock example;
  EXPECT_EQ(Output([&](std::ostream& out) {
              return ClearRows(*example.dock, {.request = {.partition = "train", .rows = {6}}}, out);
            }),
            "removed 1 row of train\n");
  EXPECT_EQ(Parsed([&](std::ostream& out) {
              return ClearRows(*example.dock, {.request = {.partition = "train", .groups = {8}}, .json = true}, out);
            }),
            nlohmann::json({{"partition", "train"}, {"cleared", 3}}));
  EXPECT_EQ(example.dock->GetStatus("train")->rows, 4);
}

TEST(Clear, OfEverythingHasToBeConfirmed) {
  ExampleDock example;
  ClearOptions options{.request = {.partition = "train", .everything = true}};
  std::ostringstream out;
  EXPECT_THAT(ClearRows(*example.dock, options, out),
              Fails(absl::StatusCode::kInvalidArgument, {"--everything", "8 rows", "'train'", "--yes"}));
  EXPECT_EQ(example.dock->GetStatus("train")->rows, 8);
  options.yes = true;
  EXPECT_EQ(Output([&](std::ostream& o) { return ClearRows(*example.dock, options, o); }), "removed 8 rows of train\n");
  EXPECT_EQ(example.dock->GetStatus("train")->rows, 0);
}

// The lines as the documentation has them, four spaces in.
std::string Quoted(const std::string& text) {
  std::string quoted;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) absl::StrAppend(&quoted, line.empty() ? "" : "    ", line, "\n");
  return quoted;
}

TEST(Documentation, ShowsWhatTheVerbsPrint) {
  const absl::StatusOr<std::string> page = Env::Real().ReadFile("docs/service.md");
  ASSERT_EQ(page.status(), absl::OkStatus());
  ExampleDock example;
  Dock& dock = *example.dock;
  const ListOptions list{.request = {.partition = "train", .ready_for = "actor", .limit = 2}};
  for (const std::string& output :
       {Output([&](std::ostream& out) { return PrintStatus(dock, {}, out); }),
        Output([&](std::ostream& out) { return PrintStatus(dock, {.partition = "train"}, out); }),
        Output([&](std::ostream& out) {
          return PrintExplanation(dock, {"train", "actor"}, out);
        }),
        RowText(example, 4), Output([&](std::ostream& out) { return PrintList(dock, list, out); })}) {
    EXPECT_THAT(*page, HasSubstr(Quoted(output)));
  }
}

TEST(Numbers, AreListsAndRanges) {
  EXPECT_THAT(*ParseNumbers("--rows", {"3,7-9", "1"}), ElementsAre(3, 7, 8, 9, 1));
  EXPECT_THAT(*ParseNumbers("--rows", {"18446744073709551615"}), ElementsAre(~uint64_t{0}));
  for (const char* wrong : {"", "x", "3,", "-3", "3-", "9-7", "0-1000000", "1-18446744073709551615", "1.5"}) {
    const absl::Status status = ParseNumbers("--rows", {wrong}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith("--rows: "));
  }
  EXPECT_EQ(ParseNumbers("--rows", {"0-999999"})->size(), 1'000'000u);
}

TEST(TagsOfTheCommandLine, AreNamesWithValues) {
  EXPECT_EQ(*ParseTags("--tag", {"a=b", "c=", "d=e=f"}), (Tags{{"a", "b"}, {"c", ""}, {"d", "e=f"}}));
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(ParseTags("--tag", {"split"}).status(), Fails(kInvalid, {"--tag", "'split'", "name=value"}));
  EXPECT_THAT(ParseTags("--tag", {"=x"}).status(), Fails(kInvalid, {"--tag", "'=x'", "name=value"}));
  EXPECT_THAT(ParseTags("--tag", {"a=1", "a=2"}).status(), Fails(kInvalid, {"--tag", "'a'", "twice"}));
}

TEST(Text, ShowsNumbersForPeople) {
  EXPECT_EQ(Grouped(0), "0");
  EXPECT_EQ(Grouped(999), "999");
  EXPECT_EQ(Grouped(1000), "1,000");
  EXPECT_EQ(Grouped(-1234567), "-1,234,567");
  EXPECT_EQ(Mebibytes(0), "0.0 MiB");
  EXPECT_EQ(Mebibytes(3 << 19), "1.5 MiB");
  EXPECT_EQ(Mebibytes(int64_t{5} << 40), "5,242,880.0 MiB");
  EXPECT_EQ(Roughly(absl::Milliseconds(1256)), "1.25s");
  EXPECT_EQ(Roughly(absl::Seconds(90)), "1m30s");
  EXPECT_EQ(Roughly(absl::Hours(25) + absl::Minutes(59)), "1d1h");
  EXPECT_EQ(Roughly(absl::InfiniteDuration()), "never");
}

TEST(Text, KeepsNothingThatATerminalObeys) {
  EXPECT_EQ(Wrapped("a bb ccc\ndddd", 5), "a bb\nccc\\ndddd");
  EXPECT_EQ(Wrapped("It waits. Row 3 lacks 'a'. row. Row 4"), "It waits.\nRow 3 lacks 'a'. row.\nRow 4");
  EXPECT_EQ(Shown(std::string(40, 'x')), std::string(40, 'x'));
  EXPECT_EQ(Shown(std::string(41, 'x')), std::string(39, 'x') + "…");
}

TEST(Text, AlignsByCharacters) {
  TextTable table({{"name"}, {"n", TextTable::Align::kRight}, {"last"}});
  table.Add({"é", "1", "x"});
  table.Add({"longer", "100", ""});
  std::ostringstream out;
  out << table;
  EXPECT_EQ(out.str(), "NAME      N  LAST\né         1  x\nlonger  100\n");
}

}  // namespace
}  // namespace tdock::console
