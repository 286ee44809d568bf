#include "inference/protocol/weights_ask.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/utf8.h"
#include "inference/protocol/fields.h"

namespace tdock::inference {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostDimensions = 8;
constexpr size_t kHashDigits = 16;
constexpr size_t kShownBytes = 80;

std::optional<int64_t> ReadVersion(const Json& json, Fields& fields) {
  const auto version = json.find("weight_version");
  int64_t number = 0;
  if (version != json.end() && version->is_string() &&
      absl::SimpleAtoi(version->get_ref<const std::string&>(), &number) && number >= 0 && number <= kMostVersion) {
    fields.Take({"weight_version"});
    return number;
  }
  return fields.Integer({"weight_version"}, 0, kMostVersion);
}

Problem ProblemIn(absl::string_view name, absl::string_view what) {
  return {.message = absl::StrCat("'", name, "' ", what), .param = std::string(name), .code = "invalid_value"};
}

std::optional<DType> DTypeOf(const Json* name) {
  if (name == nullptr) return std::nullopt;
  if (*name == "F32") return DType::kF32;
  if (*name == "BF16") return DType::kBF16;
  if (*name == "F16") return DType::kF16;
  return std::nullopt;
}

std::optional<std::vector<int64_t>> ShapeOf(const Json* list) {
  if (list == nullptr || !list->is_array() || list->size() > kMostDimensions) return std::nullopt;
  std::vector<int64_t> shape;
  for (const Json& size : *list) {
    const bool fits = size.is_number_unsigned() && size.get<uint64_t>() <= static_cast<uint64_t>(kMostVersion);
    if (!fits) return std::nullopt;
    shape.push_back(size.get<int64_t>());
  }
  return shape;
}

// One of the tensors; `within` names it.
std::variant<TensorAsk, Problem> ReadTensor(const Json& json, const std::string& within, const AskLimits& limits) {
  if (!json.is_object()) return ProblemIn(within, "must be an object");
  std::optional<Problem> problem;
  Fields fields(json, absl::StrCat(within, "."), problem);
  TensorAsk tensor{.name = fields.String({"name"}).value_or("")};
  const std::optional<DType> dtype = DTypeOf(fields.Take({"dtype"}));
  std::optional<std::vector<int64_t>> shape = ShapeOf(fields.Take({"shape"}));
  fields.Finish();
  if (problem) return *std::move(problem);
  if (tensor.name.empty() || std::cmp_greater(tensor.name.size(), limits.max_tensor_name_bytes)) {
    return ProblemIn(absl::StrCat(within, ".name"),
                     absl::StrCat("must be a name of 1 to ", limits.max_tensor_name_bytes, " bytes"));
  }
  if (!dtype) return ProblemIn(absl::StrCat(within, ".dtype"), "must be F32, BF16 or F16");
  if (!shape) {
    return ProblemIn(absl::StrCat(within, ".shape"),
                     absl::StrCat("must be a list of at most ", kMostDimensions, " whole numbers ≥ 0"));
  }
  tensor.dtype = *dtype;
  tensor.shape = *std::move(shape);
  return tensor;
}

void ReadTensors(const Json& list, const AskLimits& limits, Fields& fields, std::optional<Problem>& problem,
                 WeightsAsk& ask) {
  if (!list.is_array() || list.empty()) return fields.Fail("must be a list of tensors");
  if (std::cmp_greater(list.size(), limits.max_tensors)) {
    return fields.Fail(absl::StrCat("has ", list.size(), " tensors, and may have ", limits.max_tensors));
  }
  for (size_t i = 0; i < list.size() && !problem; ++i) {
    auto read = ReadTensor(list[i], absl::StrCat("tensors[", i, "]"), limits);
    if (auto* const wrong = std::get_if<Problem>(&read)) {
      problem = std::move(*wrong);
    } else {
      ask.tensors.push_back(std::get<TensorAsk>(std::move(read)));
    }
  }
}

std::optional<uint64_t> ReadNumber(absl::string_view digits) {
  uint64_t number = 0;
  if (digits.empty() || digits.find_first_not_of("0123456789") != absl::string_view::npos) return std::nullopt;
  return absl::SimpleAtoi(digits, &number) ? std::optional(number) : std::nullopt;
}

std::optional<uint64_t> ReadHash(absl::string_view digits) {
  uint64_t number = 0;
  if (digits.size() != kHashDigits) return std::nullopt;
  for (const char digit : digits) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(digit))) return std::nullopt;
  }
  return absl::SimpleHexAtoi(digits, &number) ? std::optional(number) : std::nullopt;
}

