// A `tdock serve` of a model with random weights. Internal to this module.
#pragma once

#include <ATen/core/ScalarType.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "bench/harness/benchmark.h"
#include "core/base/child_process.h"

namespace tdock::bench {

// The folder of the Llama of 95 million weights, or of a tiny one for quick runs, each of whose 8,192 tokens is a
// character of three bytes. It is gone when this is.
class LlamaFolder {
 public:
  static absl::StatusOr<std::unique_ptr<LlamaFolder>> Write(const Settings& settings, at::ScalarType dtype);
  ~LlamaFolder();
  LlamaFolder(const LlamaFolder&) = delete;
  LlamaFolder& operator=(const LlamaFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit LlamaFolder(std::string path) : path_(std::move(path)) {}

  const std::string path_;
};

// The program `tdock` beside this one. It ends with this object, or with this process.
class ServedLlama {
 public:
  static absl::StatusOr<std::unique_ptr<ServedLlama>> Start(const Settings& settings, at::ScalarType dtype);

  int port() const { return port_; }
  const std::string& folder() const { return folder_->path(); }

 private:
  ServedLlama(std::unique_ptr<LlamaFolder> folder, std::unique_ptr<ChildProcess> process, int port)
      : folder_(std::move(folder)), process_(std::move(process)), port_(port) {}

  const std::unique_ptr<LlamaFolder> folder_;
  const std::unique_ptr<ChildProcess> process_;
  const int port_;
};

}  // namespace tdock::bench
