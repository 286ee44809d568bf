#include "core/base/beside_program.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace tdock {
namespace {

// What it needs is looked for in its own libraries first. Where a sanitizer is, it must find that one's malloc instead.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kScope = RTLD_LOCAL;
#else
constexpr int kScope = RTLD_LOCAL | RTLD_DEEPBIND;
#endif

}  // namespace

absl::StatusOr<void*> LoadBesideProgram(absl::string_view file, const char* function, absl::string_view what) {
  std::error_code error;
  const std::string path = std::filesystem::read_symlink("/proc/self/exe", error).replace_filename(std::string(file));
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | kScope);
  void* const found = library == nullptr ? nullptr : ::dlsym(library, function);
  if (found == nullptr) return absl::NotFoundError(absl::StrCat(what, " cannot be loaded: ", ::dlerror()));
  return found;
}

}  // namespace tdock
