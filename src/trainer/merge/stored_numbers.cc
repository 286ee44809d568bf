#include "trainer/merge/stored_numbers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "model/tensor_torch/convert.h"

namespace tdock::trainer {
namespace {

constexpr int64_t kPieceNumbers = int64_t{1} << 20;

// The first dimension is that of rows.
std::vector<int64_t> AtLeastRows(const std::vector<int64_t>& sizes) {
  return sizes.empty() ? std::vector<int64_t>{1} : sizes;
}

bool SameBits(const at::Tensor& one, const at::Tensor& other) {
  return std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0;
}

}  // namespace

absl::Status CopyNumbers(const MappedFile& file, std::span<const std::byte> bytes, DType dtype,
                         const at::Tensor& into) {
  TDOCK_ASSIGN_OR_RETURN(const at::ScalarType type, ToScalarType(dtype));
  const int64_t numbers = into.numel();
  const size_t item = SizeOf(dtype);
  TDOCK_CHECK(bytes.size() == static_cast<size_t>(numbers) * item, "as many numbers are wanted as there are");
  const at::Tensor piece = at::empty({std::min(kPieceNumbers, numbers)}, at::TensorOptions().dtype(type));
  for (int64_t begin = 0; begin < numbers; begin += kPieceNumbers) {
    const int64_t count = std::min(kPieceNumbers, numbers - begin);
    const auto part = bytes.subspan(static_cast<size_t>(begin) * item, static_cast<size_t>(count) * item);
    std::memcpy(piece.mutable_data_ptr(), part.data(), part.size());
    into.narrow(0, begin, count).copy_(piece.narrow(0, 0, count));
    file.Release(part);
  }
  return absl::OkStatus();
}

absl::StatusOr<BoxFiles> BoxFiles::Open(Env& env, const std::vector<StoredTensor>& tensors) {
  BoxFiles opened;
  const auto add = [&](const StoredTensor& tensor, const StoredBox& box) -> absl::Status {
    auto& file = opened.files_[box.file];
    if (file == nullptr) {
      TDOCK_ASSIGN_OR_RETURN(file, env.MapFile(box.file));
    }
    const uint64_t size = file->bytes().size(), span = box.span_bytes();
    if (box.begin <= size && span <= size - box.begin) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(EscapeUnprintable(box.file), ": tensor '",
                                                   model::ShowName(tensor.name), "' would be at ", box.begin, ", ",
                                                   span, " bytes, but the file has ", size));
  };
  for (const StoredTensor& tensor : tensors) {
    for (const StoredBox& box : tensor.boxes) TDOCK_RETURN_IF_ERROR(add(tensor, box));
    for (const StoredBox& box : tensor.copies) TDOCK_RETURN_IF_ERROR(add(tensor, box));
  }
  return opened;
}

absl::Status BoxFiles::CopyBox(const StoredBox& box, uint64_t first, const std::vector<int64_t>& sizes,
                               const std::vector<int64_t>& strides, const at::Tensor& into) const {
  TDOCK_ASSIGN_OR_RETURN(const at::ScalarType type, ToScalarType(box.dtype));
  const MappedFile& file = *files_.at(box.file);
  StoredBox rows{.begin = 0, .dtype = box.dtype, .sizes = sizes, .strides = strides};
  const bool contiguous = rows.is_contiguous();
  int64_t row = 1;
  for (size_t d = 1; d < sizes.size(); ++d) row *= sizes[d];
  const int64_t step = contiguous ? std::max<int64_t>(kPieceNumbers / std::max<int64_t>(row, 1), 1) : sizes[0];
  for (int64_t begin = 0; begin < sizes[0]; begin += step) {
    rows.sizes[0] = std::min(step, sizes[0] - begin);
    const size_t bytes = rows.span_bytes();
    if (bytes == 0) return absl::OkStatus();
    const uint64_t at = box.begin + (first + static_cast<uint64_t>(begin * strides[0])) * SizeOf(box.dtype);
    const auto stored = file.bytes().subspan(at, bytes);
    const at::Tensor piece = at::empty({static_cast<int64_t>(bytes / SizeOf(box.dtype))}, at::TensorOptions(type));
    std::memcpy(piece.mutable_data_ptr(), stored.data(), bytes);
    into.narrow(0, begin, rows.sizes[0]).copy_(piece.as_strided(rows.sizes, strides));
    file.Release(stored);
  }
  return absl::OkStatus();
}

