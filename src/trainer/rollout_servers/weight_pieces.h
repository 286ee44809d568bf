// The weights of a model as bytes that follow one another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/tensor/checksum.h"
#include "model/decoder/decoder.h"
#include "model/files/safetensors.h"

namespace tdock::trainer {

// What the model's safetensors file would have, adapters folded in, in the order of Infos(): little-endian, without
// anything between them. Beside the decoder, which must outlive it, some 24 MB are in memory. Throws c10::Error if
// libtorch does. Not thread-safe.
class WeightPieces {
 public:
  explicit WeightPieces(const model::Decoder& decoder);

  // InvalidArgument names a tensor whose dtype safetensors files do not have.
  absl::StatusOr<std::vector<model::NamedInfo>> Infos() const;

  // The next bytes, `most` where there are so many; none at the end. Valid until the next call.
  absl::string_view Next(size_t most);

  // XXH3 of 64 bits over everything that Next() has given.
  uint64_t Checksum() const { return checksum_.Value(); }

 private:
  struct Weight {
    std::string name;
    at::Tensor values;
    at::Tensor a, b;    // what adapts it: values + scale · b · a; undefined: nothing
    bool inputs_first;  // values are transposed
  };
  // The next rows, on the CPU, one after another.
  bool MakeChunk();

  double scale_ = 0;
  std::vector<Weight> weights_;
  size_t weight_ = 0;  // whose rows come next
  int64_t row_ = 0;
  at::Tensor chunk_;
  size_t used_ = 0;  // bytes of the chunk
  std::string piece_;
  RunningChecksum checksum_;
};

}  // namespace tdock::trainer
