// Numbers in mapped files, copied piece by piece.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "tdock/dtype.h"
#include "trainer/merge/listing/listed_tensors.h"
#include "trainer/merge/listing/megatron_names.h"

namespace tdock::trainer {

// Converts the numbers in `bytes`, a part of `file` with any alignment, into `into`, which is flat and has as many. The
// pages of the mapping are given back.
absl::Status CopyNumbers(const MappedFile& file, std::span<const std::byte> bytes, DType dtype, const at::Tensor& into);

// The files that boxes are in. Thread-safe.
class BoxFiles {
 public:
  // InvalidArgument names a tensor that reaches beyond its file.
  static absl::StatusOr<BoxFiles> Open(Env& env, const std::vector<StoredTensor>& tensors);

  // Copies rows of a stored tensor into those of `into`; of a tensor of all layers, those of one (`layer` ≥ 0). Ranges
  // and shapes must fit.
  absl::Status Copy(const StoredTensor& tensor, int64_t layer, const std::vector<RowRange>& ranges,
                    const at::Tensor& into) const;
  // The whole tensor, after it was compared with its copies. InvalidArgument names a file that has other numbers.
  absl::Status CopyWhole(const StoredTensor& tensor, const at::Tensor& into) const;

  std::vector<std::string> names() const;

 private:
  // Whether a box of a whole tensor has the numbers of `rows`; it is read piece by piece.
  absl::StatusOr<bool> HasSameRows(const StoredBox& copy, const at::Tensor& rows) const;
  // Of a box from number `begin` of the file on.
  absl::Status CopyBox(const StoredBox& box, uint64_t first, const std::vector<int64_t>& sizes,
                       const std::vector<int64_t>& strides, const at::Tensor& into) const;

  std::map<std::string, std::shared_ptr<const MappedFile>> files_;
};

}  // namespace tdock::trainer
