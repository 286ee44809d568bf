#include "runtime/dispatch/value.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"

namespace tdock::runtime {
namespace {

int DepthOver(const Value::List& list) {
  int deepest = 0;
  for (const Value& value : list) deepest = std::max(deepest, value.depth());
  return deepest + 1;
}

int DepthOver(const Value::Object& object) {
  int deepest = 0;
  for (const auto& [name, value] : object) deepest = std::max(deepest, value.depth());
  return deepest + 1;
}

std::string Count(size_t count, absl::string_view one, absl::string_view many) {
  return absl::StrCat(count, " ", count == 1 ? one : many);
}

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace

Value::Value(std::string value)
    : value_(std::make_shared<const Held<std::string>>(Held<std::string>{std::move(value)})) {}

Value::Value(List value) {
  const int depth = DepthOver(value);
  value_ = std::make_shared<const Held<List>>(Held<List>{std::move(value), depth});
}

Value::Value(Object value) {
  const int depth = DepthOver(value);
  value_ = std::make_shared<const Held<Object>>(Held<Object>{std::move(value), depth});
}

Value::Value(MetaBatch value) : value_(std::make_shared<const Held<MetaBatch>>(Held<MetaBatch>{std::move(value)})) {}

Value::Value(RowsRef value) : value_(std::make_shared<const Held<RowsRef>>(Held<RowsRef>{std::move(value)})) {}

int Value::depth() const {
  if (const auto* list = std::get_if<Shared<List>>(&value_)) return (*list)->depth;
  if (const auto* object = std::get_if<Shared<Object>>(&value_)) return (*object)->depth;
  return 1;
}

std::string Value::Describe() const {
  if (IsNothing()) return "nothing";
  if (As<bool>() != nullptr) return "a bool";
  if (As<int64_t>() != nullptr) return "an int64";
  if (As<double>() != nullptr) return "a double";
  if (As<std::string>() != nullptr) return "a string";
  if (const List* list = As<List>()) return absl::StrCat("a list of ", list->size());
  if (const Object* object = As<Object>()) {
    return absl::StrCat("an object of ", Count(object->size(), "entry", "entries"));
  }
  if (const MetaBatch* batch = As<MetaBatch>()) {
    return absl::StrCat("a batch of ", Count(static_cast<size_t>(batch->rows()), "row", "rows"));
  }
  const RowsRef& ref = *As<RowsRef>();
  return absl::StrCat(Count(ref.rows.size(), "row", "rows"), " of partition '", EscapeForMessage(ref.partition), "'");
}

absl::Status Value::Unexpected(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what, ", given ", Describe()));
}

bool operator==(const Value& a, const Value& b) {
  if (a.value_.index() != b.value_.index()) return false;
  return std::visit(
      Overloaded{
          [](std::monostate) { return true; },
          [&b](double value) { return std::bit_cast<uint64_t>(value) == std::bit_cast<uint64_t>(*b.As<double>()); },
          [&b]<class T>(const std::shared_ptr<T>& held) {
            const auto& other = std::get<std::shared_ptr<T>>(b.value_);
            return held == other || held->value == other->value;
          },
          [&b]<class T>(const T& value) { return value == std::get<T>(b.value_); },
      },
      a.value_);
}

absl::Status CheckDepth(const Value& value, absl::string_view what) {
  if (value.depth() <= Value::kMaxDepth) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is ", value.depth(), " lists or objects deep; at most ", Value::kMaxDepth, " are possible"));
}

}  // namespace tdock::runtime
