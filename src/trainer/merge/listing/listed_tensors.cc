#include "trainer/merge/listing/listed_tensors.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::trainer {
namespace {

using Json = nlohmann::json;
using model::ShowName;

constexpr size_t kMostDimensions = 8;
constexpr uint64_t kMostNumbers = uint64_t{1} << 56;
constexpr int64_t kMostRanks = int64_t{1} << 20;
constexpr size_t kMostBoxes = size_t{1} << 14;  // of a tensor: each is compared with all

struct DTypeText {
  const char* text;
  DType dtype;
};
constexpr DTypeText kDTypeTexts[] = {
    {"F64", DType::kF64}, {"F32", DType::kF32}, {"F16", DType::kF16}, {"BF16", DType::kBF16}, {"I64", DType::kI64},
    {"I32", DType::kI32}, {"I16", DType::kI16}, {"I8", DType::kI8},   {"U8", DType::kU8},     {"BOOL", DType::kBool}};

absl::Status Wrong(absl::string_view what) { return absl::InvalidArgumentError(what); }

// Sizes whose product can be counted, or -1 if it cannot. Sizes behind a zero count as well.
int64_t NumbersIn(const std::vector<int64_t>& sizes) {
  uint64_t product = 1;
  bool empty = false;
  for (const int64_t size : sizes) {
    if (size < 0) return -1;
    empty = empty || size == 0;
    const auto factor = static_cast<uint64_t>(std::max<int64_t>(size, 1));
    if (product > kMostNumbers / factor) return -1;
    product *= factor;
  }
  return empty ? 0 : static_cast<int64_t>(product);
}

absl::StatusOr<std::vector<int64_t>> Integers(const Json& json, const char* key) {
  const Json list = json.value(key, Json());
  std::vector<int64_t> integers;
  if (!list.is_array() || list.size() > kMostDimensions) {
    return Wrong(absl::StrCat("'", key, "' is not a list of at most ", kMostDimensions, " sizes"));
  }
  for (const Json& value : list) {
    if (!value.is_number_integer() || value < 0 || value > static_cast<int64_t>(kMostNumbers)) {
      return Wrong(absl::StrCat("'", key, "' has ", EscapeUnprintable(JsonText(value), 40), ", which is no size"));
    }
    integers.push_back(value.get<int64_t>());
  }
  return integers;
}

absl::StatusOr<int64_t> Integer(const Json& json, const char* key, int64_t most) {
  const Json value = json.value(key, Json());
  if (!value.is_number_integer() || value < 0 || value > most) return Wrong(absl::StrCat("'", key, "' is no number"));
  return value.get<int64_t>();
}

absl::StatusOr<std::string> Text(const Json& json, const char* key) {
  const Json value = json.value(key, Json());
  if (!value.is_string() || value.get<std::string>().empty()) return Wrong(absl::StrCat("'", key, "' is no text"));
  return value.get<std::string>();
}

absl::StatusOr<StoredBox> ParseBox(const Json& json) {
  StoredBox box;
  TDOCK_ASSIGN_OR_RETURN(box.file, Text(json, "file"));
  TDOCK_ASSIGN_OR_RETURN(const int64_t begin, Integer(json, "begin", static_cast<int64_t>(kMostNumbers)));
  box.begin = static_cast<uint64_t>(begin);
  TDOCK_ASSIGN_OR_RETURN(const std::string dtype, Text(json, "dtype"));
  const auto* known = std::find_if(std::begin(kDTypeTexts), std::end(kDTypeTexts),
                                   [&](const DTypeText& entry) { return dtype == entry.text; });
  if (known == std::end(kDTypeTexts)) return Wrong(absl::StrCat("dtype ", EscapeForMessage(dtype), " is not known"));
  box.dtype = known->dtype;
  TDOCK_ASSIGN_OR_RETURN(box.sizes, Integers(json, "sizes"));
  TDOCK_ASSIGN_OR_RETURN(box.strides, Integers(json, "strides"));
  if (box.strides.size() != box.sizes.size()) return Wrong("'sizes' and 'strides' are not as many");
  if (NumbersIn(box.sizes) < 0) return Wrong("'sizes' overflow");
  uint64_t last = 0;  // the place of the last number
  for (size_t d = 0; d < box.sizes.size(); ++d) {
    const auto steps = static_cast<uint64_t>(std::max<int64_t>(box.sizes[d] - 1, 0));
    const auto stride = static_cast<uint64_t>(box.strides[d]);
    if (stride > 0 && steps > (kMostNumbers - last) / stride) return Wrong("'strides' overflow");
    last += steps * stride;
  }
  return box;
}

// Whether [offsets, offsets + sizes) of the boxes have numbers in common.
bool Overlap(const StoredBox& one, const StoredBox& other) {
  for (size_t d = 0; d < one.sizes.size(); ++d) {
    if (one.offsets[d] + one.sizes[d] <= other.offsets[d] || other.offsets[d] + other.sizes[d] <= one.offsets[d]) {
      return false;
    }
  }
  return true;
}

std::string ShapeText(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

// The dimension along which ranks have shards; nothing if all have the same.
absl::StatusOr<std::optional<size_t>> ShardDimension(const ListedTensor& tensor) {
  std::optional<size_t> dimension;
  for (size_t i = 0; i < tensor.placements.size(); ++i) {
    absl::string_view placement = tensor.placements[i];
    if (placement == "replicate") continue;
    size_t found = 0;
    const bool shard = absl::ConsumePrefix(&placement, "shard ") && absl::SimpleAtoi(placement, &found);
    if (!shard || i + 1 != tensor.placements.size() || found >= tensor.shape.size()) {
      return absl::UnimplementedError(
          absl::StrCat("it is divided among ranks as (", EscapeForMessage(absl::StrJoin(tensor.placements, ", ")),
                       "); read are tensors that are sharded along the last dimension of the mesh, or replicated"));
    }
    dimension = found;
  }
  return dimension;
}

absl::Status AddShards(const std::vector<const ListedTensor*>& of_ranks, size_t dimension, StoredTensor& tensor) {
  const std::vector<int64_t>& shape = tensor.info.shape;
  int64_t at = 0, again = 0;  // again: beyond the last whole one
  for (const ListedTensor* rank : of_ranks) {
    StoredBox box = rank->box;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (box.sizes.size() == shape.size() && (d == dimension || box.sizes[d] == shape[d])) continue;
      return Wrong(absl::StrCat("the shard of rank ", rank->rank, " has the shape ", ShapeText(box.sizes),
                                ", which is none of ", ShapeText(shape), " along dimension ", dimension));
    }
    const int64_t size = box.sizes[dimension];
    if (size > shape[dimension]) return Wrong(absl::StrCat("the shards are more than ", ShapeText(shape)));
    again = (again + size) % std::max<int64_t>(shape[dimension], 1);
    if (at == shape[dimension]) continue;  // of another replica
    if (size > shape[dimension] - at) return Wrong(absl::StrCat("the shards are more than ", ShapeText(shape)));
    box.offsets.assign(shape.size(), 0);
    box.offsets[dimension] = at;
    at += size;
    tensor.boxes.push_back(std::move(box));
  }
  if (at < shape[dimension]) {
    return Wrong(
        absl::StrCat("the shards of all ranks have ", at, " of ", shape[dimension], " along dimension ", dimension));
  }
  if (again != 0) {
    return Wrong(absl::StrCat("the shards make up ", ShapeText(shape), ", and a part of it again"));
  }
  return absl::OkStatus();
}

absl::StatusOr<StoredTensor> PutTogether(const std::vector<const ListedTensor*>& of_ranks) {
  const ListedTensor& first = *of_ranks.front();
  if (static_cast<int64_t>(of_ranks.size()) != first.ranks) {
    return Wrong(absl::StrCat(of_ranks.size(), " of ", first.ranks, " ranks have it"));
  }
  StoredTensor tensor{.name = first.name, .info = {first.box.dtype, first.shape}};
  for (int64_t rank = 0; rank < first.ranks; ++rank) {
    const ListedTensor& other = *of_ranks[static_cast<size_t>(rank)];
    if (other.rank != rank || other.shape != first.shape || other.box.dtype != first.box.dtype ||
        other.placements != first.placements || other.sharded != first.sharded) {
      return Wrong(absl::StrCat("rank ", other.rank, " has it with another shape, dtype or division than rank 0"));
    }
  }
  TDOCK_ASSIGN_OR_RETURN(const std::optional<size_t> dimension, ShardDimension(first));
  if (dimension) {
    TDOCK_RETURN_IF_ERROR(AddShards(of_ranks, *dimension, tensor));
    return tensor;
  }
  for (const ListedTensor* rank : of_ranks) {
    StoredBox box = rank->box;
    if (box.sizes != first.shape) {
      return Wrong(
          absl::StrCat("rank ", rank->rank, " has the shape ", ShapeText(box.sizes), ", not ", ShapeText(first.shape)));
    }
    box.offsets.assign(box.sizes.size(), 0);
    (rank == &first ? tensor.boxes : tensor.copies).push_back(std::move(box));
  }
  return tensor;
}

}  // namespace

