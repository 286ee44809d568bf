// The safetensors file format: an 8-byte little-endian header length, a JSON header
// {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, …}, and the tensors' bytes.
// Source: the format description of the safetensors project.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/env.h"
#include "tdock/dtype.h"

namespace tdock::model {

struct TensorInfo {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  uint64_t bytes() const;
  bool operator==(const TensorInfo&) const = default;
};

// The name of a tensor in a form for messages.
std::string ShowName(absl::string_view name);

// A file opened for reading: its header is checked, its tensors are views of the mapped file. Thread-safe.
class SafetensorsFile {
 public:
  // InvalidArgument says what is wrong with a malformed file: every length, offset, shape and dtype is checked against
  // the file's size before it is used, and each byte of the data must belong to exactly one tensor.
  // Unimplemented names a dtype that is not read.
  static absl::StatusOr<SafetensorsFile> Open(Env& env, const std::string& path);

  std::vector<std::string> names() const;
  bool Has(const std::string& name) const { return tensors_.contains(name); }

  // Of a tensor that is there.
  const TensorInfo& Info(const std::string& name) const { return tensors_.at(name).info; }
  // Valid while mapping() is; aligned to nothing, as the format promises nothing.
  std::span<const std::byte> Bytes(const std::string& name) const;
  const std::shared_ptr<const MappedFile>& mapping() const { return file_; }
  const std::string& path() const { return path_; }

 private:
  struct Entry {
    TensorInfo info;
    size_t begin;  // offset in the file
  };

  absl::Status ParseHeader();

  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, Entry> tensors_;
};

struct NamedInfo {
  std::string name;
  TensorInfo info;
};

// The bytes of the tensor with this index among those being written, valid until the next call.
using BytesOfTensor = std::function<absl::StatusOr<std::span<const std::byte>>(size_t index)>;

// Writes tensors in the order given, atomically. `bytes_of` is called for each in turn, so that no more than one at a
// time need be in the memory for it.
absl::Status WriteSafetensors(Env& env, const std::string& path, std::span<const NamedInfo> tensors,
                              const BytesOfTensor& bytes_of);

}  // namespace tdock::model
