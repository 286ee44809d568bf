// For tests and fuzzers: a disk on which every file has the same bytes.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/env.h"

namespace tdock::model {

// Bytes that end where an unreadable page begins: reading past them ends the program.
class GuardedBytes final : public MappedFile {
 public:
  explicit GuardedBytes(absl::string_view bytes) : size_(bytes.size()) {
    const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    mapped_ = (bytes.size() / page + 2) * page;
    memory_ = static_cast<char*>(
        ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0));
    std::memcpy(memory_ + mapped_ - page - size_, bytes.data(), size_);
    ::mprotect(memory_ + mapped_ - page, page, PROT_NONE);
    data_ = memory_ + mapped_ - page - size_;
  }
  ~GuardedBytes() override { ::munmap(memory_, mapped_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  std::span<const std::byte> bytes() const override { return {reinterpret_cast<const std::byte*>(data_), size_}; }

 private:
  const size_t size_;
  size_t mapped_;
  char* memory_;
  const char* data_;
};

class OneFileEnv final : public Env {
 public:
  explicit OneFileEnv(std::string bytes) : bytes_(std::move(bytes)) {}
  absl::StatusOr<std::string> ReadFile(const std::string&) override { return bytes_; }
  absl::StatusOr<std::unique_ptr<MappedFile>> MapFile(const std::string&) override {
    return std::make_unique<GuardedBytes>(bytes_);
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForReading(const std::string&) override {
    return absl::UnimplementedError("only mapped");
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWriting(const std::string&, WriteMode) override {
    return absl::UnimplementedError("read-only");
  }
  absl::Status Rename(const std::string&, const std::string&) override { return absl::UnimplementedError("read-only"); }
  absl::Status Remove(const std::string&) override { return absl::UnimplementedError("read-only"); }
  absl::Status RemoveAll(const std::string&) override { return absl::UnimplementedError("read-only"); }
  absl::Status CreateFolders(const std::string&) override { return absl::UnimplementedError("read-only"); }
  absl::Status CreateNewFolder(const std::string&) override { return absl::UnimplementedError("read-only"); }
  bool Exists(const std::string&) override { return true; }
  absl::StatusOr<std::vector<std::string>> List(const std::string&) override { return std::vector<std::string>(); }

 private:
  const std::string bytes_;
};

}  // namespace tdock::model
