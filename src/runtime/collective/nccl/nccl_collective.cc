#include "runtime/collective/nccl/nccl_collective.h"

#include <ATen/Context.h>

#include "absl/strings/str_cat.h"
#include "core/base/beside_program.h"
#include "core/base/status.h"

namespace tdock::runtime {
namespace {

// Compiled for the headers of one version of torch and of NCCL; libtorch_cuda is loaded with the program, because
// libtorch.so needs it in a build of torch for CUDA.
constexpr char kPlugin[] = "libtdock_runtime_collective_nccl_plugin.so";

absl::StatusOr<void*> Load(const char* function) {
  // The plugin's symbols would be missing, which says less.
  if (!at::hasCUDA()) return absl::UnimplementedError("this torch is a build for CPUs, or finds no GPU");
  const absl::StatusOr<void*> loaded = LoadBesideProgram(kPlugin, function, "NCCL");
  if (loaded.ok()) return *loaded;
  return absl::UnimplementedError(
      absl::StrCat(loaded.status().message(), "; `make build` installs the headers that it needs, and compiles it"));
}

}  // namespace

absl::Status CheckNccl() {
  TDOCK_ASSIGN_OR_RETURN(void* const function, Load(kCheckNccl));
  absl::Status checked;
  (*reinterpret_cast<CheckNcclFunction*>(function))(&checked);
  return checked;
}

absl::StatusOr<std::unique_ptr<TensorCollective>> OpenNcclCollective(const NcclOptions& options, absl::Time deadline) {
  if (const absl::Status checked = CheckNccl(); !checked.ok()) {
    return absl::UnimplementedError(absl::StrCat("group '", options.name, "' needs NCCL: ", checked.message()));
  }
  TDOCK_ASSIGN_OR_RETURN(void* const function, Load(kOpenNccl));
  absl::StatusOr<std::unique_ptr<TensorCollective>> opened;
  (*reinterpret_cast<OpenNcclFunction*>(function))(options, deadline, &opened);
  return opened;
}

}  // namespace tdock::runtime