uint64_t StoredBox::span_bytes() const {
  uint64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return 0;
    last += static_cast<uint64_t>(sizes[d] - 1) * static_cast<uint64_t>(strides[d]);
  }
  return (last + 1) * SizeOf(dtype);
}

bool StoredBox::is_contiguous() const {
  int64_t next = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] > 1 && strides[d] != next) return false;
    next *= std::max<int64_t>(sizes[d], 1);
  }
  return true;
}

bool IsEndOfList(absl::string_view line) { return line == R"({"done": true})"; }

absl::StatusOr<ListedTensor> ParseListedTensor(absl::string_view line) {
  TDOCK_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(line, /*max_depth=*/3));
  if (json.contains("error")) {
    TDOCK_ASSIGN_OR_RETURN(const std::string error, Text(json, "error"));
    return Wrong(EscapeUnprintable(error));
  }
  ListedTensor tensor;
  TDOCK_ASSIGN_OR_RETURN(tensor.name, Text(json, "name"));
  absl::StatusOr<StoredBox> box = ParseBox(json);
  if (!box.ok()) return Annotate(box.status(), ShowName(tensor.name));
  tensor.box = *std::move(box);
  if (json.contains("offsets")) {
    TDOCK_ASSIGN_OR_RETURN(tensor.box.offsets, Integers(json, "offsets"));
    TDOCK_ASSIGN_OR_RETURN(tensor.shape, Integers(json, "shape"));
    return tensor;
  }
  TDOCK_ASSIGN_OR_RETURN(tensor.rank, Integer(json, "rank", kMostRanks));
  TDOCK_ASSIGN_OR_RETURN(tensor.ranks, Integer(json, "world", kMostRanks));
  tensor.sharded = !json.value("full_shape", Json()).is_null();
  if (!tensor.sharded) {
    tensor.shape = tensor.box.sizes;
    return tensor;
  }
  TDOCK_ASSIGN_OR_RETURN(tensor.shape, Integers(json, "full_shape"));
  if (NumbersIn(tensor.shape) < 0) return Wrong(absl::StrCat(ShowName(tensor.name), ": its shape overflows"));
  const Json placements = json.value("placements", Json());
  if (!placements.is_array() || placements.empty())
    return Wrong(absl::StrCat(ShowName(tensor.name), ": no placements"));
  for (const Json& placement : placements) {
    if (!placement.is_string()) return Wrong(absl::StrCat(ShowName(tensor.name), ": a placement is no text"));
    tensor.placements.push_back(placement.get<std::string>());
  }
  return tensor;
}

