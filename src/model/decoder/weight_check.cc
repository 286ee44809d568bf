#include "model/decoder/weight_check.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tdock::model {
namespace {

constexpr size_t kNamesShown = 10;

template <class Names>
std::string Listed(const Names& names) {
  const size_t shown = std::min(names.size(), kNamesShown);
  std::string text = absl::StrJoin(names.begin(), std::next(names.begin(), static_cast<std::ptrdiff_t>(shown)), ", ",
                                   [](std::string* out, const std::string& name) { *out += ShowName(name); });
  if (names.size() > shown) absl::StrAppend(&text, " and ", names.size() - shown, " more");
  return text;
}

std::string ShapeText(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

bool IsFloating(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF64;
}

}  // namespace

void WeightCheck::Expect(const std::string& name, const std::string& name_there, const std::vector<int64_t>& shape,
                         const TensorInfo* stored) {
  ++expected_;
  if (stored == nullptr) {
    missing_.push_back(name);
    return;
  }
  unexpected_.erase(name_there);
  if (stored->shape != shape) mismatches_.push_back({name, *stored, shape});
  if (!IsFloating(stored->dtype)) wrong_dtypes_.push_back(absl::StrCat(name, " is ", Name(stored->dtype)));
}

absl::Status WeightCheck::Status(const std::string& shapes_from) const {
  std::vector<std::string> problems;
  if (!missing_.empty()) problems.push_back(absl::StrCat("missing weights: ", Listed(missing_)));
  if (!unexpected_.empty()) problems.push_back(absl::StrCat("unexpected weights: ", Listed(unexpected_)));
  if (!mismatches_.empty()) {
    const auto& [name, stored, shape] = mismatches_.front();
    problems.push_back(absl::StrCat("wrong shapes of ", mismatches_.size(), " of ", expected_,
                                    " weights, the first of ", name, ": it is ", ShapeText(stored.shape), ", ",
                                    shapes_from, " makes it ", ShapeText(shape)));
  }
  if (!wrong_dtypes_.empty()) {
    problems.push_back(absl::StrCat("weights that are not floating-point: ", Listed(wrong_dtypes_)));
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
}

}  // namespace tdock::model
