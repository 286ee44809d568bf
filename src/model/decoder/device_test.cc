#include "model/decoder/device.h"

#include <ATen/ATen.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "core/base/testing/fails.h"
#include "model/decoder/decoder.h"
#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"

// MKL calls this when its vector functions choose their kernels. The program's own comes before that of libtorch.
static std::atomic<int> choices_of_kernels = 0;
extern "C" int mkl_serv_vml_cpu_detect() {
  ++choices_of_kernels;
  static const auto real = reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, "mkl_serv_vml_cpu_detect"));
  return real();
}

namespace tdock::model {
namespace {

TEST(ParseDevice, RefusesWhatIsNoDevice) {
  for (const std::string text :
       {"", "gpu", "CPU", "cpu:0", "cud", "cudax", "cuda:", "cuda:x", "cuda:-1", "cuda:1.5", "cuda:99999999999"}) {
    EXPECT_THAT(ParseDevice(text).status(),
                Fails(absl::StatusCode::kInvalidArgument, {"device '" + text + "'", "cpu", "cuda:N"}));
  }
}

TEST(ParseDevice, SaysWhyAGpuIsNotThere) {
  EXPECT_THAT(ParseDevice("cuda:1000").status(),
              Fails(absl::StatusCode::kInvalidArgument, {"device 'cuda:1000'", "CUDA"}));
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

TEST(PrepareMath, LeavesNoChoiceOfKernelsToThreadsThatComputeWithADecoder) {
  if (!at::hasMKL()) GTEST_SKIP() << "libtorch without MKL";
  const Decoder decoder =
      Decoder::Random(TinyConfig(Architecture::kLlama, /*tied_head=*/true), 1, at::kCPU, at::kFloat);
  EXPECT_EQ(choices_of_kernels, 1) << "in all of this process";
  std::thread([] { at::ones({16}, at::kDouble).cos(); }).join();
  EXPECT_EQ(choices_of_kernels, 1);
}

}  // namespace
}  // namespace tdock::model
