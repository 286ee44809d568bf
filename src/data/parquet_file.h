// Parquet files, through Arrow. Internal to this module and to `parquet`.
//
// The libraries of a pyarrow wheel export all that is linked into them, OpenSSL and simdjson among it. In a program
// that were linked with them, those would take the place of the ones that the rest of it was compiled for. So the
// reader is a shared object of its own, built from the module `parquet`, which lies beside the program and is loaded
// when the first such file is opened, without showing its symbols to anyone.
#pragma once

#include <memory>
#include <string>

#include "data/record_file.h"

namespace tdock::data {

// Whether this build reads them.
bool ReadsParquet();

// Unimplemented in a build without Arrow, NotFound where the reader is not beside the program. Row groups are decoded
// whole, and the last ones are kept, up to 256 MiB of them: an order that jumps between more is slow, though one call
// of Read() decodes each once. Several are decoded side by side. Of the limits, a record's bytes are those of the texts
// that are read, and 8 for each other value.
absl::StatusOr<std::unique_ptr<RecordFile>> OpenParquet(std::unique_ptr<ReadableFile> file, const std::string& name,
                                                        const RecordLimits& limits);

// What the shared object has, under this name.
inline constexpr char kOpenParquet[] = "tdock_open_parquet";
using OpenParquetFunction = void(std::unique_ptr<ReadableFile> file, const std::string& name,
                                 const RecordLimits& limits, absl::StatusOr<std::unique_ptr<RecordFile>>* opened);

}  // namespace tdock::data
