#include "model/files/safetensors.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::model {
namespace {

using Json = nlohmann::json;

constexpr char kGitLfsPointer[] = "version https://git-lfs";
constexpr uint64_t kMaxHeaderBytes = 100 << 20;
constexpr int kMaxHeaderDepth = 3;  // the header, a tensor, its shape
constexpr size_t kMaxDimensions = 8;
constexpr uint64_t kMaxElements = uint64_t{1} << 60;  // whose bytes can still be counted

struct DTypeName {
  const char* name;
  DType dtype;
};
// Weights are floats; old checkpoints also have masks and counters.
constexpr DTypeName kDTypeNames[] = {
    {"F32", DType::kF32}, {"F16", DType::kF16}, {"BF16", DType::kBF16}, {"F64", DType::kF64}, {"I64", DType::kI64},
    {"I32", DType::kI32}, {"I16", DType::kI16}, {"I8", DType::kI8},     {"U8", DType::kU8},   {"BOOL", DType::kBool}};
constexpr char kKnownDTypes[] = "F64, F32, F16, BF16, I64, I32, I16, I8, U8 and BOOL";

// What the header says about one tensor.
struct HeaderEntry {
  TensorInfo info;
  uint64_t begin = 0;  // offsets in the data
  uint64_t end = 0;
};

absl::StatusOr<DType> ReadDType(const Json& json) {
  const auto* known =
      std::find_if(std::begin(kDTypeNames), std::end(kDTypeNames), [&](const DTypeName& d) { return json == d.name; });
  if (known != std::end(kDTypeNames)) return known->dtype;
  return absl::UnimplementedError(
      absl::StrCat("dtype ", EscapeUnprintable(JsonText(json), 40), " is not supported; supported are ", kKnownDTypes));
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

absl::StatusOr<HeaderEntry> ReadEntry(const Json& json, uint64_t data_size) {
  if (!json.is_object() || !json.contains("dtype") || !json.contains("shape") || !json.contains("data_offsets")) {
    return absl::InvalidArgumentError("needs dtype, shape and data_offsets");
  }
  HeaderEntry entry;
  TDOCK_ASSIGN_OR_RETURN(entry.info.dtype, ReadDType(json.at("dtype")));
  TDOCK_ASSIGN_OR_RETURN(entry.info.shape, ReadShape(json.at("shape")));
  const Json& offsets = json.at("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return absl::InvalidArgumentError("data_offsets must be two non-negative integers");
  }
  entry.begin = offsets[0].get<uint64_t>();
  entry.end = offsets[1].get<uint64_t>();
  if (entry.begin > entry.end || entry.end > data_size) {
    return absl::InvalidArgumentError(absl::StrCat("data_offsets [", entry.begin, ", ", entry.end,
                                                   "] lie outside of the ", data_size,
                                                   " bytes of data, as in a file that was cut short"));
  }
  const uint64_t item = SizeOf(entry.info.dtype);
  if (entry.info.bytes() != entry.end - entry.begin) {
    return absl::InvalidArgumentError(absl::StrCat("its shape needs ", entry.info.bytes() / item, " elements of ", item,
                                                   " bytes, its data_offsets give ", entry.end - entry.begin,
                                                   " bytes"));
  }
  return entry;
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

std::string ShowName(absl::string_view name) { return EscapeUnprintable(name, 200); }

uint64_t TensorInfo::bytes() const {
  uint64_t bytes = SizeOf(dtype);
  for (const int64_t size : shape) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(Env& env, const std::string& path) {
  SafetensorsFile result;
  result.path_ = path;
  TDOCK_ASSIGN_OR_RETURN(result.file_, env.MapFile(path));
  if (absl::Status status = result.ParseHeader(); !status.ok()) return Annotate(status, path);
  return result;
}

absl::Status SafetensorsFile::ParseHeader() {
  const std::span<const std::byte> bytes = file_->bytes();
  uint64_t header_size = 0;
  const absl::string_view begin(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (absl::StartsWith(begin, kGitLfsPointer)) {
    return absl::InvalidArgumentError(
        "this is a pointer of Git LFS, not a safetensors file; fetch the file itself, for example with `git lfs pull`");
  }
  if (bytes.size() < sizeof header_size) {
    return absl::InvalidArgumentError(absl::StrCat("not a safetensors file: it has ", bytes.size(), " bytes"));
  }
  std::memcpy(&header_size, bytes.data(), sizeof header_size);
  if (header_size > kMaxHeaderBytes || header_size > bytes.size() - sizeof header_size) {
    return absl::InvalidArgumentError(absl::StrCat("not a safetensors file, or cut short: it has ", bytes.size(),
                                                   " bytes, and the first eight, read as ",
                                                   "the length of a header, give ", header_size));
  }
  const char* text = reinterpret_cast<const char*>(bytes.data()) + sizeof header_size;
  const uint64_t data_begin = sizeof header_size + header_size;

  const absl::StatusOr<Json> header = ParseJsonObject({text, header_size}, kMaxHeaderDepth);
  if (!header.ok()) return Annotate(header.status(), "header");

  std::vector<Range> ranges;
  for (const auto& [name, json] : header->items()) {
    if (name == "__metadata__") continue;
    const absl::StatusOr<HeaderEntry> entry = ReadEntry(json, bytes.size() - data_begin);
    if (!entry.ok()) return Annotate(entry.status(), absl::StrCat("tensor '", ShowName(name), "'"));
    ranges.push_back({entry->begin, entry->end});
    tensors_.emplace(name, Entry{entry->info, data_begin + entry->begin});
  }
  return CheckThatRangesFill(std::move(ranges), bytes.size() - data_begin);
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, entry] : tensors_) names.push_back(name);
  return names;
}

std::span<const std::byte> SafetensorsFile::Bytes(const std::string& name) const {
  const Entry& entry = tensors_.at(name);
  return file_->bytes().subspan(entry.begin, entry.info.bytes());
}

absl::Status WriteSafetensors(Env& env, const std::string& path, std::span<const NamedInfo> tensors,
                              const BytesOfTensor& bytes_of) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  uint64_t offset = 0;
  for (const auto& [name, info] : tensors) {
    const auto* known = std::find_if(std::begin(kDTypeNames), std::end(kDTypeNames),
                                     [&](const DTypeName& d) { return info.dtype == d.dtype; });
    if (known == std::end(kDTypeNames)) {
      return absl::InvalidArgumentError(absl::StrCat(EscapeUnprintable(path), ": tensor '", ShowName(name),
                                                     "' has dtype ", Name(info.dtype), ", which is not among ",
                                                     kKnownDTypes));
    }
    header[name] = {{"dtype", known->name}, {"shape", info.shape}, {"data_offsets", {offset, offset + info.bytes()}}};
    offset += info.bytes();
  }
  std::string text = JsonText(header);
  text.append((8 - text.size() % 8) % 8, ' ');  // keeps the data aligned, as the reference implementation does
  const uint64_t size = text.size();
  return WriteFileAtomically(env, path, [&](WritableFile& file) -> absl::Status {
    TDOCK_RETURN_IF_ERROR(file.Append({reinterpret_cast<const char*>(&size), sizeof size}));
    TDOCK_RETURN_IF_ERROR(file.Append(text));
    for (size_t i = 0; i < tensors.size(); ++i) {
      TDOCK_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, bytes_of(i));
      if (bytes.size() != tensors[i].info.bytes()) {
        return absl::InternalError(absl::StrCat(EscapeUnprintable(path), ": tensor '", ShowName(tensors[i].name),
                                                "' came with ", bytes.size(), " bytes instead of ",
                                                tensors[i].info.bytes()));
      }
      TDOCK_RETURN_IF_ERROR(file.Append({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
    }
    return absl::OkStatus();
  });
}

}  // namespace tdock::model
