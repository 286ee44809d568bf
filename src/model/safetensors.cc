#include "model/safetensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace tdock::model {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100 << 20;
constexpr int kMaxHeaderDepth = 3;  // the header, a tensor, its shape
constexpr size_t kMaxDimensions = 8;
constexpr uint64_t kMaxElements = uint64_t{1} << 60;  // whose bytes can still be counted

struct DTypeName {
  const char* name;
  at::ScalarType dtype;
};
constexpr DTypeName kDTypeNames[] = {{"F32", at::kFloat}, {"F16", at::kHalf}, {"BF16", at::kBFloat16}};

// What the header says about one tensor.
struct TensorInfo {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // offsets in the data
  uint64_t end = 0;
};

absl::StatusOr<at::ScalarType> ReadDType(const Json& json) {
  const auto* known =
      std::find_if(std::begin(kDTypeNames), std::end(kDTypeNames), [&](const DTypeName& d) { return json == d.name; });
  if (known != std::end(kDTypeNames)) return known->dtype;
  return absl::UnimplementedError(
      absl::StrCat("dtype ", json.dump().substr(0, 40), " is not supported; supported are F32, F16, BF16"));
}

absl::StatusOr<std::vector<int64_t>> ReadShape(const Json& json) {
  if (!json.is_array() || json.size() > kMaxDimensions) {
    return absl::InvalidArgumentError(absl::StrCat("shape must be a list of at most ", kMaxDimensions, " sizes"));
  }
  std::vector<int64_t> shape;
  uint64_t elements = 1;
  for (const Json& size : json) {
    if (!size.is_number_unsigned()) return absl::InvalidArgumentError("shape must hold non-negative integers");
    const uint64_t value = size.get<uint64_t>();
    // The sizes behind a zero count as well: strides are products of them.
    if (value > kMaxElements || (value != 0 && elements > kMaxElements / value)) {
      return absl::InvalidArgumentError("shape overflows");
    }
    elements *= std::max<uint64_t>(value, 1);
    shape.push_back(static_cast<int64_t>(value));
  }
  return shape;
}

absl::StatusOr<TensorInfo> ReadTensorInfo(const Json& json, uint64_t data_size) {
  if (!json.is_object() || !json.contains("dtype") || !json.contains("shape") || !json.contains("data_offsets")) {
    return absl::InvalidArgumentError("needs dtype, shape and data_offsets");
  }
  TensorInfo info;
  TDOCK_ASSIGN_OR_RETURN(info.dtype, ReadDType(json.at("dtype")));
  TDOCK_ASSIGN_OR_RETURN(info.shape, ReadShape(json.at("shape")));
  const Json& offsets = json.at("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return absl::InvalidArgumentError("data_offsets must be two non-negative integers");
  }
  info.begin = offsets[0].get<uint64_t>();
  info.end = offsets[1].get<uint64_t>();
  if (info.begin > info.end || info.end > data_size) {
    return absl::InvalidArgumentError(absl::StrCat("data_offsets [", info.begin, ", ", info.end,
                                                   "] lie outside of the ", data_size, " bytes of data"));
  }
  uint64_t elements = 1;
  for (const int64_t size : info.shape) elements *= static_cast<uint64_t>(size);
  const uint64_t item = c10::elementSize(info.dtype);
  if (elements * item != info.end - info.begin) {
    return absl::InvalidArgumentError(absl::StrCat("its shape needs ", elements, " elements of ", item,
                                                   " bytes, its data_offsets give ", info.end - info.begin, " bytes"));
  }
  return info;
}

struct Range {
  uint64_t begin, end;
  auto operator<=>(const Range&) const = default;
};

