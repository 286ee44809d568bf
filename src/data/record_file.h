// Files of records: JSON lines, JSON, CSV, text, Parquet.
//
// Opening a file reads it once, in pieces, to find where its records begin and to hash its content; after that any
// record can be read, in any order, by several threads. Memory use is 9 bytes per record, plus what is being read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "data/value.h"
#include "text/content_hash.h"

namespace tdock::data {

enum class Format {
  kJsonLines,  // an object on each line (blank lines aside)
  kJson,       // a list of objects
  kCsv,        // RFC 4180, UTF-8, with a header line; every cell is text, an empty one is nothing
  kText,       // each line that is not blank is a record with the column "text"
  kParquet     // where the build found Arrow
};

// "jsonl", "json", "csv", "text", "parquet".
absl::string_view FormatName(Format format);
// By the extension: .jsonl and .ndjson, .json, .csv, .txt, .parquet. InvalidArgument for any other.
absl::StatusOr<Format> FormatOfPath(absl::string_view path);

struct RecordLimits {
  int64_t max_record_bytes = int64_t{16} << 20;
  int max_depth = 32;           // of nested objects and lists
  int64_t max_columns = 65536;  // of a header
  // Limit for Parquet, which says much in few bytes: the columns of a row group that are asked for may take so many
  // times their bytes in the file, and so many more, in memory; and the file may have so many records.
  int64_t max_expansion = 1000;
  int64_t spare_bytes = int64_t{64} << 20;
};

// Thread-safe.
class RecordFile {
 public:
  virtual ~RecordFile() = default;

  virtual int64_t size() const = 0;

  // Names of columns. For JSON, whose records may differ: those of the first 100.
  virtual const std::vector<std::string>& columns() const = 0;

  // The first of `wanted` that no record has. For JSON, records are read until each name was seen; if none of them can
  // be read, returns the first one's error.
  virtual absl::StatusOr<std::optional<std::string>> Lacking(std::span<const std::string> wanted) const {
    const absl::flat_hash_set<absl::string_view> there(columns().begin(), columns().end());
    for (const std::string& name : wanted) {
      if (!there.contains(name)) return name;
    }
    return std::nullopt;
  }

  // The records of `indexes`, each below size(), in their order, with the cells of `wanted`. Consecutive ones are read
  // together. A record that cannot be read is InvalidArgument, as "path:line: …" (for Parquet "path: record N: …", from
  // 1), and does not stop the others; any other error means that the file itself cannot be read.
  virtual std::vector<absl::StatusOr<Record>> Read(std::span<const int64_t> indexes,
                                                   std::span<const std::string> wanted) const = 0;

  // The position of record `index`: "path:line", or "path: record N".
  virtual std::string Place(int64_t index) const = 0;

  // Of all its bytes.
  virtual text::ContentHash content() const = 0;
};

// InvalidArgument, with the line, for a file that is not of this format as a whole: JSON that is not a list of objects,
// or a malformed CSV header. Unimplemented for Parquet in a build without Arrow.
absl::StatusOr<std::unique_ptr<RecordFile>> OpenRecordFile(Env& env, const std::string& path, Format format,
                                                           const RecordLimits& limits = {});

// The same for an open file; `name` stands for it in messages.
absl::StatusOr<std::unique_ptr<RecordFile>> OpenRecordFile(std::unique_ptr<ReadableFile> file, const std::string& name,
                                                           Format format, const RecordLimits& limits = {});

}  // namespace tdock::data
