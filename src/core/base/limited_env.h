// An Env whose disk fills up, for tests of what a program leaves behind when it does.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/env.h"

namespace tdock {

// Passes everything on to `base`, and refuses with ResourceExhausted what would write more than `capacity_bytes` in
// all. A write that crosses the limit is written up to it, as a full disk does. Thread-safe.
class LimitedEnv : public Env {
 public:
  LimitedEnv(Env& base, int64_t capacity_bytes) : base_(base), left_(capacity_bytes) {}

  absl::StatusOr<std::string> ReadFile(const std::string& path) override { return base_.ReadFile(path); }
  absl::StatusOr<std::unique_ptr<MappedFile>> MapFile(const std::string& path) override { return base_.MapFile(path); }
  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForReading(const std::string& path) override {
    return base_.OpenForReading(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWriting(const std::string& path, WriteMode mode) override;
  absl::Status Rename(const std::string& from, const std::string& to) override { return base_.Rename(from, to); }
  absl::Status Remove(const std::string& path) override { return base_.Remove(path); }
  absl::Status CreateFolders(const std::string& path) override { return base_.CreateFolders(path); }
  absl::Status CreateNewFolder(const std::string& path) override { return base_.CreateNewFolder(path); }
  bool Exists(const std::string& path) override { return base_.Exists(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override { return base_.List(path); }

  // Changes how many bytes may still be written.
  void SetLeft(int64_t bytes) { left_ = bytes; }

 private:
  Env& base_;
  std::atomic<int64_t> left_;
};

}  // namespace tdock