// The format allows neither shared nor unused bytes, so that a file can carry nothing unseen.
absl::Status CheckThatRangesFill(std::vector<Range> ranges, uint64_t data_size) {
  std::sort(ranges.begin(), ranges.end());
  uint64_t filled = 0;
  ranges.push_back({data_size, data_size});
  for (const Range& range : ranges) {
    if (range.begin < filled) return absl::InvalidArgumentError("tensors overlap in the file");
    if (range.begin > filled) {
      return absl::InvalidArgumentError(
          absl::StrCat("bytes ", filled, " to ", range.begin, " of the data belong to no tensor"));
    }
    filled = range.end;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(Env& env, const std::string& path) {
  SafetensorsFile result;
  TDOCK_ASSIGN_OR_RETURN(result.file_, env.MapFile(path));
  if (absl::Status status = result.ParseHeader(); !status.ok()) return Annotate(status, path);
  return result;
}

absl::Status SafetensorsFile::ParseHeader() {
  const std::span<const std::byte> bytes = file_->bytes();
  uint64_t header_size = 0;
  if (bytes.size() < sizeof header_size) return absl::InvalidArgumentError("too short for a safetensors file");
  std::memcpy(&header_size, bytes.data(), sizeof header_size);
  if (header_size > kMaxHeaderBytes || header_size > bytes.size() - sizeof header_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("a header of ", header_size, " bytes does not fit a file of ", bytes.size()));
  }
  const char* text = reinterpret_cast<const char*>(bytes.data()) + sizeof header_size;
  const uint64_t data_begin = sizeof header_size + header_size;

  const absl::StatusOr<Json> header = ParseJsonObject({text, header_size}, kMaxHeaderDepth);
  if (!header.ok()) return Annotate(header.status(), "header");

  std::vector<Range> ranges;
  for (const auto& [name, json] : header->items()) {
    if (name == "__metadata__") continue;
    const absl::StatusOr<TensorInfo> info = ReadTensorInfo(json, bytes.size() - data_begin);
    if (!info.ok()) return Annotate(info.status(), absl::StrCat("tensor '", name, "'"));
    ranges.push_back({info->begin, info->end});
    tensors_.emplace(name, Entry{info->dtype, info->shape, data_begin + info->begin});
  }
  return CheckThatRangesFill(std::move(ranges), bytes.size() - data_begin);
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, entry] : tensors_) names.push_back(name);
  return names;
}

absl::StatusOr<at::Tensor> SafetensorsFile::Get(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return absl::NotFoundError(absl::StrCat("no tensor '", name, "'"));
  const Entry& entry = found->second;
  const auto options = at::TensorOptions().dtype(entry.dtype);
  const std::byte* data = file_->bytes().data() + entry.begin;
  if (entry.begin % c10::elementSize(entry.dtype) != 0) {
    // The format promises no alignment, and the kernels need it.
    at::Tensor copy = at::empty(entry.shape, options);
    std::memcpy(copy.mutable_data_ptr(), data, copy.nbytes());
    return copy;
  }
  // at::from_blob wants a mutable pointer; the mapping is read-only, and callers copy out of the view.
  return at::from_blob(
      const_cast<std::byte*>(data), entry.shape, [file = file_](void*) {}, options);
}

absl::Status WriteSafetensors(Env& env, const std::string& path,
                              const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  std::vector<at::Tensor> on_host;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto* known = std::find_if(std::begin(kDTypeNames), std::end(kDTypeNames),
                                     [&](const DTypeName& d) { return tensor.scalar_type() == d.dtype; });
    if (known == std::end(kDTypeNames)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor '", name, "' has dtype ",
                                                     c10::toString(tensor.scalar_type()),
                                                     "; float32, float16 and bfloat16 can be written"));
    }
    on_host.push_back(tensor.detach().to(at::kCPU).contiguous());
    header[name] = {{"dtype", known->name},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {offset, offset + on_host.back().nbytes()}}};
    offset += on_host.back().nbytes();
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // keeps the data aligned, as the reference implementation does
  const uint64_t size = text.size();
  std::vector<absl::string_view> pieces = {{reinterpret_cast<const char*>(&size), sizeof size}, text};
  for (const at::Tensor& tensor : on_host) {
    pieces.emplace_back(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  }
  return WriteFileAtomically(env, path, pieces);
}

}  // namespace tdock::model
