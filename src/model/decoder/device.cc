#include "model/decoder/device.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "kernels/limits.h"
#include "kernels/products.h"
#include "model/tensor_torch/convert.h"

namespace tdock::model {
namespace {

int CudaDevices() { return at::hasCUDA() ? static_cast<int>(at::detail::getCUDAHooks().deviceCount()) : 0; }

std::atomic<int> default_gpu = 0;

}  // namespace

at::ScalarType FastType(DType stored, const at::Device& device) {
  const bool is_fast = !device.is_cpu() || (stored == DType::kBF16 && kernels::HasFastBFloat16());
  const bool is_half = stored == DType::kBF16 || stored == DType::kF16;
  return is_half && is_fast ? ToScalarType(stored).value() : at::kFloat;
}

absl::Status UseInstructions(const std::string& name) {
  TDOCK_RETURN_IF_ERROR(kernels::UseInstructions(name));
  if (name != kernels::kPortable) return absl::OkStatus();
  ::setenv("ATEN_CPU_CAPABILITY", "default", 1);
  ::setenv("MKL_CBWR", "COMPATIBLE", 1);
  if (at::get_cpu_capability() == "DEFAULT") return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("libtorch computes with ", at::get_cpu_capability(),
                   " in this process already: set ATEN_CPU_CAPABILITY=default before it starts"));
}

void SetDefaultGpu(int index) { default_gpu = index; }

int WorkerThreads(int64_t asked, const at::Device& device) {
  if (asked > 0) return static_cast<int>(asked);
  return device.is_cpu() ? static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u)) : 1;
}

void PrepareMath() {
  static std::once_flag once;
  std::call_once(once, [] {
    const at::NoGradGuard no_grad;
    at::ones({16}, at::kDouble).exp_();
  });
}

void AwaitDevice(const at::Device& device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(std::max<c10::DeviceIndex>(device.index(), 0));
}

bool HasCuda() { return CudaDevices() > 0; }

absl::StatusOr<at::Device> ParseDevice(const std::string& text) {
  if (text == "cpu") return at::Device(at::kCPU);
  absl::string_view rest = text;
  int index = default_gpu % std::max(CudaDevices(), 1);
  const bool is_cuda =
      absl::ConsumePrefix(&rest, "cuda") &&
      (rest.empty() || (absl::ConsumePrefix(&rest, ":") && absl::SimpleAtoi(rest, &index) && index >= 0));
  if (!is_cuda)
    return absl::InvalidArgumentError(absl::StrCat("device '", EscapeForMessage(text), "' is not cpu, cuda or cuda:N"));
  if (!at::detail::getCUDAHooks().hasCUDART()) {
    return absl::InvalidArgumentError(absl::StrCat("device '", EscapeForMessage(text),
                                                   "' needs a CUDA build of libtorch; this build is for the CPU"));
  }
  if (index >= CudaDevices()) {
    return absl::InvalidArgumentError(absl::StrCat("device '", EscapeForMessage(text),
                                                   "' does not exist; this machine has ", CudaDevices(),
                                                   " CUDA devices, counted from 0"));
  }
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
}

}  // namespace tdock::model
