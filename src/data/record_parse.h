// Parses the bytes of one record into cells. Internal to this module.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "data/record_file.h"
#include "data/value.h"

namespace tdock::data {

// How many readable bytes must follow what is given to a RecordParser.
inline constexpr size_t kParserPadding = 64;

// Not thread-safe.
class RecordParser {
 public:
  virtual ~RecordParser() = default;

  // The cells of `wanted`. `bytes` is a record as RecordPlaces delimits it, including its separator. InvalidArgument
  // says what is wrong, without the position.
  virtual absl::StatusOr<Record> Parse(absl::string_view bytes, std::span<const std::string> wanted) = 0;

  // The names in a record; for a CSV file's first one, its header.
  virtual absl::StatusOr<std::vector<std::string>> Names(absl::string_view bytes) = 0;
};

// Of any format but Parquet. `header` has the columns of a CSV file.
std::unique_ptr<RecordParser> MakeParser(Format format, const RecordLimits& limits,
                                         const std::vector<std::string>& header);

}  // namespace tdock::data
