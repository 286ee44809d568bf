#include "trainer/run_page/run_follower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trainer/run_page/bucket_series.h"
#include "trainer/run_page/file_tail.h"

namespace tdock::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RunFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* const info = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = absl::StrCat(::testing::TempDir(), "run_page_", info->test_suite_name(), "_", info->name());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_ + "/tensorboard");
    Append("config.yaml", "recipe: grpo\nseed: 7\n");
  }
  void TearDown() override { std::filesystem::remove_all(path_); }

  void Append(const std::string& file, absl::string_view text) {
    const auto out = *Env::Real().OpenForWriting(JoinPath(path_, file), WriteMode::kAppend);
    ASSERT_TRUE(out->Append(text).ok());
    ASSERT_TRUE(out->Close().ok());
  }
  void Replace(const std::string& file, absl::string_view text) {
    ASSERT_TRUE(WriteFileAtomically(Env::Real(), JoinPath(path_, file), text).ok());
  }
  static void PollAll(RunFollower& run, size_t most_bytes = size_t{4} << 20) {
    for (int i = 0; i < 10'000 && run.Poll(most_bytes); ++i) {
    }
  }

  std::string path_;
  Sequence sequence_;
};

using FileTailTest = RunFolder;

TEST_F(FileTailTest, ALineIsTakenOnceItsEndHasCome) {
  FileTail tail(Env::Real(), JoinPath(path_, "log"));
  EXPECT_EQ(tail.Read(100)->lines, "");
  Append("log", "one\ntw");
  EXPECT_EQ(tail.Read(100)->lines, "one\n");
  EXPECT_EQ(tail.Read(100)->lines, "");
  Append("log", "o\n");
  EXPECT_EQ(tail.Read(100)->lines, "two\n");
}

TEST_F(FileTailTest, ALongFileComesInPieces) {
  Append("log", "first\nsecond\nthird\n");
  FileTail tail(Env::Real(), JoinPath(path_, "log"));
  const auto piece = *tail.Read(8);
  EXPECT_EQ(piece.lines, "first\n");
  EXPECT_TRUE(piece.more);
  EXPECT_EQ(tail.Read(100)->lines, "second\nthird\n");
}

TEST_F(FileTailTest, AReplacedFileBeginsAnewEvenIfItIsLonger) {
  Append("log", "one\ntwo\n");
  FileTail tail(Env::Real(), JoinPath(path_, "log"));
  ASSERT_EQ(tail.Read(100)->lines, "one\ntwo\n");
  Replace("log", "one\nother\nthird\n");
  EXPECT_TRUE(tail.Read(100)->restarted);
  EXPECT_EQ(tail.Read(100)->lines, "one\nother\nthird\n");
  std::filesystem::resize_file(JoinPath(path_, "log"), 4);
  EXPECT_TRUE(tail.Read(100)->restarted);
  EXPECT_EQ(tail.Read(100)->lines, "one\n");
  std::filesystem::remove(JoinPath(path_, "log"));
  EXPECT_TRUE(tail.Read(100)->restarted);
  EXPECT_FALSE(tail.Read(100)->restarted);
}

TEST_F(FileTailTest, ALineOfMoreThanSixteenMebibytesIsLeftOut) {
  Append("log", std::string(17 << 20, 'x') + "\nnext\n");
  FileTail tail(Env::Real(), JoinPath(path_, "log"));
  std::string lines;
  int64_t too_long = 0;
  for (bool more = true; more;) {
    const auto news = *tail.Read(1 << 20);
    lines += news.lines;
    too_long += news.too_long;
    more = news.more;
  }
  EXPECT_EQ(lines, "next\n");
  EXPECT_EQ(too_long, 1);
}

