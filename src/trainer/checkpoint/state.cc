#include "trainer/checkpoint/state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"

namespace tdock::trainer {
namespace {

absl::Status Missing(const std::string& name) { return absl::InvalidArgumentError(absl::StrCat(name, " is missing")); }

// The entries whose names begin with `prefix`/, without it.
template <class T>
std::map<std::string, T> Under(const std::map<std::string, T>& all, const std::string& prefix) {
  const std::string start = prefix + "/";
  std::map<std::string, T> found;
  for (auto it = all.lower_bound(start); it != all.end() && it->first.starts_with(start); ++it) {
    found.emplace_hint(found.end(), it->first.substr(start.size()), it->second);
  }
  return found;
}

// "NAME[BEGIN/TOTAL]": some of the numbers of NAME.
std::string PartName(absl::string_view name, int64_t begin, int64_t total) {
  return absl::StrCat(name, "[", begin, "/", total, "]");
}

struct SavedPart {
  std::string name = {};  // as it is saved
  int64_t begin = 0;
  at::Tensor numbers = {};  // flat

  int64_t end() const { return begin + numbers.numel(); }
};

// `name` is that of the tensor and "[BEGIN/TOTAL]", which begins at `place`.
absl::StatusOr<SavedPart> PartAt(const std::string& name, size_t place, int64_t total, const at::Tensor& tensor) {
  absl::string_view text = absl::string_view(name).substr(place);
  SavedPart part{.name = name, .numbers = tensor.reshape({-1})};
  int64_t of = 0;
  const bool in_brackets = absl::ConsumePrefix(&text, "[") && absl::ConsumeSuffix(&text, "]");
  const std::pair<absl::string_view, absl::string_view> numbers = absl::StrSplit(text, absl::MaxSplits('/', 1));
  if (!in_brackets || !absl::SimpleAtoi(numbers.first, &part.begin) || !absl::SimpleAtoi(numbers.second, &of)) {
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' does not end with the place of a part"));
  }
  if (of != total || part.begin < 0 || part.begin > total || part.numbers.numel() > total - part.begin) {
    return absl::InvalidArgumentError(
        absl::StrCat("part ", name, " has ", part.numbers.numel(), " numbers, which are none of ", total));
  }
  return part;
}

// What there is of a tensor of `total` numbers, in its order: the whole, or parts that are not empty.
absl::StatusOr<std::vector<SavedPart>> PartsOf(const std::map<std::string, at::Tensor>& tensors,
                                               const std::string& name, int64_t total) {
  std::vector<SavedPart> parts;
  if (const auto whole = tensors.find(name); whole != tensors.end()) {
    if (whole->second.numel() != total) {
      return absl::InvalidArgumentError(absl::StrCat(name, " has ", whole->second.numel(), " numbers, not ", total));
    }
    parts.push_back({.name = name, .numbers = whole->second.reshape({-1})});
  }
  const std::string start = name + "[";
  for (auto it = tensors.lower_bound(start); it != tensors.end() && it->first.starts_with(start); ++it) {
    TDOCK_ASSIGN_OR_RETURN(SavedPart part, PartAt(it->first, name.size(), total, it->second));
    parts.push_back(std::move(part));
  }
  if (parts.empty()) return Missing(name);
  std::erase_if(parts, [](const SavedPart& part) { return part.numbers.numel() == 0; });
  std::stable_sort(parts.begin(), parts.end(),
                   [](const SavedPart& a, const SavedPart& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].begin >= parts[i - 1].end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(parts[i - 1].name, " and ", parts[i].name, " overlap: both have number ", parts[i].begin));
  }
  return parts;
}

}  // namespace

void State::SetText(const std::string& name, std::string value) {
  TDOCK_CHECK(texts_.emplace(name, std::move(value)).second, name);
}

void State::SetInteger(const std::string& name, int64_t value) { SetText(name, absl::StrCat(value)); }

// In hexadecimal, because decimal digits may round, and JSON has no infinity.
void State::SetNumber(const std::string& name, double value) { SetText(name, absl::StrFormat("%a", value)); }

