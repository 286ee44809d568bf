// USE_C10D_NCCL comes first: the headers of c10d are empty without it.
#define USE_C10D_NCCL

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "runtime/collective/gloo/c10d_collective.h"
#include "runtime/collective/nccl/nccl_collective.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"

namespace tdock::runtime {
namespace {

// By default wait() returns once the operation is queued, a failed one ends the process, and so does a thread that
// finds that nothing gets on: errors and deadlines would never come to the caller.
void WaitForTheGpu() {
  static std::once_flag once;
  std::call_once(once, [] {
    ::setenv("TORCH_NCCL_BLOCKING_WAIT", "1", /*overwrite=*/1);
    ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", /*overwrite=*/1);
    ::setenv("TORCH_NCCL_ENABLE_MONITORING", "0", /*overwrite=*/1);
    ::setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", /*overwrite=*/1);
  });
}

// The layout of c10d's classes depends on the version of NCCL that they were compiled with.
absl::Status CheckVersion() {
  const int found = c10d::getNcclVersionNumber();
  if (found == NCCL_VERSION_CODE) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("it was built for NCCL ", NCCL_VERSION_CODE, ", and this torch has ", found));
}

absl::StatusOr<std::unique_ptr<TensorCollective>> Open(const NcclOptions& options, absl::Time deadline) {
  TDOCK_CHECK(options.rank >= 0 && options.rank < options.size, "a group has its rank");
  TDOCK_CHECK(options.device.is_cuda() && options.device.has_index(), "NCCL connects GPUs");
  TDOCK_ASSIGN_OR_RETURN(const c10::intrusive_ptr<c10d::Store> all, options.rendezvous.NewStore());
  const std::string prefix = absl::StrCat("group/", options.name, "/");
  auto group = std::make_unique<C10dCollective>(C10dGroup{.name = options.name,
                                                          .rank = options.rank,
                                                          .size = options.size,
                                                          .store = c10::make_intrusive<c10d::PrefixStore>(prefix, all),
                                                          .device = options.device});
  const auto connect = [&]() -> C10dCollective::Connection {
    WaitForTheGpu();
    const auto nccl = c10d::ProcessGroupNCCL::Options::create();
    nccl->timeout = TimeUntil(std::max(deadline, absl::Now() + options.timeout));
    auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        c10::make_intrusive<c10d::PrefixStore>(absl::StrCat(prefix, "nccl/"), all), options.rank, options.size, nccl);
    backend->setBoundDeviceId(options.device);
    const auto abort = [backend] {
      try {
        backend->abort();
      } catch (const std::exception&) {  // it has ended what it could
      }
    };
    return {.backend = backend, .disconnect = abort};
  };
  TDOCK_RETURN_IF_ERROR(group->Connect(connect, deadline));
  TDOCK_RETURN_IF_ERROR(group->Barrier(deadline));  // the connections are made by the first operation
  return group;
}

}  // namespace
}  // namespace tdock::runtime

extern "C" void tdock_check_nccl(absl::Status* checked) { *checked = tdock::runtime::CheckVersion(); }

extern "C" void tdock_open_nccl(const tdock::runtime::NcclOptions& options, absl::Time deadline,
                                absl::StatusOr<std::unique_ptr<tdock::runtime::TensorCollective>>* opened) {
  *opened = tdock::runtime::Open(options, deadline);
}
