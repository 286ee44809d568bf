// For tests that run on every kind of device that is there:
//
//   class DecoderTest : public testing::TestWithParam<at::Device> {};
//   INSTANTIATE_TEST_SUITE_P(Devices, DecoderTest, testing::ValuesIn(TestDevices()), DeviceName);
#pragma once

#include <ATen/Parallel.h>
#include <c10/core/Device.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "model/decoder/device.h"

namespace tdock::model {

// The CPU, and the first CUDA device. Where there is none, says so once in each test program. libtorch is left one
// thread: with more, its threads spin at the end of every small operation, which on a busy machine takes tens of times
// as long.
inline std::vector<at::Device> TestDevices() {
  at::set_num_threads(1);
  if (HasCuda()) return {at::Device(at::kCPU), at::Device(at::kCUDA, 0)};
  static const bool said = [] {
    std::fputs("No CUDA device here: tests that run on both run on the CPU only.\n", stderr);
    return true;
  }();
  (void)said;
  return {at::Device(at::kCPU)};
}

inline std::string DeviceName(const testing::TestParamInfo<at::Device>& info) {
  return info.param.is_cpu() ? "Cpu" : "Cuda";
}

}  // namespace tdock::model