// One "name=value" of a query.
std::optional<Problem> ReadPart(absl::string_view name, absl::string_view value, UploadAsk& ask) {
  const auto set = [&](auto& field, auto read, absl::string_view must) -> std::optional<Problem> {
    if (field) return ProblemIn(name, "is there twice");
    field = read;
    return field ? std::nullopt : std::optional(ProblemIn(name, must));
  };
  if (name == "offset") return set(ask.offset, ReadNumber(value), "must be a whole number of bytes");
  if (name == "checksum") return set(ask.checksum, ReadHash(value), "must be the 16 hex digits of an XXH3-64");
  if (name == "flush_cache") {
    const std::optional<bool> flush = value == "true"    ? std::optional(true)
                                      : value == "false" ? std::optional(false)
                                                         : std::nullopt;
    return set(ask.flush_cache, flush, "must be true or false");
  }
  if (name == "upload") {
    if (!ask.upload.empty()) return ProblemIn(name, "is there twice");
    ask.upload = std::string(value);
    return value.empty() ? std::optional(ProblemIn(name, "is empty")) : std::nullopt;
  }
  Problem unknown = ProblemIn(EscapeForMessage(name, kShownBytes), "is not a part of a query that this server knows");
  unknown.code = "unknown_parameter";
  return unknown;
}

}  // namespace

std::variant<WeightsAsk, Problem> ReadWeights(absl::string_view body, const AskLimits& limits) {
  std::optional<Problem> problem;
  const std::optional<Json> json = ParseBody(body, limits.max_depth, problem);
  if (!json) return *std::move(problem);
  Fields fields(*json, "", problem);
  WeightsAsk ask{.folder = fields.String({"model_path"}).value_or("")};
  ask.version = ReadVersion(*json, fields);
  ask.flush_cache = fields.Bool({"flush_cache"}).value_or(true);
  for (const absl::string_view name : {"load_format", "abort_all_requests"}) fields.Refuse(name, "is not supported");
  if (const Json* const tensors = fields.Take({"tensors"})) {
    if (!ask.folder.empty()) fields.Fail("is given beside 'model_path'; one of them says which weights");
    ReadTensors(*tensors, limits, fields, problem, ask);
  }
  fields.Finish();
  if (problem) return *std::move(problem);
  if (ask.folder.empty() && ask.tensors.empty()) {
    return ProblemIn("model_path", "is missing: the folder of the weights, or else 'tensors', which will be sent");
  }
  return ask;
}

std::variant<UploadAsk, Problem> ReadUpload(absl::string_view query) {
  UploadAsk ask;
  for (const absl::string_view part : absl::StrSplit(query, '&')) {
    const std::pair<absl::string_view, absl::string_view> both = absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (auto problem = ReadPart(both.first, both.second, ask)) return *std::move(problem);
  }
  if (ask.upload.empty()) return ProblemIn("upload", "is missing: what the beginning of the upload was answered with");
  if (ask.offset.has_value() == ask.checksum.has_value()) {
    return ProblemIn("offset", "is of a piece, and 'checksum' of the end: a query has one of them");
  }
  if (ask.offset && ask.flush_cache) return ProblemIn("flush_cache", "is for the end of an upload, not for a piece");
  return ask;
}

}  // namespace tdock::inference
