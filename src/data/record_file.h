// Files of records: JSON lines, JSON, CSV, text, Parquet.
//
// Opening a file goes through it once, in pieces, to learn where its records begin and what its content hashes to;
// after that any record can be read, in any order, by several threads. In memory are 9 bytes for each record, and of
// the file itself only what is being read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "data/value.h"
#include "text/content_hash.h"

namespace tdock::data {

enum class Format {
  kJsonLines,  // an object on each line (blank lines aside)
  kJson,       // a list of objects
  kCsv,        // RFC 4180, UTF-8, with a header line; every cell is text, an empty one nothing
  kText,       // each line that is not blank is a record with the column "text"
  kParquet     // where the build found Arrow
};

// "jsonl", "json", "csv", "text", "parquet".
absl::string_view FormatName(Format format);
absl::StatusOr<Format> FormatNamed(absl::string_view name);
// By the name's end: .jsonl and .ndjson, .json, .csv, .txt, .parquet. InvalidArgument for another one.
absl::StatusOr<Format> FormatOfPath(absl::string_view path);

struct RecordLimits {
  int64_t max_record_bytes = int64_t{16} << 20;
  int max_depth = 32;           // of objects and lists inside one another
  int64_t max_columns = 65536;  // of a header
};

// Thread-safe.
class RecordFile {
 public:
  virtual ~RecordFile() = default;

  virtual int64_t size() const = 0;

  // Names of columns. Of JSON, whose records may differ: those of the first 100.
  virtual const std::vector<std::string>& columns() const = 0;

  // The first of `wanted` that no record has. Of JSON, all records are looked at until each name was seen; where none
  // of them can be read, the first one's error is given.
  virtual absl::StatusOr<std::optional<std::string>> Lacking(std::span<const std::string> wanted) const {
    for (const std::string& name : wanted) {
      if (std::find(columns().begin(), columns().end(), name) == columns().end()) return name;
    }
    return std::nullopt;
  }

  // The records of `indexes`, each below size(), in their order, with the cells of `wanted`. Consecutive ones are read
  // at once. A record that cannot be read is InvalidArgument, as "path:line: …" (of Parquet "path: record N: …", from
  // 1), and does not stop the others; that the file itself cannot be read is any other error.
  virtual std::vector<absl::StatusOr<Record>> Read(std::span<const int64_t> indexes,
                                                   std::span<const std::string> wanted) const = 0;

  // Where record `index` stands: "path:line", or "path: record N".
  virtual std::string Place(int64_t index) const = 0;

  // Of all its bytes.
  virtual text::ContentHash content() const = 0;
};

// InvalidArgument, with the line, for a file that is not of this format as a whole: a JSON text that is no list of
// objects, a CSV header that is broken. Unimplemented for Parquet in a build without Arrow.
absl::StatusOr<std::unique_ptr<RecordFile>> OpenRecordFile(Env& env, const std::string& path, Format format,
                                                           const RecordLimits& limits = {});

// The same of a file that is open; `name` stands for it in messages.
absl::StatusOr<std::unique_ptr<RecordFile>> OpenRecordFile(std::unique_ptr<ReadableFile> file, const std::string& name,
                                                           Format format, const RecordLimits& limits = {});

}  // namespace tdock::data
