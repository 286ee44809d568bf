// Finds where the records of a text file begin. Internal to this module.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "data/record_file.h"

namespace tdock::data {

// Where records begin. Record i is bytes [begins[i], begins[i + 1]), or up to `end`, including its separator.
struct RecordPlaces {
  static constexpr size_t kLineStep = 8;

  std::vector<uint64_t> begins;
  std::vector<int64_t> lines;  // of every kLineStep-th record's first byte, from 1
  uint64_t end = 0;            // after the last record

  void Add(uint64_t begin, int64_t line) {
    if (begins.size() % kLineStep == 0) lines.push_back(line);
    begins.push_back(begin);
  }
};

// Scans a file piece by piece. Not thread-safe.
class RecordScanner {
 public:
  virtual ~RecordScanner() = default;

  // The next bytes of the file. InvalidArgument, as "line: what", if records cannot be delimited.
  virtual absl::Status Feed(absl::string_view bytes) = 0;
  // After the last byte.
  virtual absl::Status Finish() = 0;

  const RecordPlaces& places() const { return places_; }
  RecordPlaces TakePlaces() { return std::move(places_); }

 protected:
  RecordPlaces places_;
};

// Of any format but Parquet.
std::unique_ptr<RecordScanner> MakeScanner(Format format);

}  // namespace tdock::data
