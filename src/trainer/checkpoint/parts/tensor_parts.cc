#include "trainer/checkpoint/parts/tensor_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/utf8.h"

namespace tdock::trainer {
namespace {

// Those that are not empty, in the order of the tensor.
absl::StatusOr<std::vector<size_t>> InOrder(std::span<const TensorPart> parts) {
  std::vector<size_t> order;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].size > 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return parts[a].begin < parts[b].begin; });
  for (size_t i = 1; i < order.size(); ++i) {
    const TensorPart &before = parts[order[i - 1]], &part = parts[order[i]];
    if (part.begin >= before.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat(EscapeForMessage(before.name), " and ", EscapeForMessage(part.name),
                                                   " overlap: both have number ", part.begin));
  }
  return order;
}

}  // namespace

std::string PartName(absl::string_view tensor, int64_t begin, int64_t total) {
  return absl::StrCat(tensor, "[", begin, "/", total, "]");
}

absl::StatusOr<TensorPart> ParsePart(absl::string_view name, absl::string_view tensor, int64_t total, int64_t size) {
  absl::string_view text = name;
  const bool in_brackets =
      absl::ConsumePrefix(&text, tensor) && absl::ConsumePrefix(&text, "[") && absl::ConsumeSuffix(&text, "]");
  const std::pair<absl::string_view, absl::string_view> numbers = absl::StrSplit(text, absl::MaxSplits('/', 1));
  TensorPart part{.name = std::string(name), .size = size};
  int64_t of = 0;
  // Each part has one name: SimpleAtoi() takes spaces and signs, too.
  if (!in_brackets || !absl::SimpleAtoi(numbers.first, &part.begin) || !absl::SimpleAtoi(numbers.second, &of) ||
      PartName(tensor, part.begin, of) != name) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", EscapeForMessage(name), "' does not end with the place of a part"));
  }
  if (of != total || part.begin < 0 || part.begin > total || size > total - part.begin) {
    return absl::InvalidArgumentError(
        absl::StrCat("part ", EscapeForMessage(name), " has ", size, " numbers, which are none of ", total));
  }
  return part;
}

absl::StatusOr<std::vector<PartCopy>> PlanCopies(absl::string_view tensor, std::span<const TensorPart> parts,
                                                 int64_t begin, int64_t size, int64_t total) {
  const absl::StatusOr<std::vector<size_t>> order = InOrder(parts);
  if (!order.ok()) return order.status();
  const auto lacking = [&](int64_t from, int64_t to) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensor, ": numbers [", from, ", ", to, ") of ", total, " are in no part"));
  };
  const int64_t end = begin + size;
  int64_t next = begin;  // the first that is not copied
  std::vector<PartCopy> copies;
  for (const size_t i : *order) {
    const TensorPart& part = parts[i];
    if (part.end() <= next) continue;
    if (part.begin >= end || next == end) break;
    if (part.begin > next) return lacking(next, part.begin);
    const int64_t count = std::min(part.end(), end) - next;
    copies.push_back({.part = i, .from = next - part.begin, .to = next - begin, .size = count});
    next += count;
  }
  if (next < end) return lacking(next, end);
  return copies;
}

}  // namespace tdock::trainer
