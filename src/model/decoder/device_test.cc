#include "model/decoder/device.h"

#include <gtest/gtest.h>

#include <string>

#include "model/decoder/testing/devices.h"

namespace tdock::model {
namespace {

TEST(ParseDevice, RefusesWhatIsNoDevice) {
  for (const std::string text :
       {"", "gpu", "CPU", "cpu:0", "cud", "cudax", "cuda:", "cuda:x", "cuda:-1", "cuda:1.5", "cuda:99999999999"}) {
    const auto device = ParseDevice(text);
    EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(device.status().message(), "device '" + text + "' is not cpu, cuda or cuda:N");
  }
}

TEST(ParseDevice, SaysWhyAGpuIsNotThere) {
  const auto device = ParseDevice("cuda:1000");
  EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(device.status().message().find("CUDA") != std::string::npos) << device.status();
}

TEST(ParseDevice, GivesTheDevicesThatAreThere) {
  EXPECT_EQ(*ParseDevice("cpu"), at::Device(at::kCPU));
  EXPECT_EQ(ParseDevice("cuda").ok(), HasCuda());
  for (const at::Device& device : TestDevices()) EXPECT_EQ(*ParseDevice(device.str()), device);
}

TEST(ParseDevice, GivesEachOfSeveralProcessesAGpuOfItsOwn) {
  if (!HasCuda()) GTEST_SKIP() << "no GPU";
  SetDefaultGpu(1);
  const at::Device second = *ParseDevice("cuda");
  SetDefaultGpu(0);
  EXPECT_EQ(second.index(), ParseDevice("cuda:1").ok() ? 1 : 0);
  EXPECT_EQ(ParseDevice("cuda")->index(), 0);
}

TEST(WorkerThreads, AreTheCoresUnlessTheDeviceIsAGpu) {
  EXPECT_EQ(WorkerThreads(3, at::kCPU), 3);
  EXPECT_EQ(WorkerThreads(3, at::kCUDA), 3);
  EXPECT_EQ(WorkerThreads(0, at::kCUDA), 1);
  EXPECT_GE(WorkerThreads(0, at::kCPU), 1);
}

}  // namespace
}  // namespace tdock::model
