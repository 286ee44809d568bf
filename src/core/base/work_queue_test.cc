#include "core/base/work_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>

namespace tdock {
namespace {

TEST(WorkQueue, DoesWhatWasPostedBeforeItEnds) {
  std::atomic<int> done = 0;
  {
    WorkQueue work(2);
    for (int i = 0; i < 100; ++i) {
      work.Post(nullptr, [&] { work.Post(nullptr, [&] { ++done; }); });
    }
  }
  EXPECT_EQ(done, 100);
}

TEST(WorkQueue, WhoPostsMuchKeepsNobodyElseWaiting) {
  WorkQueue work(1);
  std::promise<void> begun, go;
  const int much = 0, little = 0;
  std::string order;
  work.Post(&much, [&] {
    begun.set_value();
    go.get_future().wait();
  });
  begun.get_future().wait();
  for (int i = 0; i < 5; ++i) work.Post(&much, [&] { order += 'm'; });
  for (int i = 0; i < 2; ++i) work.Post(&little, [&] { order += 'l'; });
  go.set_value();
  work.AwaitIdle();
  EXPECT_EQ(order, "mlmlmmm");
}

TEST(WorkQueue, KnowsItsThreads) {
  WorkQueue work(1);
  std::promise<bool> on_worker;
  work.Post(nullptr, [&] { on_worker.set_value(WorkQueue::OnWorker()); });
  EXPECT_TRUE(on_worker.get_future().get());
  EXPECT_FALSE(WorkQueue::OnWorker());
}

}  // namespace
}  // namespace tdock
