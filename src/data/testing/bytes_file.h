// A file that is only in memory, for tests and fuzzers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "core/base/env.h"

namespace tdock::data {

class BytesFile final : public ReadableFile {
 public:
  explicit BytesFile(std::string bytes) : bytes_(std::move(bytes)) {}

  uint64_t size() const override { return bytes_.size(); }
  absl::Status ReadAt(uint64_t offset, std::span<char> into) override {
    if (offset > bytes_.size() || into.size() > bytes_.size() - offset) return absl::OutOfRangeError("the file ends");
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
    return absl::OkStatus();
  }

 private:
  const std::string bytes_;
};

}  // namespace tdock::data
