#include "data/parquet_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/beside_program.h"
#include "core/base/status.h"

namespace tdock::data {
namespace {

constexpr char kReader[] = "libtdock_data_parquet.so";

absl::StatusOr<OpenParquetFunction*> LoadReader() {
  const absl::StatusOr<void*> function = LoadBesideProgram(kReader, kOpenParquet, "the reader of Parquet files");
  if (!function.ok()) {
    return absl::UnimplementedError(absl::StrCat(
        function.status().message(), "; `make build` installs Arrow, which the reader needs, and builds it"));
  }
  return reinterpret_cast<OpenParquetFunction*>(*function);
}

}  // namespace

bool ReadsParquet() { return LoadReader().ok(); }

absl::StatusOr<std::unique_ptr<RecordFile>> OpenParquet(std::unique_ptr<ReadableFile> file, const std::string& name,
                                                        const RecordLimits& limits) {
  const absl::StatusOr<OpenParquetFunction*> open = LoadReader();
  if (!open.ok()) return Annotate(open.status(), name);
  absl::StatusOr<std::unique_ptr<RecordFile>> opened;
  (*open)(std::move(file), name, limits, &opened);
  return opened;
}

}  // namespace tdock::data
