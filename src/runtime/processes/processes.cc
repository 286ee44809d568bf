#include "runtime/processes/processes.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::runtime {
namespace {

// What it needs is looked for in its own libraries first. Where a sanitizer is, it must find that one's malloc instead.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kScope = RTLD_LOCAL;
#else
constexpr int kScope = RTLD_LOCAL | RTLD_DEEPBIND;
#endif

template <class Function>
absl::StatusOr<Function*> Load(const char* name) {
  std::error_code error;
  const std::string path =
      std::filesystem::read_symlink("/proc/self/exe", error).replace_filename(TDOCK_RUNTIME_SERVICE);
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | kScope);
  void* const function = library == nullptr ? nullptr : ::dlsym(library, name);
  if (function == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("what speaks to the other processes of a run cannot be loaded: ", ::dlerror()));
  }
  return reinterpret_cast<Function*>(function);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Controller>> OpenController(const ControllerOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(OpenControllerFunction* const open, Load<OpenControllerFunction>(kOpenController));
  absl::StatusOr<std::unique_ptr<Controller>> opened;
  (*open)(options, &opened);
  return opened;
}

absl::StatusOr<std::unique_ptr<WorkerSession>> JoinController(const WorkerOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(JoinControllerFunction* const join, Load<JoinControllerFunction>(kJoinController));
  absl::StatusOr<std::unique_ptr<WorkerSession>> joined;
  (*join)(options, &joined);
  return joined;
}

}  // namespace tdock::runtime
