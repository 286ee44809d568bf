// Parquet files, through Arrow. Internal to this module and to `parquet`.
//
// The libraries of a pyarrow wheel export everything that is linked into them, including OpenSSL and simdjson. In a
// program linked with them, these would replace the versions that the rest of it was compiled for. So the reader is a
// separate shared object, built from the module `parquet`, which lies next to the program and is loaded, with its
// symbols hidden, when the first such file is opened.
#pragma once

#include <memory>
#include <string>

#include "data/record_file.h"

namespace tdock::data {

// True if the reader can be loaded.
bool ReadsParquet();

// Unimplemented if the reader cannot be loaded, as in a build without Arrow. Row groups are
// decoded whole, and the last ones are cached, up to 256 MiB: an order that jumps between more is slow, although one
// call of Read() decodes each only once. Several are decoded in parallel. For the limits, a record's size is that of
// its texts, plus 8 bytes for each other value. What a row group takes in memory is limited before it is taken; the
// error of its records names the row group, counted from 0 as in pyarrow, and the column.
absl::StatusOr<std::unique_ptr<RecordFile>> OpenParquet(std::unique_ptr<ReadableFile> file, const std::string& name,
                                                        const RecordLimits& limits);

// The interface of the shared object, under this name.
inline constexpr char kOpenParquet[] = "tdock_open_parquet";
using OpenParquetFunction = void(std::unique_ptr<ReadableFile> file, const std::string& name,
                                 const RecordLimits& limits, absl::StatusOr<std::unique_ptr<RecordFile>>* opened);

}  // namespace tdock::data
