#include "runtime/collective/nccl/nccl_collective.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

#include "core/base/clock.h"
#include "core/base/testing/patience.h"
#include "runtime/launch/port.h"

namespace tdock::runtime {
namespace {

class NcclCollectiveTest : public testing::Test {
 protected:
  NcclCollectiveTest() {
    rendezvous_ = *Rendezvous::Open({.master_addr = "127.0.0.1", .master_port = *FreePort()}, kPatience);
  }
  absl::Time Later() const { return Clock::Real().Now() + kPatience; }

  std::unique_ptr<Rendezvous> rendezvous_;
};

TEST_F(NcclCollectiveTest, IsSaidToBeMissingWhereItIs) {
  if (CheckNccl().ok()) GTEST_SKIP() << "NCCL is there";
  const auto group = OpenNcclCollective({.rendezvous = *rendezvous_, .name = "actor"}, Later());
  EXPECT_EQ(group.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(group.status().message(), testing::HasSubstr("group 'actor' needs NCCL"));
  EXPECT_THAT(group.status().message(), testing::HasSubstr(at::hasCUDA() ? "" : "CPUs"));
}

// One rank, because two need two GPUs.
TEST_F(NcclCollectiveTest, DoesEveryOperationOnTheGpu) {
  if (!CheckNccl().ok() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU for NCCL";
  const auto group = OpenNcclCollective({.rendezvous = *rendezvous_, .name = "actor"}, Later());
  ASSERT_TRUE(group.ok()) << group.status();
  const at::Tensor numbers = at::arange(1000, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  const std::vector<at::Tensor> sums = {numbers.clone(), at::ones({3}, numbers.options())};
  ASSERT_EQ((*group)->AllReduceSum(sums, Later()), absl::OkStatus());
  EXPECT_TRUE(at::equal(sums[0], numbers));
  const at::Tensor own = at::empty_like(numbers), parts = at::empty({1, 1000}, numbers.options());
  ASSERT_EQ((*group)->ReduceScatterSum(numbers.view({1, 1000}), own, Later()), absl::OkStatus());
  ASSERT_EQ((*group)->AllGather(own, parts, Later()), absl::OkStatus());
  EXPECT_TRUE(at::equal(parts[0], numbers));
  const Buffer bytes = Buffer::CopyOf(std::as_bytes(std::span("abc", 3)));
  EXPECT_EQ((*group)->AllGatherBytes(bytes, Later())->front().size(), 3u);
  EXPECT_EQ((*group)->Broadcast(bytes, 0, Later())->size(), 3u);
  EXPECT_EQ(*(*group)->AllReduceMax(-7, Later()), -7);
  EXPECT_EQ((*group)->Barrier(Later()), absl::OkStatus());
  (*group)->Leave();
  EXPECT_FALSE((*group)->Barrier(Later()).ok());
}

}  // namespace
}  // namespace tdock::runtime
