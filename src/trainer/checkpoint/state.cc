#include "trainer/checkpoint/state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/checkpoint/parts/tensor_parts.h"

namespace tdock::trainer {
namespace {

absl::Status Missing(const std::string& name) {
  return absl::InvalidArgumentError(absl::StrCat(EscapeForMessage(name), " is missing"));
}

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

// What there is of a tensor of `total` numbers: the whole, and parts.
struct SavedParts {
  std::vector<TensorPart> places = {};
  std::vector<at::Tensor> numbers = {};  // of each, flat
};
absl::StatusOr<SavedParts> PartsOf(const std::map<std::string, at::Tensor>& tensors, const std::string& name,
                                   int64_t total) {
  SavedParts parts;
  if (const auto whole = tensors.find(name); whole != tensors.end()) {
    if (whole->second.numel() != total) {
      return absl::InvalidArgumentError(absl::StrCat(name, " has ", whole->second.numel(), " numbers, not ", total));
    }
    parts.places.push_back({.name = name, .size = total});
    parts.numbers.push_back(whole->second.reshape({-1}));
  }
  const std::string start = name + "[";
  for (auto it = tensors.lower_bound(start); it != tensors.end() && it->first.starts_with(start); ++it) {
    TDOCK_ASSIGN_OR_RETURN(TensorPart part, ParsePart(it->first, name, total, it->second.numel()));
    parts.places.push_back(std::move(part));
    parts.numbers.push_back(it->second.reshape({-1}));
  }
  if (parts.places.empty()) return Missing(name);
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
  return absl::InvalidArgumentError(absl::StrCat(name, " is '", EscapeForMessage(text), "', not an integer"));
}

absl::StatusOr<double> State::Number(const std::string& name) const {
  TDOCK_ASSIGN_OR_RETURN(const std::string text, Text(name));
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (!text.empty() && end == text.c_str() + text.size()) return value;
  return absl::InvalidArgumentError(absl::StrCat(name, " is '", EscapeForMessage(text), "', not a number"));
}

absl::Status State::CopyPart(const std::string& name, int64_t begin, int64_t total, const at::Tensor& into) const {
  TDOCK_ASSIGN_OR_RETURN(const SavedParts parts, PartsOf(tensors_, name, total));
  const at::Tensor flat = into.detach().view({-1});
  TDOCK_ASSIGN_OR_RETURN(const std::vector<PartCopy> copies,
                         PlanCopies(name, parts.places, begin, flat.numel(), total));
  at::NoGradGuard no_grad;
  for (const PartCopy& copy : copies) {
    const at::Tensor& numbers = parts.numbers[copy.part];
    if (numbers.scalar_type() != flat.scalar_type()) {
      return absl::InvalidArgumentError(absl::StrCat(EscapeForMessage(parts.places[copy.part].name), " is ",
                                                     c10::toString(numbers.scalar_type()), ", not ",
                                                     c10::toString(flat.scalar_type())));
    }
    flat.narrow(0, copy.to, copy.size).copy_(numbers.narrow(0, copy.from, copy.size));
  }
  return absl::OkStatus();
}

absl::Status State::Merge(const State& other) {
  for (const auto& [name, tensor] : other.tensors_) {
    if (tensors_.emplace(name, tensor).second) continue;
    return absl::InvalidArgumentError(absl::StrCat(EscapeForMessage(name), " is there twice"));
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
