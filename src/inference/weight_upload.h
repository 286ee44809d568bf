// The weights of a model as a program sends them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/tensor/checksum.h"
#include "inference/protocol/problem.h"
#include "inference/protocol/weights_ask.h"
#include "model/decoder/decoder.h"

namespace tdock::inference {

// Little-endian numbers of all tensors, one tensor after another, in pieces of any size. Not thread-safe. Throws
// c10::Error if libtorch does; then it is of no more use.
class WeightUpload {
 public:
  // The first few of the tensors that are not the decoder's weights, one for one, whatever their order and dtypes are.
  static std::optional<Problem> Check(const std::vector<TensorAsk>& tensors, const model::Decoder& decoder);
  // Writes into the weights of `decoder`, converted to its dtype. Check() has found nothing.
  WeightUpload(const std::vector<TensorAsk>& tensors, model::Decoder decoder);

  // Bytes that are here already are skipped. FailedPrecondition if some before them are missing, OutOfRange if there
  // are more than the tensors have. InvalidArgument names the first number that is not finite, or that the decoder's
  // dtype does not hold; then it is of no more use.
  absl::Status Add(uint64_t offset, absl::string_view bytes);

  uint64_t received_bytes() const { return received_; }
  uint64_t total_bytes() const { return total_; }
  // XXH3-64 of the bytes that are here.
  uint64_t checksum() const { return checksum_.Value(); }

  // What was given; it shares the weights that are written.
  const model::Decoder& decoder() const { return decoder_; }

 private:
  struct Target {
    std::string name = {};
    std::vector<int64_t> shape = {};
    at::Tensor rows;  // [R, C]: a view of a weight
    at::ScalarType dtype = at::kFloat;
  };

  absl::Status Write(absl::string_view numbers);

  model::Decoder decoder_;
  std::vector<Target> targets_;
  size_t target_ = 0;    // that is being written to
  int64_t written_ = 0;  // of its numbers
  std::string divided_;  // the first bytes of a number that two pieces share
  uint64_t received_ = 0, total_ = 0;
  RunningChecksum checksum_;
};

}  // namespace tdock::inference
