// Where the numbers of pickled tensors are, as list_pickled.py says, and how parts of them are put together. Nothing
// that it says is trusted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/files/safetensors.h"
#include "tdock/dtype.h"

namespace tdock::trainer {

// Numbers in a file, which fill a box of a tensor.
struct StoredBox {
  std::string file = {};
  uint64_t begin = 0;  // the byte of the first
  DType dtype = DType::kF32;
  std::vector<int64_t> offsets = {};  // where in the tensor the box begins, in each dimension
  std::vector<int64_t> sizes = {};
  std::vector<int64_t> strides = {};  // in numbers

  // From the first number to the last.
  uint64_t span_bytes() const;
  bool is_contiguous() const;
};

// One tensor of one rank, or one box of a tensor.
struct ListedTensor {
  std::string name = {};
  int64_t rank = 0, ranks = 1;
  std::vector<int64_t> shape = {};           // of the whole tensor
  bool sharded = false;                      // it says how it is divided among ranks
  std::vector<std::string> placements = {};  // for each dimension of the mesh of ranks: "replicate", "shard 0"
  StoredBox box = {};                        // whose offsets are not known, if it is of a rank
};

// One line of list_pickled.py. InvalidArgument says what is wrong with it, or which error it is.
absl::StatusOr<ListedTensor> ParseListedTensor(absl::string_view line);
// Whether it is the last line.
bool IsEndOfList(absl::string_view line);

// A tensor whose boxes fill it, each number once.
struct StoredTensor {
  std::string name = {};
  model::TensorInfo info = {};
  std::vector<StoredBox> boxes = {};
  std::vector<StoredBox> copies = {};  // whole ones, which must have the same numbers
};

// The tensors of all ranks of a run, in the order of rank 0. Ranks have shards along one dimension of the tensor, in
// their order, once or several times, or all of them the same. Unimplemented names a tensor that is divided otherwise;
// InvalidArgument one that a rank lacks, or whose shards do not make up the whole.
absl::StatusOr<std::vector<StoredTensor>> PutRanksTogether(const std::vector<ListedTensor>& listed);

// The same for boxes with offsets, in any order. InvalidArgument names a tensor that they do not fill.
absl::StatusOr<std::vector<StoredTensor>> PutBoxesTogether(const std::vector<ListedTensor>& listed);

}  // namespace tdock::trainer