void State::SetTensor(const std::string& name, const at::Tensor& tensor) {
  TDOCK_CHECK(tensors_.emplace(name, tensor.detach()).second, name);
}

void State::SetPart(const std::string& name, int64_t begin, int64_t total, const at::Tensor& tensor) {
  SetTensor(PartName(name, begin, total), tensor);
}

void State::Set(const std::string& prefix, const Stateful& object) {
  State part;
  object.Save(part);
  for (auto& [name, text] : part.texts_) SetText(absl::StrCat(prefix, "/", name), std::move(text));
  for (const auto& [name, tensor] : part.tensors_) SetTensor(absl::StrCat(prefix, "/", name), tensor);
}

absl::StatusOr<std::string> State::Text(const std::string& name) const {
  const auto found = texts_.find(name);
  if (found == texts_.end()) return Missing(name);
  return found->second;
}

absl::StatusOr<int64_t> State::Integer(const std::string& name) const {
  TDOCK_ASSIGN_OR_RETURN(const std::string text, Text(name));
  int64_t value = 0;
  if (absl::SimpleAtoi(text, &value)) return value;
  return absl::InvalidArgumentError(absl::StrCat(name, " is '", text, "', not an integer"));
}

absl::StatusOr<double> State::Number(const std::string& name) const {
  TDOCK_ASSIGN_OR_RETURN(const std::string text, Text(name));
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (!text.empty() && end == text.c_str() + text.size()) return value;
  return absl::InvalidArgumentError(absl::StrCat(name, " is '", text, "', not a number"));
}

absl::Status State::CopyTensor(const std::string& name, const at::Tensor& into) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return Missing(name);
  const at::Tensor& tensor = found->second;
  if (tensor.sizes() != into.sizes() || tensor.scalar_type() != into.scalar_type()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", c10::toString(tensor.scalar_type()), " [", absl::StrJoin(tensor.sizes(), ", "),
                     "], not ", c10::toString(into.scalar_type()), " [", absl::StrJoin(into.sizes(), ", "), "]"));
  }
  at::NoGradGuard no_grad;
  into.detach().copy_(tensor);
  return absl::OkStatus();
}

absl::Status State::CopyPart(const std::string& name, int64_t begin, int64_t total, const at::Tensor& into) const {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<SavedPart> parts, PartsOf(tensors_, name, total));
  const auto lacking = [&](int64_t from, int64_t to) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": numbers [", from, ", ", to, ") of ", total, " are in no part"));
  };
  at::NoGradGuard no_grad;
  const at::Tensor flat = into.detach().view({-1});
  const int64_t end = begin + flat.numel();
  int64_t next = begin;  // the first that is not copied
  for (const SavedPart& part : parts) {
    if (part.end() <= next || part.begin >= end) continue;
    if (part.begin > next) return lacking(next, part.begin);
    if (part.numbers.scalar_type() != flat.scalar_type()) {
      return absl::InvalidArgumentError(absl::StrCat(part.name, " is ", c10::toString(part.numbers.scalar_type()),
                                                     ", not ", c10::toString(flat.scalar_type())));
    }
    const int64_t count = std::min(part.end(), end) - next;
    flat.narrow(0, next - begin, count).copy_(part.numbers.narrow(0, next - part.begin, count));
    next += count;
  }
  return next == end ? absl::OkStatus() : lacking(next, end);
}

absl::Status State::Merge(const State& other) {
  for (const auto& [name, tensor] : other.tensors_) {
    if (tensors_.emplace(name, tensor).second) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, " is there twice"));
  }
  return absl::OkStatus();
}

absl::Status State::Get(const std::string& prefix, Stateful& object) const {
  State part;
  part.texts_ = Under(texts_, prefix);
  part.tensors_ = Under(tensors_, prefix);
  return Annotate(object.Load(part), prefix);
}

State State::Snapshot() const {
  at::NoGradGuard no_grad;
  State copy;
  copy.texts_ = texts_;
  for (const auto& [name, tensor] : tensors_) {
    copy.tensors_.emplace(name, tensor.is_cpu() ? tensor.clone() : tensor.cpu());
  }
  return copy;
}

int64_t State::tensor_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors_) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace tdock::trainer
