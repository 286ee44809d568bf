#include "model/decoder/weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/tensor/checksum.h"
#include "model/decoder/finite_numbers.h"
#include "model/files/weight_files.h"
#include "model/tensor_torch/convert.h"

namespace tdock::model {
namespace {

constexpr size_t kPieceBytes = size_t{8} << 20;

// What is written, and the one tensor whose bytes are being written.
class Source {
 public:
  Source(const NamedTensors& tensors, std::optional<at::ScalarType> dtype) : tensors_(tensors), dtype_(dtype) {}

  absl::StatusOr<std::vector<NamedInfo>> Infos() const {
    std::vector<NamedInfo> infos;
    for (const auto& [name, tensor] : tensors_) {
      const absl::StatusOr<DType> dtype = ToDType(dtype_.value_or(tensor.scalar_type()));
      if (!dtype.ok()) return Annotate(dtype.status(), absl::StrCat("tensor '", ShowName(name), "'"));
      infos.push_back({name, {*dtype, tensor.sizes().vec()}});
    }
    return infos;
  }

  absl::StatusOr<std::span<const std::byte>> Bytes(size_t index) {
    const at::Tensor& tensor = tensors_[index].second;
    current_ = tensor.detach().to(at::kCPU, dtype_.value_or(tensor.scalar_type())).contiguous();
    return std::span(static_cast<const std::byte*>(current_.const_data_ptr()), current_.nbytes());
  }

 private:
  const NamedTensors& tensors_;
  const std::optional<at::ScalarType> dtype_;
  at::Tensor current_;
};

// Bytes of the file as a tensor: where they lie, or, where they are not aligned, a copy.
at::Tensor View(const SafetensorsFile& file, std::span<const std::byte> bytes, const std::vector<int64_t>& shape,
                at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype);
  if (reinterpret_cast<uintptr_t>(bytes.data()) % c10::elementSize(dtype) != 0) {
    // The format promises no alignment, and the kernels need it.
    at::Tensor copy = at::empty(shape, options);
    std::memcpy(copy.mutable_data_ptr(), bytes.data(), bytes.size());
    return copy;
  }
  // at::from_blob wants a mutable pointer; the mapping is read-only, and callers copy out of the view.
  return at::from_blob(
      const_cast<std::byte*>(bytes.data()), shape, [mapping = file.mapping()](void*) {}, options);
}

// `check` sees each piece before it is copied, with the number of the first of its elements.
using CheckPiece = absl::FunctionRef<absl::Status(const at::Tensor& piece, int64_t begin)>;
absl::Status CopyPieces(const SafetensorsFile& file, const std::string& name, const at::Tensor& into,
                        CheckPiece check) {
  if (!file.Has(name)) return absl::NotFoundError(absl::StrCat("no tensor '", ShowName(name), "'"));
  const TensorInfo& info = file.Info(name);
  TDOCK_ASSIGN_OR_RETURN(const at::ScalarType dtype, ToScalarType(info.dtype));
  const std::span<const std::byte> bytes = file.Bytes(name);
  const int64_t rows = info.shape.empty() ? 1 : info.shape[0];
  const size_t row_bytes = rows > 0 ? bytes.size() / static_cast<size_t>(rows) : 0;
  const auto row_numbers = static_cast<int64_t>(row_bytes / SizeOf(info.dtype));
  const auto rows_of_piece = static_cast<int64_t>(std::max<size_t>(kPieceBytes / std::max<size_t>(row_bytes, 1), 1));
  for (int64_t begin = 0; begin < rows; begin += rows_of_piece) {
    const int64_t count = std::min(rows_of_piece, rows - begin);
    const auto part = bytes.subspan(static_cast<size_t>(begin) * row_bytes, static_cast<size_t>(count) * row_bytes);
    std::vector<int64_t> shape = info.shape;
    if (!shape.empty()) shape[0] = count;
    const at::Tensor piece = View(file, part, shape, dtype);
    TDOCK_RETURN_IF_ERROR(check(piece, begin * row_numbers));
    (info.shape.empty() ? into : into.narrow(0, begin, count)).copy_(piece);
    file.mapping()->Release(part);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<at::Tensor> ReadTensor(const SafetensorsFile& file, const std::string& name) {
  if (!file.Has(name)) return absl::NotFoundError(absl::StrCat("no tensor '", ShowName(name), "'"));
  const TensorInfo& info = file.Info(name);
  TDOCK_ASSIGN_OR_RETURN(const at::ScalarType dtype, ToScalarType(info.dtype));
  return View(file, file.Bytes(name), info.shape, dtype);
}

absl::Status CopyTensor(const SafetensorsFile& file, const std::string& name, const at::Tensor& into) {
  return CopyPieces(file, name, into, [](const at::Tensor&, int64_t) { return absl::OkStatus(); });
}

absl::Status CopyWeight(const SafetensorsFile& file, const std::string& name, const at::Tensor& into) {
  return CopyPieces(file, name, into, [&](const at::Tensor& piece, int64_t begin) {
    const absl::Status finite = CheckFinite(piece, {.shape = into.sizes(), .begin = begin}, into.scalar_type());
    return Annotate(finite, absl::StrCat(file.path(), ": the weight '", ShowName(name), "'"));
  });
}

absl::Status WriteTensors(Env& env, const std::string& path, const NamedTensors& tensors,
                          std::optional<at::ScalarType> dtype) {
  Source source(tensors, dtype);
  TDOCK_ASSIGN_OR_RETURN(const std::vector<NamedInfo> infos, source.Infos());
  return WriteSafetensors(env, path, infos, [&](size_t i) { return source.Bytes(i); });
}

absl::Status WriteWeights(Env& env, const std::string& folder, const NamedTensors& weights, uint64_t max_file_bytes,
                          std::optional<at::ScalarType> dtype) {
  Source source(weights, dtype);
  TDOCK_ASSIGN_OR_RETURN(const std::vector<NamedInfo> infos, source.Infos());
  return WriteWeightFiles(env, folder, infos, max_file_bytes, [&](size_t i) { return source.Bytes(i); });
}

uint64_t ChecksumOf(const NamedTensors& tensors) {
  RunningChecksum checksum;
  checksum.Reset();
  for (const auto& [name, tensor] : tensors) {
    const std::string title = absl::StrCat(name, " ", absl::StrJoin(tensor.sizes(), ","), ";");
    checksum.Add(std::as_bytes(std::span(title)));
    const at::Tensor bytes = tensor.detach().cpu().contiguous();
    checksum.Add({static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()});
  }
  return checksum.Value();
}

}  // namespace tdock::model
