#include "trainer/stages/step_metrics.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tdock::trainer {
namespace {

TEST(StepMetrics, WeighsMeansAndKeepsExtremes) {
  StepMetrics metrics;
  metrics.Mean("loss", 1.0, 3.0);
  metrics.Mean("loss", 5.0, 1.0);
  metrics.Sum("steps", 1);
  metrics.Sum("steps", 1);
  metrics.Distribution("score", std::vector<float>{1, 0, 0.5});
  metrics.Distribution("score", std::vector<float>{0.5});
  metrics.Distribution("nothing", {});
  const std::map<std::string, double> expected = {
      {"loss", 2.0}, {"steps", 2.0}, {"score/mean", 0.5}, {"score/max", 1.0}, {"score/min", 0.0}};
  EXPECT_EQ(metrics.Values(), expected);
}

TEST(StepMetrics, PutsTogetherWhatOthersGathered) {
  StepMetrics all, part;
  all.Mean("loss", 1.0, 3.0);
  all.Max("most", 2);
  part.Mean("loss", 5.0, 1.0);
  part.Sum("steps", 2);
  part.Max("most", 1);
  part.Min("least", 4);
  all.Add(part);
  const std::map<std::string, double> expected = {{"loss", 2.0}, {"steps", 2.0}, {"most", 2.0}, {"least", 4.0}};
  EXPECT_EQ(all.Values(), expected);
}

TEST(StepMetrics, TakesFiguresOfSeveralThreads) {
  StepMetrics metrics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) metrics.Sum("count", 1), metrics.Mean("mean", 3), metrics.Max("most", i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::map<std::string, double> expected = {{"count", 4000}, {"mean", 3}, {"most", 999}};
  EXPECT_EQ(metrics.Values(), expected);
}

}  // namespace
}  // namespace tdock::trainer
