#include "runtime/collective/nccl/nccl_collective.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

#ifdef TDOCK_NCCL

#define USE_C10D_NCCL

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>

#include "absl/time/clock.h"
#include "runtime/collective/gloo/c10d_collective.h"
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

}  // namespace

bool HasNccl() { return true; }

absl::StatusOr<std::unique_ptr<TensorCollective>> OpenNcclCollective(const NcclOptions& options, absl::Time deadline) {
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

}  // namespace tdock::runtime

#else

namespace tdock::runtime {

bool HasNccl() { return false; }

absl::StatusOr<std::unique_ptr<TensorCollective>> OpenNcclCollective(const NcclOptions& options, absl::Time) {
  return absl::UnimplementedError(absl::StrCat("group '", options.name,
                                               "' needs NCCL, which this build does not have: ",
                                               "build with a CUDA build of libtorch, installed with what it needs"));
}

}  // namespace tdock::runtime

#endif
