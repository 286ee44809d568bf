#include "model/safetensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace tdock::model {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100 << 20;

struct DTypeName {
  const char* name;
  at::ScalarType dtype;
};
constexpr DTypeName kDTypeNames[] = {{"F32", at::kFloat}, {"F16", at::kHalf}, {"BF16", at::kBFloat16}};

absl::Status ReadEntry(const Json& json, uint64_t data_size, at::ScalarType& dtype, std::vector<int64_t>& shape,
                       uint64_t& begin, uint64_t& end) {
  if (!json.is_object() || !json.contains("dtype") || !json.contains("shape") || !json.contains("data_offsets")) {
    return absl::InvalidArgumentError("needs dtype, shape and data_offsets");
  }
  const auto* known = std::find_if(std::begin(kDTypeNames), std::end(kDTypeNames),
                                   [&](const DTypeName& d) { return json.at("dtype") == d.name; });
  if (known == std::end(kDTypeNames)) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype ", json.at("dtype").dump().substr(0, 40), " is not supported; supported are F32, F16, BF16"));
  }
  dtype = known->dtype;

  const Json& offsets = json.at("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return absl::InvalidArgumentError("data_offsets must be two non-negative integers");
  }
  begin = offsets[0].get<uint64_t>();
  end = offsets[1].get<uint64_t>();
  if (begin > end || end > data_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("data_offsets [", begin, ", ", end, "] lie outside of the ", data_size, " bytes of data"));
  }

  uint64_t elements = 1;
  if (!json.at("shape").is_array()) return absl::InvalidArgumentError("shape must be a list");
  for (const Json& size : json.at("shape")) {
    if (!size.is_number_unsigned()) return absl::InvalidArgumentError("shape must hold non-negative integers");
    const uint64_t value = size.get<uint64_t>();
    if (value > INT64_MAX || (value != 0 && elements > INT64_MAX / value)) {
      return absl::InvalidArgumentError("shape overflows");
    }
    elements *= value;
    shape.push_back(static_cast<int64_t>(value));
  }
  const uint64_t item = c10::elementSize(dtype);
  if (elements > INT64_MAX / item || elements * item != end - begin) {
    return absl::InvalidArgumentError(
        absl::StrCat("its shape needs ", elements, " elements of ", item, " bytes, its data_offsets give ", end - begin));
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

  // A callback that stops at depth 4 bounds the parser's recursion: a valid header is at most 3 deep.
  bool too_deep = false;
  const auto limit_depth = [&](int depth, Json::parse_event_t, Json&) {
    too_deep |= depth > 4;
    return !too_deep;
  };
  const Json header = Json::parse(text, text + header_size, limit_depth, /*allow_exceptions=*/false);
  if (too_deep || header.is_discarded() || !header.is_object()) {
    return absl::InvalidArgumentError("the header is not a JSON object");
  }

  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [name, json] : header.items()) {
    if (name == "__metadata__") continue;
    Entry entry;
    uint64_t begin = 0;
    uint64_t end = 0;
    if (absl::Status s = ReadEntry(json, bytes.size() - data_begin, entry.dtype, entry.shape, begin, end); !s.ok()) {
      return Annotate(s, absl::StrCat("tensor '", name, "'"));
    }
    entry.begin = data_begin + begin;
    ranges.emplace_back(begin, end);
    tensors_.emplace(name, std::move(entry));
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) return absl::InvalidArgumentError("tensors overlap in the file");
  }
  return absl::OkStatus();
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
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
  return at::from_blob(const_cast<std::byte*>(data), entry.shape, [file = file_](void*) {}, options);
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
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor '", name, "' has dtype ", c10::toString(tensor.scalar_type()),
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