TEST(BucketSeries, KeepsEverySpikeInABoundedNumberOfBuckets) {
  BucketSeries series;
  for (int i = 1; i <= 100'000; ++i) series.Add(i, i, i == 54'321 ? 1000 : i == 77'777 ? -1000 : std::sin(i));
  const LogRecord data = *series.Since(0);
  EXPECT_LE(data["x"].size(), BucketSeries::kMostBuckets);
  EXPECT_GT(data["x"].size(), BucketSeries::kMostBuckets / 4);
  EXPECT_EQ(data["x"].back(), 100'000);
  EXPECT_EQ(data["max"], (LogRecord{54'321, 1000}));
  EXPECT_EQ(std::count(data["high"].begin(), data["high"].end(), LogRecord(1000.0)), 1);
  EXPECT_EQ(std::count(data["low"].begin(), data["low"].end(), LogRecord(-1000.0)), 1);
}

// A reader that puts the parts together has what one gets who asks for everything.
TEST(BucketSeries, PartsAddUpToTheWhole) {
  BucketSeries series;
  LogRecord known = {{"x", LogRecord::array()}, {"y", LogRecord::array()}};
  uint64_t seen = 0;
  size_t sent = 0;
  for (uint64_t i = 1; i <= 3000; ++i) {
    series.Add(i, static_cast<int64_t>(2 * i), i % 7 == 0 ? std::nan("") : static_cast<double>(i));
    if (i % 5 != 0) continue;
    const LogRecord part = *series.Since(seen);
    seen = i;
    sent += part["x"].size();
    for (const char* list : {"x", "y", "low", "high"}) {
      if (!part.contains(list)) continue;
      LogRecord& whole = known[list];
      if (whole.is_null()) whole = LogRecord::array();
      whole.erase(whole.begin() + std::min(part["from"].get<size_t>(), whole.size()), whole.end());
      for (const auto& value : part[list]) whole.push_back(value);
    }
  }
  const LogRecord all = *series.Since(0);
  for (const char* list : {"x", "y", "low", "high"}) EXPECT_EQ(known[list], all[list]) << list;
  EXPECT_FALSE(series.Since(3000).has_value());
  EXPECT_LT(sent, 4000) << "more than the parts that changed";
}

using RunFollowerTest = RunFolder;

TEST_F(RunFollowerTest, TellsWhatIsNewSinceAnEvent) {
  Append("metrics.jsonl", "{\"phase\":\"grpo\",\"step\":1,\"a\":0.5,\"b\":null}\n");
  RunFollower run(Env::Real(), path_, "mine", sequence_);
  PollAll(run);
  const LogRecord first = run.Since(0);
  EXPECT_TRUE(first["reset"].get<bool>());
  EXPECT_EQ(first["head"]["state"], "failed");
  EXPECT_EQ(first["head"]["facts"], LogRecord::array({LogRecord::array({"seed", "7"})}));
  ASSERT_EQ(first["phases"].size(), 1);
  EXPECT_EQ(first["phases"][0]["series"].size(), 2);
  const uint64_t seen = sequence_.last;
  EXPECT_FALSE(run.HasNewsSince(seen));
  Append("metrics.jsonl", "{\"phase\":\"grpo\",\"step\":2,\"a\":0.75}\nnonsense\n{\"phase\":\"grpo\",");
  PollAll(run);
  EXPECT_TRUE(run.HasNewsSince(seen));
  const LogRecord next = run.Since(seen);
  EXPECT_FALSE(next["reset"].get<bool>());
  EXPECT_FALSE(next.contains("head"));
  EXPECT_EQ(next["unreadable"], 1);
  ASSERT_EQ(next["phases"][0]["series"].size(), 1);
  const LogRecord& series = next["phases"][0]["series"][0];
  EXPECT_EQ(series["from"], 1);
  EXPECT_EQ(series["y"], LogRecord::array({0.75}));
  EXPECT_EQ(next["phases"][0]["steps"], (LogRecord{{2}}));
}

TEST_F(RunFollowerTest, ARunThatIsResumedBeginsAnew) {
  Append("metrics.jsonl", "{\"phase\":\"a\",\"step\":1,\"x\":1}\n{\"phase\":\"a\",\"step\":2,\"x\":2}\n");
  Append("timeline.jsonl",
         "{\"phase\":\"a\",\"step\":1,\"stage\":\"actor\",\"what\":\"work\",\"begin\":0,\"end\":1.5,\"rows\":4}\n");
  RunFollower run(Env::Real(), path_, "mine", sequence_);
  PollAll(run);
  const uint64_t seen = sequence_.last;
  // The second step is gone, and another one has come, of other length.
  Replace("metrics.jsonl", "{\"phase\":\"a\",\"step\":1,\"x\":1}\n{\"phase\":\"a\",\"step\":2,\"x\":22.25}\n");
  PollAll(run);
  const LogRecord data = run.Since(seen);
  EXPECT_TRUE(data["reset"].get<bool>());
  EXPECT_EQ(data["phases"][0]["series"][0]["y"], (LogRecord{1, 22.25}));
  EXPECT_EQ(data["spans"], (LogRecord{{0, 1, 1, 0.0, 1.5, 4}}));
  EXPECT_EQ(data["lanes"], LogRecord{"actor"});
  EXPECT_EQ(data["seconds"], 1.5);
}

TEST_F(RunFollowerTest, KeepsTheSamplesOfTheFirstStepAndOfTheLastOnes) {
  RunFollower run(Env::Real(), path_, "mine", sequence_);
  for (int step = 0; step < 9; ++step) {
    for (int i = 0; i < 20; ++i) {
      Append("samples.jsonl", absl::StrFormat("{\"phase\":\"a\",\"step\":%d,\"prompt\":\"<script>%d\"}\n", step, i));
    }
    PollAll(run);
  }
  const LogRecord samples = run.Since(0)["samples"];
  EXPECT_EQ(samples["keys"], (LogRecord{"a 0", "a 4", "a 5", "a 6", "a 7", "a 8"}));
  EXPECT_EQ(samples["groups"][0][1].size(), 12);
  EXPECT_EQ(samples["groups"][0][1][0]["prompt"], "<script>0");
  EXPECT_FALSE(run.Since(sequence_.last).contains("samples"));
}

TEST_F(RunFollowerTest, SaysWhatCannotBeRead) {
  RunFollower run(Env::Real(), path_, "mine", sequence_);
  std::filesystem::remove(JoinPath(path_, "config.yaml"));
  PollAll(run);
  EXPECT_THAT(run.Since(0)["problem"].get<std::string>(), HasSubstr("config.yaml"));
  const uint64_t seen = sequence_.last;
  PollAll(run);
  EXPECT_FALSE(run.HasNewsSince(seen)) << "the same problem is no news";
  Append("config.yaml", "recipe: sft\n");
  PollAll(run);
  EXPECT_EQ(run.Since(seen)["problem"], "");
}

double ThreadSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TEST_F(RunFollowerTest, ReadsAHundredThousandStepsQuicklyAndTellsThemInLittle) {
  std::string lines;
  double parsing = 0;  // what a parser of JSON takes for the lines
  for (int step = 1; step <= 100'000; ++step) {
    absl::StrAppendFormat(&lines, "{\"phase\":\"grpo\",\"step\":%d", step);
    for (int metric = 0; metric < 20; ++metric) {
      absl::StrAppendFormat(&lines, ",\"actor/metric_%d\":%.17g", metric, std::sin(0.001 * step * metric));
    }
    lines += "}\n";
    if (step % 10 != 0) continue;
    const std::string line = lines.substr(lines.rfind('\n', lines.size() - 2) + 1);
    const double begin = ThreadSeconds();
    const LogRecord parsed = LogRecord::parse(line);
    parsing += 10 * (ThreadSeconds() - begin);
    EXPECT_EQ(parsed["step"], step);
  }
  Append("metrics.jsonl", lines);
  RunFollower run(Env::Real(), path_, "long", sequence_);
  const double begin = ThreadSeconds();
  PollAll(run);
  const LogRecord all = run.Since(0);
  const std::string text = all.dump();
  const double whole = ThreadSeconds() - begin;
  EXPECT_EQ(all["phases"][0]["first_step"], 1);
  EXPECT_EQ(all["phases"][0]["last_step"], 100'000);
  EXPECT_LT(whole, 5 * parsing) << lines.size() << " bytes";
  EXPECT_LT(text.size(), 1'000'000);
  const uint64_t seen = sequence_.last;
  Append("metrics.jsonl", "{\"phase\":\"grpo\",\"step\":100001,\"actor/metric_1\":2}\n");
  PollAll(run);
  EXPECT_LT(run.Since(seen).dump().size(), 1000);
  RecordProperty("seconds", absl::StrCat(whole));
  RecordProperty("bytes", absl::StrCat(text.size()));
}

}  // namespace
}  // namespace tdock::trainer
