#include "data/parquet_file.h"

#include "absl/strings/str_cat.h"

#ifdef TDOCK_PARQUET
#include <dlfcn.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "core/base/status.h"
#endif

namespace tdock::data {

#ifdef TDOCK_PARQUET

namespace {

// What it needs is looked for in its own libraries first. Where a sanitizer is, it must find that one's malloc instead.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kScope = RTLD_LOCAL;
#else
constexpr int kScope = RTLD_LOCAL | RTLD_DEEPBIND;
#endif

absl::StatusOr<OpenParquetFunction*> LoadReader() {
  std::error_code error;
  const std::string path = std::filesystem::read_symlink("/proc/self/exe", error).replace_filename(TDOCK_PARQUET);
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | kScope);
  void* const function = library == nullptr ? nullptr : ::dlsym(library, kOpenParquet);
  if (function == nullptr) {
    return absl::NotFoundError(absl::StrCat("the reader of Parquet files cannot be loaded: ", ::dlerror()));
  }
  return reinterpret_cast<OpenParquetFunction*>(function);
}

}  // namespace

bool ReadsParquet() { return true; }

absl::StatusOr<std::unique_ptr<RecordFile>> OpenParquet(std::unique_ptr<ReadableFile> file, const std::string& name,
                                                        const RecordLimits& limits) {
  const absl::StatusOr<OpenParquetFunction*> open = LoadReader();
  if (!open.ok()) return Annotate(open.status(), name);
  absl::StatusOr<std::unique_ptr<RecordFile>> opened;
  (*open)(std::move(file), name, limits, &opened);
  return opened;
}

#else

bool ReadsParquet() { return false; }

absl::StatusOr<std::unique_ptr<RecordFile>> OpenParquet(std::unique_ptr<ReadableFile>, const std::string& name,
                                                        const RecordLimits&) {
  return absl::UnimplementedError(absl::StrCat(name,
                                               ": this build cannot read Parquet, because Arrow was not found; "
                                               "`make build` installs it, and builds again"));
}

#endif

}  // namespace tdock::data
