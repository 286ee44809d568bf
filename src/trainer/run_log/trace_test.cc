#include "trainer/run_log/trace.h"

#include <gtest/gtest.h>

#include <vector>

#include "nlohmann/json.hpp"

namespace tdock::trainer {
namespace {

TEST(Trace, HasAProcessForEachRankAndAThreadForEachLane) {
  const std::vector<TraceSpan> spans = {
      {.rank = 0, .lane = "actor", .name = "actor", .began_ns = 5'000'000, .ended_ns = 7'000'000, .rows = 8},
      {.rank = 1,
       .lane = "generate_sequences",
       .name = "generate_sequences",
       .began_ns = 1'000'000,
       .ended_ns = 4'500'000,
       .rows = 16,
       .memory_before = 2'000'000,
       .memory_after = 3'000'000},
      {.rank = 0, .lane = "actor", .name = "actor", .began_ns = 8'000'000, .ended_ns = 8'500'000, .rows = 8}};
  const nlohmann::json trace = nlohmann::json::parse(ToTrace(spans));
  std::vector<nlohmann::json> complete, names;
  for (const auto& event : trace.at("traceEvents")) (event.at("ph") == "X" ? complete : names).push_back(event);
  EXPECT_EQ(names.size(), 4u);  // two processes, two threads
  ASSERT_EQ(complete.size(), 3u);
  EXPECT_EQ(complete[0].at("ts"), 4000.0);
  EXPECT_EQ(complete[1].at("ts"), 0.0);
  EXPECT_EQ(complete[1].at("dur"), 3500.0);
  EXPECT_EQ(complete[1].at("pid"), 1);
  EXPECT_EQ(complete[1].at("args").at("memory after (MB)"), 3.0);
  EXPECT_EQ(complete[2].at("tid"), complete[0].at("tid"));
  EXPECT_NE(complete[1].at("tid"), complete[0].at("tid"));
}

}  // namespace
}  // namespace tdock::trainer
