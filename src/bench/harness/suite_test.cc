#include "bench/harness/suite.h"

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "bench/harness/report.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "core/base/testing/limited_env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tdock::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

class SuiteTest : public ::testing::Test {
 protected:
  SuiteTest() : folder_(::testing::TempDir() + "/suite_test_XXXXXX") {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    // Runs that take 2 ms, beside a reference that takes 1 ms.
    benchmarks_.push_back({.name = "dock/steady", .unit = "ms", .of = "memcpy", .prepare = [this](const Settings& s) {
                             return Prepared{.run = Taking(s, 2), .reference = Taking(s, 1)};
                           }});
    benchmarks_.push_back({.name = "generate/lonely", .unit = "ms", .prepare = [this](const Settings& s) {
                             return Prepared{.run = Taking(s, 1234567)};
                           }});
  }
  ~SuiteTest() override { std::filesystem::remove_all(folder_); }

  TimedRun Taking(const Settings& settings, int milliseconds) {
    return [this, &clock = settings.clock, milliseconds]() -> absl::StatusOr<double> {
      ++timed_;
      TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&] {
                               clock_.Advance(absl::Milliseconds(milliseconds));
                               return absl::OkStatus();
                             }));
      return seconds * 1e3;
    };
  }

  absl::Status Run(const SuiteRequest& request, Env& env = Env::Real()) {
    const Settings settings{.clock = clock_, .runs = 3, .threads = 2};
    Machine machine;
    machine.cpu = "abacus";
    machine.instructions = {"carry", "borrow"};
    machine.cores = 2;
    return RunSuite(benchmarks_, request, settings, machine,
                    {.env = env, .out = out_, .watcher = [](const Benchmark&, int) {}});
  }

  std::string folder_;
  FakeClock clock_;
  std::vector<Benchmark> benchmarks_;
  std::ostringstream out_;
  int timed_ = 0;
};

TEST_F(SuiteTest, PrintsATableRowForEachBenchmark) {
  ASSERT_TRUE(Run({}).ok());
  EXPECT_EQ(out_.str(),
            "name                   median  unit       spread   ratio  of\n"
            "dock/steady              2.00  ms             0%   0.500  memcpy\n"
            "generate/lonely     1,234,567  ms             0%\n");
}

TEST_F(SuiteTest, WritesMachineSettingsAndResultsAsJson) {
  const std::string path = folder_ + "/figures.json";
  ASSERT_TRUE(Run({.names = {}, .filter = "", .json_path = path}).ok());
  const Json report = Json::parse(*Env::Real().ReadFile(path));
  EXPECT_EQ(report["machine"]["cpu"], "abacus");
  EXPECT_EQ(report["machine"]["instructions"], Json({"carry", "borrow"}));
  EXPECT_EQ(report["machine"]["cores"], 2);
  EXPECT_EQ(report["settings"], Json::parse(R"({"runs": 3, "threads": 2, "quick": false, "device": "cpu"})"));
  ASSERT_EQ(report["results"].size(), 2u);
  const Json& steady = report["results"][0];
  EXPECT_EQ(steady["name"], "dock/steady");
  EXPECT_EQ(steady["unit"], "ms");
  EXPECT_DOUBLE_EQ(steady["median"].get<double>(), 2);
  EXPECT_EQ(steady["runs"].size(), 3u);
  EXPECT_DOUBLE_EQ(steady["ratio"].get<double>(), 0.5);
  EXPECT_EQ(steady["of"], "memcpy");
  EXPECT_EQ(steady["reference_runs"].size(), 3u);
  const Json& lonely = report["results"][1];
  EXPECT_FALSE(lonely.contains("ratio"));
  EXPECT_FALSE(lonely.contains("of"));
}

TEST_F(SuiteTest, ReportsTheMedianOfEveryDetail) {
  const auto run = [calls = 0]() mutable -> absl::StatusOr<Figure> {
    ++calls;
    return Figure(1, {{"p99", static_cast<double>(calls * calls)}});
  };
  benchmarks_ = {{.name = "dock/wake", .unit = "ms", .prepare = [&](const Settings&) { return Prepared{.run = run}; }}};
  const std::string path = folder_ + "/figures.json";
  ASSERT_TRUE(Run({.names = {}, .filter = "", .json_path = path}).ok());
  EXPECT_EQ(Json::parse(*Env::Real().ReadFile(path))["results"][0]["p99"], 9);
  EXPECT_THAT(out_.str(), HasSubstr("p99 9.00"));
}