absl::Status BoxFiles::Copy(const StoredTensor& tensor, int64_t layer, const std::vector<RowRange>& ranges,
                            const at::Tensor& into) const {
  for (const StoredBox& box : tensor.boxes) {
    std::vector<int64_t> offsets = box.offsets, sizes = box.sizes, strides = box.strides;
    uint64_t first = 0;
    if (layer >= 0) {
      if (layer < offsets[0] || layer >= offsets[0] + sizes[0]) continue;
      first = static_cast<uint64_t>((layer - offsets[0]) * strides[0]);
      for (auto* list : {&offsets, &sizes, &strides}) list->erase(list->begin());
    }
    if (sizes.empty()) {
      offsets = {0};
      sizes = strides = {1};
    }
    const int64_t box_begin = offsets[0], box_end = offsets[0] + sizes[0];
    for (const RowRange& range : ranges) {
      const int64_t begin = std::max(range.from, box_begin), end = std::min(range.from + range.rows, box_end);
      if (begin >= end) continue;
      at::Tensor to = into.narrow(0, range.to + begin - range.from, end - begin);
      for (size_t d = 1; d < sizes.size(); ++d) to = to.narrow(static_cast<int64_t>(d), offsets[d], sizes[d]);
      std::vector<int64_t> part = sizes;
      part[0] = end - begin;
      const uint64_t skipped = static_cast<uint64_t>((begin - box_begin) * strides[0]);
      TDOCK_RETURN_IF_ERROR(CopyBox(box, first + skipped, part, strides, to));
    }
  }
  return absl::OkStatus();
}

absl::Status BoxFiles::CopyWhole(const StoredTensor& tensor, const at::Tensor& into) const {
  const std::vector<int64_t> shape = AtLeastRows(tensor.info.shape);
  const at::Tensor rows = into.view(shape);
  const std::vector<RowRange> all = {{0, 0, shape[0]}};
  TDOCK_RETURN_IF_ERROR(Copy(tensor, -1, all, rows));
  for (const StoredBox& copy : tensor.copies) {
    TDOCK_ASSIGN_OR_RETURN(const bool same, HasSameRows(copy, rows));
    if (same) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(EscapeUnprintable(copy.file), " has other numbers than ", EscapeUnprintable(tensor.boxes[0].file),
                     ", though no rank says that it has a part only; are these shards of FSDP?"));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> BoxFiles::HasSameRows(const StoredBox& copy, const at::Tensor& rows) const {
  const StoredTensor stored{.name = "", .info = {}, .boxes = {copy}, .copies = {}};
  const int64_t all = rows.size(0), row = std::max<int64_t>(all == 0 ? 0 : rows.numel() / all, 1);
  const int64_t step = std::clamp<int64_t>(kPieceNumbers / row, 1, std::max<int64_t>(all, 1));
  const at::Tensor piece = at::empty_like(rows.narrow(0, 0, std::min(step, all)));
  for (int64_t begin = 0; begin < all; begin += step) {
    const int64_t count = std::min(step, all - begin);
    const at::Tensor part = piece.narrow(0, 0, count);
    TDOCK_RETURN_IF_ERROR(Copy(stored, -1, {{begin, 0, count}}, part));
    if (!SameBits(rows.narrow(0, begin, count), part)) return false;
  }
  return true;
}

std::vector<std::string> BoxFiles::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : files_) names.push_back(name);
  return names;
}

}  // namespace tdock::trainer
