#include "dock/shared/shared_dock.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::dock {
namespace {

// What it needs is looked for in its own libraries first. Where a sanitizer is, it must find that one's malloc instead.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kScope = RTLD_LOCAL;
#else
constexpr int kScope = RTLD_LOCAL | RTLD_DEEPBIND;
#endif

absl::StatusOr<OpenSharedDockFunction*> LoadService() {
  std::error_code error;
  const std::string path = std::filesystem::read_symlink("/proc/self/exe", error).replace_filename(TDOCK_DOCK_SERVICE);
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | kScope);
  void* const function = library == nullptr ? nullptr : ::dlsym(library, kOpenSharedDock);
  if (function == nullptr) {
    return absl::NotFoundError(absl::StrCat("what shares a dock with other processes cannot be loaded: ", ::dlerror()));
  }
  return reinterpret_cast<OpenSharedDockFunction*>(function);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedDock>> OpenSharedDock(const SharedDockOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(OpenSharedDockFunction* const open, LoadService());
  absl::StatusOr<std::unique_ptr<SharedDock>> opened;
  (*open)(options, &opened);
  return opened;
}

}  // namespace tdock::dock
