// The lines of a file, one after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/env.h"

namespace tdock::cli {

// Holds no more of the file than one line and a piece behind it. Not thread-safe.
class LineReader {
 public:
  // The errors of Env::OpenForReading(). Messages name the file and the line.
  static absl::StatusOr<LineReader> Open(Env& env, const std::string& path, size_t max_line_bytes);

  // The next line without its end, valid until the next call; nullopt behind the last. InvalidArgument for a line that
  // is too long; the errors of ReadableFile::ReadAt().
  absl::StatusOr<std::optional<absl::string_view>> Next();

  // Goes back to the beginning of the file, which ends where it did when it was opened.
  void Rewind();

  int64_t number() const { return number_; }   // of the line that Next() gave, from 1
  bool is_ended() const { return is_ended_; }  // whether a line end follows it
  uint64_t end() const { return line_end_; }   // the offset behind it, and behind its end
  std::string Place() const;                   // "path:number"

 private:
  LineReader(std::unique_ptr<ReadableFile> file, std::string path, size_t max_line_bytes)
      : file_(std::move(file)), path_(std::move(path)), max_line_bytes_(max_line_bytes) {}

  std::unique_ptr<ReadableFile> file_;
  std::string path_;
  size_t max_line_bytes_;
  std::string buffer_;
  size_t begin_ = 0;     // of what Next() has not given yet, in the buffer
  uint64_t offset_ = 0;  // of the buffer's end, in the file
  uint64_t line_end_ = 0;
  int64_t number_ = 0;
  bool is_ended_ = true;
};

}  // namespace tdock::cli
