#include "data/parquet_file.h"

#include "absl/strings/str_cat.h"

#ifdef TDOCK_PARQUET
#include <utility>

#include "core/base/beside_program.h"
#include "core/base/status.h"
#endif

namespace tdock::data {

#ifdef TDOCK_PARQUET

namespace {

absl::StatusOr<OpenParquetFunction*> LoadReader() {
  TDOCK_ASSIGN_OR_RETURN(void* const function,
                         LoadBesideProgram(TDOCK_PARQUET, kOpenParquet, "the reader of Parquet files"));
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