absl::StatusOr<std::vector<StoredTensor>> PutRanksTogether(const std::vector<ListedTensor>& listed) {
  std::map<std::string, std::vector<const ListedTensor*>> by_name;
  std::vector<std::string> order;
  for (const ListedTensor& tensor : listed) {
    auto& of_ranks = by_name[tensor.name];
    if (of_ranks.empty()) order.push_back(tensor.name);
    of_ranks.push_back(&tensor);
  }
  std::vector<StoredTensor> tensors;
  for (const std::string& name : order) {
    absl::StatusOr<StoredTensor> tensor = PutTogether(by_name[name]);
    if (!tensor.ok()) return Annotate(tensor.status(), absl::StrCat("tensor '", ShowName(name), "'"));
    tensors.push_back(*std::move(tensor));
  }
  return tensors;
}

absl::StatusOr<std::vector<StoredTensor>> PutBoxesTogether(const std::vector<ListedTensor>& listed) {
  std::map<std::string, StoredTensor> by_name;
  for (const ListedTensor& part : listed) {
    const auto wrong = [&](absl::string_view what) {
      return Wrong(absl::StrCat("tensor '", ShowName(part.name), "': ", what));
    };
    const auto [found, fresh] =
        by_name.try_emplace(part.name, StoredTensor{.name = part.name, .info = {part.box.dtype, part.shape}});
    StoredTensor& tensor = found->second;
    if (tensor.info.dtype != part.box.dtype || tensor.info.shape != part.shape) {
      return wrong("its parts are of different shapes or dtypes");
    }
    if (NumbersIn(part.shape) < 0 || part.box.offsets.size() != part.shape.size() ||
        part.box.sizes.size() != part.shape.size()) {
      return wrong("a part has other dimensions than the tensor");
    }
    for (size_t d = 0; d < part.shape.size(); ++d) {
      if (part.box.offsets[d] > part.shape[d] || part.box.sizes[d] > part.shape[d] - part.box.offsets[d]) {
        return wrong(absl::StrCat("a part reaches beyond its shape ", ShapeText(part.shape)));
      }
    }
    if (tensor.boxes.size() >= kMostBoxes) return wrong(absl::StrCat("it has more than ", kMostBoxes, " parts"));
    for (const StoredBox& box : tensor.boxes) {
      if (NumbersIn(part.box.sizes) > 0 && Overlap(box, part.box)) return wrong("two parts have the same numbers");
    }
    if (NumbersIn(part.box.sizes) > 0) tensor.boxes.push_back(part.box);
  }
  std::vector<StoredTensor> tensors;
  for (auto& [name, tensor] : by_name) {
    int64_t there = 0;
    for (const StoredBox& box : tensor.boxes) there += NumbersIn(box.sizes);
    if (there != NumbersIn(tensor.info.shape)) {
      return Wrong(absl::StrCat("tensor '", ShowName(name), "': its parts have ", there, " of ",
                                NumbersIn(tensor.info.shape), " numbers"));
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace tdock::trainer
