// An Env whose calls fail one after the other, for tests of what a program leaves behind when one does.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/base/status.h"

namespace tdock {

// Passes everything on to `base`, but for the call with the number `fails`, counted from 0 over all calls that change
// or read something: it does nothing and returns Unavailable, with the verb and the path. Thread-safe.
class FailingEnv final : public Env {
 public:
  FailingEnv(Env& base, int64_t fails, std::string only = "") : base_(base), fails_(fails), only_(std::move(only)) {}

  // Whether the call has come that fails.
  bool failed() const { return calls_ > fails_; }

  absl::StatusOr<std::string> ReadFile(const std::string& path) override {
    TDOCK_RETURN_IF_ERROR(Check("read", path));
    return base_.ReadFile(path);
  }
  absl::StatusOr<std::unique_ptr<MappedFile>> MapFile(const std::string& path) override {
    TDOCK_RETURN_IF_ERROR(Check("map", path));
    return base_.MapFile(path);
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForReading(const std::string& path) override {
    TDOCK_RETURN_IF_ERROR(Check("open", path));
    return base_.OpenForReading(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWriting(const std::string& path, WriteMode mode) override {
    TDOCK_RETURN_IF_ERROR(Check("write", path));
    TDOCK_ASSIGN_OR_RETURN(auto file, base_.OpenForWriting(path, mode));
    return std::make_unique<File>(*this, path, std::move(file));
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    TDOCK_RETURN_IF_ERROR(Check("rename to", to));
    return base_.Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override {
    TDOCK_RETURN_IF_ERROR(Check("remove", path));
    return base_.Remove(path);
  }
  absl::Status RemoveAll(const std::string& path) override {
    TDOCK_RETURN_IF_ERROR(Check("remove", path));
    return base_.RemoveAll(path);
  }
  absl::Status CreateFolders(const std::string& path) override {
    TDOCK_RETURN_IF_ERROR(Check("create", path));
    return base_.CreateFolders(path);
  }
  absl::Status CreateNewFolder(const std::string& path) override {
    TDOCK_RETURN_IF_ERROR(Check("create", path));
    return base_.CreateNewFolder(path);
  }
  bool Exists(const std::string& path) override { return base_.Exists(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    TDOCK_RETURN_IF_ERROR(Check("list", path));
    return base_.List(path);
  }

 private:
  class File final : public WritableFile {
   public:
    File(FailingEnv& env, std::string path, std::unique_ptr<WritableFile> file)
        : env_(env), path_(std::move(path)), file_(std::move(file)) {}
    absl::Status Append(absl::string_view data) override {
      TDOCK_RETURN_IF_ERROR(env_.Check("write to", path_));
      return file_->Append(data);
    }
    absl::Status Sync() override {
      TDOCK_RETURN_IF_ERROR(env_.Check("sync", path_));
      return file_->Sync();
    }
    absl::Status Close() override {
      TDOCK_RETURN_IF_ERROR(env_.Check("close", path_));
      return file_->Close();
    }

   private:
    FailingEnv& env_;
    const std::string path_;
    const std::unique_ptr<WritableFile> file_;
  };

  absl::Status Check(absl::string_view verb, const std::string& path) {
    if (!absl::StrContains(path, only_) || calls_.fetch_add(1) != fails_) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("cannot ", verb, " ", path, ": the test says so"));
  }

  Env& base_;
  const int64_t fails_;
  const std::string only_;
  std::atomic<int64_t> calls_ = 0;
};

}  // namespace tdock
