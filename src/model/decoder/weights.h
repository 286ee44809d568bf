// Weights of safetensors files as tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "model/decoder/layers.h"
#include "model/files/safetensors.h"

namespace tdock::model {

// A tensor of the file in the dtype that it has there: a view of the mapped bytes, not to be written to, that keeps the
// mapping alive; or a copy where it is not aligned. NotFound names a tensor that is not there.
absl::StatusOr<at::Tensor> ReadTensor(const SafetensorsFile& file, const std::string& name);

// Copies a tensor of the file into one of the same shape, piece by piece, and gives the pages of the mapping back: no
// more of the file is in memory than a piece. NotFound names a tensor that is not there.
absl::Status CopyTensor(const SafetensorsFile& file, const std::string& name, const at::Tensor& into);

// The same for a weight that is to be used: InvalidArgument also names the file, the weight and the first place of a
// number that is NaN or infinite, or beyond what the dtype of `into` holds. Buffers, such as masks, may have
// infinities; nothing reads them.
absl::Status CopyWeight(const SafetensorsFile& file, const std::string& name, const at::Tensor& into);

// Writes the tensors in the order given, from whatever device they are on, converted to `dtype` one after another.
// Atomic. InvalidArgument names one whose dtype the format does not have.
absl::Status WriteTensors(Env& env, const std::string& path, const NamedTensors& tensors,
                          std::optional<at::ScalarType> dtype = std::nullopt);

// The same as a file, or several with an index: see WriteWeightFiles().
absl::Status WriteWeights(Env& env, const std::string& folder, const NamedTensors& weights, uint64_t max_file_bytes,
                          std::optional<at::ScalarType> dtype = std::nullopt);

// Of names, shapes and bytes, in the order given, from whatever device they are on.
uint64_t ChecksumOf(const NamedTensors& tensors);

}  // namespace tdock::model