TEST_F(SuiteTest, ListsNamesAndUnitsWithoutRunningAnything) {
  ASSERT_TRUE(Run({.names = {}, .filter = "", .json_path = "", .list = true}).ok());
  EXPECT_EQ(out_.str(), "dock/steady      ms\ngenerate/lonely  ms\n");
  EXPECT_EQ(timed_, 0);
}

TEST_F(SuiteTest, RefusesAFileInAMissingFolderBeforeAnythingIsMeasured) {
  const absl::Status status = Run({.names = {}, .filter = "", .json_path = folder_ + "/nowhere/figures.json"});
  EXPECT_THAT(status, Fails(absl::StatusCode::kNotFound, {folder_ + "/nowhere/figures.json"}));
  EXPECT_EQ(timed_, 0);
}

TEST_F(SuiteTest, KeepsTheOldFileWhereTheDiskIsFull) {
  const std::string path = folder_ + "/figures.json";
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), path, "old").ok());
  LimitedEnv full(Env::Real(), 10);
  EXPECT_EQ(Run({.names = {}, .filter = "", .json_path = path}, full).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*Env::Real().ReadFile(path), "old");
  EXPECT_THAT(*Env::Real().List(folder_), ElementsAre("figures.json"));
}

TEST_F(SuiteTest, KeepsTheRowsBeforeABenchmarkThatFails) {
  benchmarks_[1].prepare = [](const Settings&) -> absl::StatusOr<Prepared> { return absl::InternalError("broke"); };
  EXPECT_THAT(Run({}), Fails(absl::StatusCode::kInternal, {"generate/lonely", "broke"}));
  EXPECT_THAT(out_.str(), HasSubstr("dock/steady"));
}

TEST(TableRow, ShowsThreeDigitsAndTheSpreadInPercentOfTheMedian) {
  Result result;
  result.name = "a";
  result.unit = "us";
  const auto row = [&](double low, double median, double high) {
    result.runs = {low, median, high};
    result.median = median;
    return TableRow(result, 1);
  };
  EXPECT_THAT(row(0.04, 0.0476, 0.0523), StartsWith("a        0.0476  us            26%"));
  EXPECT_THAT(row(0.4, 0.5, 0.6), StartsWith("a         0.500  us"));
  EXPECT_THAT(row(9, 9.876, 11), StartsWith("a          9.88  us"));
  EXPECT_THAT(row(90, 98.76, 110), StartsWith("a          98.8  us"));
  EXPECT_THAT(row(900, 987.6, 1100), StartsWith("a           988  us"));
  EXPECT_THAT(row(1e6, 1234567, 2e6), StartsWith("a     1,234,567  us"));
}

TEST(ResidentBytes, CountsWhatIsTouched) {
  const int64_t before = ResidentBytes(Env::Real());
  const std::vector<char> touched(64 << 20, 'x');
  EXPECT_GE(ResidentBytes(Env::Real()), before + (60 << 20));
}

TEST(DescribeMachine, TellsWhatTheSystemSays) {
  FakeClock clock(absl::FromUnixSeconds(0));
  const Machine machine = DescribeMachine(Env::Real(), clock);
  EXPECT_GT(machine.cores, 0);
  EXPECT_GT(machine.memory_bytes, 1 << 20);
  EXPECT_THAT(machine.kernel, StartsWith("Linux "));
  EXPECT_FALSE(machine.compiler.empty());
  EXPECT_FALSE(machine.build_type.empty());
  EXPECT_EQ(machine.time, "1970-01-01T00:00:00+00:00");
}

TEST(DescribeMachine, NamesTheInstructionsThatKernelsUse) {
  class AbacusEnv final : public LimitedEnv {
   public:
    AbacusEnv() : LimitedEnv(Env::Real(), 0) {}
    absl::StatusOr<std::string> ReadFile(const std::string& path) override {
      return path == "/proc/cpuinfo" ? "vmx flags\t: avx2\nflags\t\t: fpu avx512_bf16 avx2x fma\n" : "";
    }
  } env;
  FakeClock clock(absl::FromUnixSeconds(0));
  EXPECT_THAT(DescribeMachine(env, clock).instructions, ElementsAre("fma", "avx512_bf16"));
}

}  // namespace
}  // namespace tdock::bench
