// The safetensors file format: an 8-byte little-endian header length, a JSON header
// {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, …}, and the tensors' bytes.
// Source: the format description of the safetensors project.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/env.h"

namespace tdock::model {

// A file opened for reading: its header is checked, its tensors are views of the mapped file. Thread-safe.
class SafetensorsFile {
 public:
  // InvalidArgument says what is wrong with a malformed file: every length, offset, shape and dtype is checked against
  // the file's size before it is used, and each byte of the data must belong to exactly one tensor.
  // Unimplemented names a dtype that is not read.
  static absl::StatusOr<SafetensorsFile> Open(Env& env, const std::string& path);

  std::vector<std::string> names() const;

  // The tensor in the dtype of the file: a view of the mapped bytes, not to be written to, that keeps the mapping
  // alive. NotFound names a tensor that is not there.
  absl::StatusOr<at::Tensor> Get(const std::string& name) const;

 private:
  struct Entry {
    at::ScalarType dtype;
    std::vector<int64_t> shape;
    size_t begin;  // offset in the file
  };

  absl::Status ParseHeader();

  std::shared_ptr<MappedFile> file_;
  std::map<std::string, Entry> tensors_;
};

// Writes the tensors in the order given, as float32, float16 or bfloat16 (what they are), from whatever device they are
// on, atomically.
absl::Status WriteSafetensors(Env& env, const std::string& path,
                              const std::vector<std::pair<std::string, at::Tensor>>& tensors);

}  // namespace tdock::model
