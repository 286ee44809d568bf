// An Env whose disk fills up, for tests of what a program leaves behind when it does.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/base/status.h"

namespace tdock {

// Passes everything on to `base`, and refuses with ResourceExhausted any write beyond `capacity_bytes` in total. A
// write that crosses the limit is written up to it, as on a full disk. Thread-safe.
class LimitedEnv : public Env {
 public:
  LimitedEnv(Env& base, int64_t capacity_bytes) : base_(base), left_(capacity_bytes) {}

  absl::StatusOr<std::string> ReadFile(const std::string& path) override { return base_.ReadFile(path); }
  absl::StatusOr<std::unique_ptr<MappedFile>> MapFile(const std::string& path) override { return base_.MapFile(path); }
  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForReading(const std::string& path) override {
    return base_.OpenForReading(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWriting(const std::string& path, WriteMode mode) override {
    TDOCK_ASSIGN_OR_RETURN(auto file, base_.OpenForWriting(path, mode));
    return std::make_unique<LimitedFile>(path, std::move(file), left_);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override { return base_.Rename(from, to); }
  absl::Status Remove(const std::string& path) override { return base_.Remove(path); }
  absl::Status RemoveAll(const std::string& path) override { return base_.RemoveAll(path); }
  absl::Status CreateFolders(const std::string& path) override { return base_.CreateFolders(path); }
  absl::Status CreateNewFolder(const std::string& path) override { return base_.CreateNewFolder(path); }
  bool Exists(const std::string& path) override { return base_.Exists(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override { return base_.List(path); }

  // Changes how many bytes may still be written.
  void SetLeft(int64_t bytes) { left_ = bytes; }

 private:
  class LimitedFile final : public WritableFile {
   public:
    LimitedFile(std::string path, std::unique_ptr<WritableFile> file, std::atomic<int64_t>& left)
        : path_(std::move(path)), file_(std::move(file)), left_(left) {}

    absl::Status Append(absl::string_view data) override {
      const int64_t size = static_cast<int64_t>(data.size());
      const int64_t before = left_.fetch_sub(size);
      if (before >= size) return file_->Append(data);
      left_ = 0;
      TDOCK_RETURN_IF_ERROR(file_->Append(data.substr(0, static_cast<size_t>(std::max<int64_t>(before, 0)))));
      return absl::ResourceExhaustedError(absl::StrCat("cannot write to ", path_, ": No space left on device"));
    }
    absl::Status Sync() override { return file_->Sync(); }
    absl::Status Close() override { return file_->Close(); }

   private:
    const std::string path_;
    const std::unique_ptr<WritableFile> file_;
    std::atomic<int64_t>& left_;
  };

  Env& base_;
  std::atomic<int64_t> left_;
};

}  // namespace tdock
