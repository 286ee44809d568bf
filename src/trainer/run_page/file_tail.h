// The lines of a file that another process writes, as they come.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "core/base/env.h"

namespace tdock::trainer {

// Not thread-safe; never waits for the writer.
class FileTail {
 public:
  // `env` must outlive it.
  FileTail(Env& env, std::string path) : env_(env), path_(std::move(path)) {}

  struct News {
    std::string lines = {};  // whole ones, each with its newline
    // The file was replaced, shortened or removed: what came before counts no more, and the next call begins anew.
    bool restarted = false;
    bool more = false;     // there was more than `most_bytes`
    int64_t too_long = 0;  // lines of more than 16 MiB, which are left out
  };
  // What was written since the last call, of it at most the next `most_bytes`. A last line without its newline is kept
  // until that has come. A file that is not there has no lines yet. Errors of the system, which name the file.
  absl::StatusOr<News> Read(size_t most_bytes);
  void Restart();

  uint64_t read_bytes() const { return offset_; }
  uint64_t size() const { return size_; }  // at the last call

 private:
  void TakeLines(std::string bytes, News& news);

  Env& env_;
  const std::string path_;
  std::unique_ptr<ReadableFile> file_;  // open, so that no other file gets its number
  ino_t number_ = 0;
  dev_t device_ = 0;
  uint64_t offset_ = 0, size_ = 0;
  std::string partial_;    // of a line whose end has not come
  bool skipping_ = false;  // the rest of a line that is too long
};

}  // namespace tdock::trainer
