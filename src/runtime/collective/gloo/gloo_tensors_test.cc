#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/base/clock.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "runtime/collective/gloo/testing/rank_threads.h"

namespace tdock::runtime {
namespace {

using Code = absl::StatusCode;

absl::Time Later() { return Clock::Real().Now() + kPatience; }

bool BitEqual(const at::Tensor& a, const at::Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

at::Tensor Numbers(int64_t seed, int64_t count, at::ScalarType dtype) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return at::randn({count}, generator, at::TensorOptions(at::kDouble)).to(dtype);
}

// In the order of the ranks, in float64.
at::Tensor SumOf(int ranks, int64_t count, at::ScalarType dtype) {
  at::Tensor sum = at::zeros({count}, at::kDouble);
  for (int rank = 0; rank < ranks; ++rank) sum += Numbers(rank, count, dtype);
  return sum;
}

// The tensors of all ranks after the same operation.
std::vector<at::Tensor> OnAll(int size, const std::function<at::Tensor(TensorCollective&)>& body) {
  std::vector<at::Tensor> results(static_cast<size_t>(size));
  RunOnRanks(size, [&](TensorCollective& group) { results[static_cast<size_t>(group.rank())] = body(group); });
  return results;
}

class TensorOperations : public testing::TestWithParam<std::tuple<int, at::ScalarType>> {
 protected:
  const int size_ = std::get<0>(GetParam());
  const at::ScalarType dtype_ = std::get<1>(GetParam());
  const double error_ = dtype_ == at::kFloat ? 1e-6 : 1e-15;  // relative
};

TEST_P(TensorOperations, AddsUpToTheSameBitsAtAllRanksAndInEveryRun) {
  constexpr int64_t kCounts[] = {0, 1, 3, 100'003};
  const auto run = [&] {
    return OnAll(size_, [&](TensorCollective& group) {
      std::vector<at::Tensor> sums;
      for (const int64_t count : kCounts) {
        sums.push_back(Numbers(group.rank(), count, dtype_));
        EXPECT_EQ(group.AllReduceSum(sums.back(), Later()), absl::OkStatus());
        EXPECT_TRUE(at::allclose(sums.back().to(at::kDouble), SumOf(size_, count, dtype_), 8 * error_, 8 * error_));
      }
      return at::cat(sums);
    });
  };
  const std::vector<at::Tensor> sums = run(), again = run();
  for (size_t rank = 0; rank < sums.size(); ++rank) {
    EXPECT_TRUE(BitEqual(sums[rank], sums[0])) << rank;
    EXPECT_TRUE(BitEqual(sums[rank], again[rank])) << rank;
  }
}

// Small ones travel together, those of each dtype; larger ones alone.
TEST_P(TensorOperations, AddsUpManyAtOnce) {
  constexpr int64_t kCounts[] = {3, 0, 100'003, 1, 70'000, 200'001, 64, 90'000, 80'000, 75'000, 1000};
  RunOnRanks(size_, [&](TensorCollective& group) {
    std::vector<at::Tensor> sums;
    for (const int64_t count : kCounts) {
      const at::ScalarType dtype = sums.size() % 3 == 1 ? at::kDouble : dtype_;
      const at::Tensor numbers = Numbers(group.rank(), count, dtype);
      sums.push_back(count % 2 == 0 ? numbers.view({2, -1}) : numbers);
    }
    ASSERT_EQ(group.AllReduceSum(sums, Later()), absl::OkStatus());
    for (size_t i = 0; i < sums.size(); ++i) {
      const at::Tensor expected = SumOf(size_, kCounts[i], sums[i].scalar_type());
      EXPECT_TRUE(at::allclose(sums[i].view({-1}).to(at::kDouble), expected, 8 * error_, 8 * error_)) << i;
    }
    EXPECT_EQ(group.AllReduceSum(std::vector<at::Tensor>(), Later()), absl::OkStatus());
    // Other tensors of as many numbers.
    const bool first = group.rank() == 0;
    const absl::Status others =
        group.AllReduceSum(std::vector{at::ones({first ? 2 : 1}), at::ones({first ? 1 : 2})}, Later());
    EXPECT_EQ(others.ok(), size_ == 1);
    EXPECT_NE(others.code(), Code::kDeadlineExceeded);
  });
}

TEST_P(TensorOperations, AddsUpPartsAndPutsThemTogether) {
  const int64_t part = 1001, count = size_ * part;
  const auto run = [&] {
    return OnAll(size_, [&](TensorCollective& group) {
      const at::Tensor parts = Numbers(group.rank(), count, dtype_).view({size_, part});
      at::Tensor own = at::empty({part}, dtype_), whole = at::empty({size_, part}, dtype_);
      EXPECT_EQ(group.ReduceScatterSum(parts, own, Later()), absl::OkStatus());
      EXPECT_TRUE(BitEqual(parts.view({-1}), Numbers(group.rank(), count, dtype_))) << "the parts are only read";
      EXPECT_EQ(group.AllGather(own, whole, Later()), absl::OkStatus());
      EXPECT_TRUE(BitEqual(whole[group.rank()], own));
      return whole.view({-1});
    });
  };
  const std::vector<at::Tensor> sums = run(), again = run();
  EXPECT_TRUE(at::allclose(sums[0].to(at::kDouble), SumOf(size_, count, dtype_), 8 * error_, 8 * error_));
  for (size_t rank = 0; rank < sums.size(); ++rank) {
    EXPECT_TRUE(BitEqual(sums[rank], sums[0])) << rank;
    EXPECT_TRUE(BitEqual(sums[rank], again[rank])) << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(, TensorOperations,
                         testing::Combine(testing::Values(1, 2, 4), testing::Values(at::kFloat, at::kDouble)));

TEST(GlooTensors, GathersTensorsOfAnyType) {
  RunOnRanks(3, [](TensorCollective& group) {
    for (const at::ScalarType dtype : {at::kBool, at::kBFloat16, at::kLong, at::kComplexDouble}) {
      at::Tensor parts = at::zeros({3, 2, 2}, dtype);
      ASSERT_EQ(group.AllGather(at::full({2, 2}, group.rank() != 1, dtype), parts, Later()), absl::OkStatus());
      EXPECT_TRUE(
          at::equal(parts, at::stack({at::ones({2, 2}, dtype), at::zeros({2, 2}, dtype), at::ones({2, 2}, dtype)})));
    }
  });
}

TEST(GlooTensors, GathersBytesOfDifferentLengths) {
  RunOnRanks(3, [](TensorCollective& group) {
    const std::vector<std::vector<std::string>> rounds = {
        {"", "", ""}, {"abc", "", "d"}, {"", std::string(1 << 20, 'e'), ""}};
    for (const std::vector<std::string>& texts : rounds) {
      const std::string& own = texts[static_cast<size_t>(group.rank())];
      const auto gathered =
          group.AllGatherBytes(Buffer::CopyOf(std::as_bytes(std::span(own.data(), own.size()))), Later());
      ASSERT_TRUE(gathered.ok()) << gathered.status();
      std::vector<std::string> found;
      for (const Buffer& bytes : *gathered)
        found.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      EXPECT_EQ(found, texts);
    }
  });
}

TEST(GlooTensors, RefusesTensorsThatDiffer) {
  RunOnRanks(2, [](TensorCollective& group) {
    const at::Tensor tensor = at::zeros({group.rank() == 0 ? 10 : 1'000'000});
    EXPECT_THAT(group.AllReduceSum(tensor, Later()),
                Fails(Code::kInternal, {"1000000 of Float", "10 of Float", "rank"}));
    EXPECT_THAT(group.AllReduceSum(at::zeros({1}), Later()), Fails(Code::kInternal, {"1000000 of Float"}));
  });
}

TEST(GlooTensors, ARankThatLeavesEndsWhatOthersWaitFor) {
  std::atomic<int> come = 0;
  RunOnRanks(3, [&](TensorCollective& group) {
    at::Tensor tensor = at::ones({1000});
    ASSERT_EQ(group.AllReduceSum(tensor, Later()), absl::OkStatus());
    ++come;
    while (come < 3) std::this_thread::yield();
    if (group.rank() == 2) {
      group.Leave();
      EXPECT_THAT(group.Barrier(Later()), Fails(Code::kUnavailable, {"this rank, 2, left"}));
    } else {
      // On a loaded machine, the other rank that waits may be suspected, too.
      const absl::Status failed = group.AllReduceSum(tensor, Later());
      EXPECT_THAT(failed, Fails(Code::kUnavailable, {" 2 of 3 left before", "sum"}));
      EXPECT_EQ(group.Barrier(Later()), failed);
    }
  });
}

TEST(GlooTensors, AnotherThreadCanEndWhatItsRankWaitsFor) {
  std::atomic<bool> ended = false;
  RunOnRanks(2, [&](TensorCollective& group) {
    ASSERT_EQ(group.Barrier(Later()), absl::OkStatus());
    if (group.rank() == 1) {  // never comes
      while (!ended) std::this_thread::yield();
      return;
    }
    std::promise<void> waits;
    std::thread leaves([&, come = waits.get_future()] {
      come.wait();
      group.Leave();
      group.Leave();
    });
    waits.set_value();
    at::Tensor tensor = at::ones({1000});
    EXPECT_THAT(group.AllReduceSum(tensor, Later()), Fails(Code::kUnavailable, {"this rank, 0, left"}));
    leaves.join();
    ended = true;
  });
}

}  // namespace
}  // namespace tdock::runtime
