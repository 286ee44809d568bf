// Filters that compute each item when it is asked for, as Python's generators do: what nobody asks for cannot fail.
#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/jinja/arguments.h"
#include "text/jinja/arithmetic.h"
#include "text/jinja/attribute_path.h"
#include "text/jinja/compare.h"
#include "text/jinja/filter_lists.h"
#include "text/jinja/node.h"
#include "text/jinja/predicates.h"

namespace tdock::jinja {
namespace {

using Result = absl::StatusOr<Value>;
using MaybeItem = absl::StatusOr<std::optional<Value>>;

// Begins with the first item that is asked for.
class OverItems : public Generator {
 public:
  explicit OverItems(Value input) : input_(std::move(input)) {}

 protected:
  // The next item of the input; an input that is not true has none.
  MaybeItem NextOfInput(Machine& machine) {
    if (!is_begun_) {
      is_begun_ = true;
      if (IsTrue(input_)) {
        TDOCK_ASSIGN_OR_RETURN(items_, Iteration::Over(input_));
      }
      input_ = Value();
    }
    if (!machine.meter().Spend(1)) return machine.meter().status();
    return items_.Next(machine);
  }
  bool is_begun() const { return is_begun_; }
  const Value& input() const { return input_; }

 private:
  Value input_;
  Iteration items_;
  bool is_begun_ = false;
};

class MappedItems final : public OverItems {
 public:
  MappedItems(Value input, Arguments arguments) : OverItems(std::move(input)), arguments_(std::move(arguments)) {}

  MaybeItem Next(Machine& machine) override {
    if (!is_begun() && IsTrue(input())) TDOCK_RETURN_IF_ERROR(Prepare(machine));
    TDOCK_ASSIGN_OR_RETURN(const auto item, NextOfInput(machine));
    if (!item) return std::nullopt;
    if (filter_ == nullptr) return path_.Of(machine, *item, otherwise_);
    machine.SpendItems(arguments_.positional.size() + arguments_.named.size());
    Arguments arguments = arguments_;
    return filter_->run(machine, *item, arguments);
  }

 private:
  absl::Status Prepare(Machine& machine) {
    const auto is_attribute = [](const auto& named) { return named.first.AsText().bytes() == "attribute"; };
    const bool has_attribute = std::any_of(arguments_.named.begin(), arguments_.named.end(), is_attribute);
    if (arguments_.positional.empty() && has_attribute) {
      TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments_, {"attribute", "default"}));
      path_ = AttributePath(machine, bound[0]);
      otherwise_ = bound[1];
      return absl::OkStatus();
    }
    if (arguments_.positional.empty())
      return absl::InvalidArgumentError("map needs the name of a filter, or attribute=");
    TDOCK_RETURN_IF_ERROR(CheckText(arguments_.positional[0], "the name of a filter"));
    const absl::string_view name = arguments_.positional[0].AsText().bytes();
    filter_ = FindFilter(name);
    if (filter_ == nullptr) return absl::InvalidArgumentError(absl::StrCat("there is no filter called ", Quoted(name)));
    arguments_.positional.erase(arguments_.positional.begin());
    return absl::OkStatus();
  }

  Arguments arguments_;
  const Filter* filter_ = nullptr;
  AttributePath path_;
  Value otherwise_ = Value::Missing();
};

class Selected final : public OverItems {
 public:
  Selected(Value input, Arguments arguments, bool wanted, bool by_attribute)
      : OverItems(std::move(input)), arguments_(std::move(arguments)), wanted_(wanted), by_attribute_(by_attribute) {}

  MaybeItem Next(Machine& machine) override {
    if (!is_begun() && IsTrue(input())) TDOCK_RETURN_IF_ERROR(Prepare(machine));
    while (true) {
      TDOCK_ASSIGN_OR_RETURN(auto item, NextOfInput(machine));
      if (!item) return std::nullopt;
      TDOCK_ASSIGN_OR_RETURN(const Value value, path_.Of(machine, *item));
      bool holds = IsTrue(value);
      if (predicate_ != nullptr) {
        machine.SpendItems(arguments_.positional.size() + arguments_.named.size());
        Arguments arguments = arguments_;
        TDOCK_ASSIGN_OR_RETURN(holds, predicate_->run(machine, value, arguments));
      }
      if (holds == wanted_) return item;
    }
  }

 private:
  absl::Status Prepare(Machine& machine) {
    auto& positional = arguments_.positional;
    if (by_attribute_) {
      if (positional.empty()) return absl::InvalidArgumentError("the name of an attribute is missing");
      path_ = AttributePath(machine, positional[0]);
      positional.erase(positional.begin());
    }
    if (positional.empty()) return absl::OkStatus();
    TDOCK_RETURN_IF_ERROR(CheckText(positional[0], "the name of a test"));
    const absl::string_view name = positional[0].AsText().bytes();
    predicate_ = FindPredicate(name);
    if (predicate_ == nullptr)
      return absl::InvalidArgumentError(absl::StrCat("there is no test called ", Quoted(name)));
    positional.erase(positional.begin());
    return absl::OkStatus();
  }

  Arguments arguments_;
  const bool wanted_;
  const bool by_attribute_;
  const Predicate* predicate_ = nullptr;
  AttributePath path_;
};

class Unique final : public Generator {
 public:
  Unique(Iteration items, AttributePath path, bool case_sensitive)
      : items_(std::move(items)), path_(std::move(path)), case_sensitive_(case_sensitive) {}

  MaybeItem Next(Machine& machine) override {
    while (true) {
      TDOCK_ASSIGN_OR_RETURN(auto item, items_.Next(machine));
      if (!item || !machine.meter().Spend(1)) return std::nullopt;
      TDOCK_ASSIGN_OR_RETURN(Value key, path_.Of(machine, *item));
      key = CaseKey(machine, key, case_sensitive_);
      TDOCK_RETURN_IF_ERROR(CheckHashable(key));
      machine.SpendKey(key);
      std::vector<Value>& seen = seen_[Hash(key)];
      if (std::any_of(seen.begin(), seen.end(),
                      [&](const Value& other) { return Equal(other, key, &machine.meter()); }))
        continue;
      machine.meter().Hold(2 * sizeof(Value) + sizeof(seen));
      seen.push_back(std::move(key));
      return item;
    }
  }

 private:
  Iteration items_;
  const AttributePath path_;
  const bool case_sensitive_;
  absl::flat_hash_map<uint64_t, std::vector<Value>> seen_;
};

class Batches final : public Generator {
 public:
  Batches(Iteration items, int64_t size, Value fill) : items_(std::move(items)), size_(size), fill_(std::move(fill)) {}

  MaybeItem Next(Machine& machine) override {
    while (!is_done_) {
      TDOCK_ASSIGN_OR_RETURN(auto item, items_.Next(machine));
      if (!machine.meter().Spend(1)) return machine.meter().status();
      if (!item) break;
      const bool is_full = static_cast<int64_t>(batch_.size()) == size_;
      Value::Items full;
      if (is_full) full = std::exchange(batch_, {});
      batch_.push_back(*std::move(item));
      if (!machine.meter().MayHold(batch_.size() * sizeof(Value))) return machine.meter().status();
      if (is_full) return machine.List(std::move(full));
    }
    if (std::exchange(is_done_, true) || batch_.empty()) return std::nullopt;
    const int64_t missing = size_ - static_cast<int64_t>(batch_.size());
    if (IsGivenAndNotNone(fill_) && missing > 0) {
      const size_t bytes = static_cast<size_t>(std::min(missing, int64_t{1} << 40)) * sizeof(Value);
      if (!machine.meter().MayHold(bytes) || !machine.meter().Spend(missing)) return machine.meter().status();
      batch_.insert(batch_.end(), static_cast<size_t>(missing), fill_);
    }
    return machine.List(std::exchange(batch_, {}));
  }

 private:
  Iteration items_;
  const int64_t size_;
  const Value fill_;
  Value::Items batch_;
  bool is_done_ = false;
};

class Slices final : public Generator {
 public:
  Slices(Value input, int64_t count, Value fill) : input_(std::move(input)), count_(count), fill_(std::move(fill)) {}

  MaybeItem Next(Machine& machine) override {
    if (at_ == 0) {
      TDOCK_ASSIGN_OR_RETURN(items_, ItemsOf(machine, input_));
      machine.meter().Hold(items_.size() * sizeof(Value));
      if (count_ == 0) return absl::InvalidArgumentError("the number of slices must not be zero");
    }
    if (at_ >= count_) return std::nullopt;
    const auto length = static_cast<int64_t>(items_.size());
    const int64_t longer = length % count_;
    const int64_t size = length / count_ + (at_ < longer ? 1 : 0);
    const auto begin = items_.begin() + done_;
    Value::Items slice(begin, begin + size);
    if (IsGivenAndNotNone(fill_) && at_ >= longer) slice.push_back(fill_);
    done_ += size;
    ++at_;
    machine.meter().Spend(1 + size);
    return machine.List(std::move(slice));
  }

 private:
  const Value input_;
  const int64_t count_;
  const Value fill_;
  std::vector<Value> items_;
  int64_t at_ = 0;
  int64_t done_ = 0;
};

// The pairs of a dict; of an undefined value, none.
class Pairs final : public Generator {
 public:
  explicit Pairs(Value input) : input_(std::move(input)) {}
  MaybeItem Next(Machine& machine) override {
    if (input_.is_undefined()) return std::nullopt;
    if (!input_.is_dict())
      return absl::InvalidArgumentError(
          absl::StrCat("the filter items needs a dict, not a value of the type ", TypeName(input_)));
    if (at_ >= input_.AsDict().pairs.size()) return std::nullopt;
    const auto& [key, value] = input_.AsDict().pairs[at_++];
    return machine.Tuple({key, value});
  }

 private:
  const Value input_;
  size_t at_ = 0;
};

Result MapFilterOfItems(Machine& machine, const Value& input, Arguments& arguments) {
  return machine.NewValue<MappedItems>(input, std::move(arguments));
}

template <bool wanted, bool by_attribute>
Result Select(Machine& machine, const Value& input, Arguments& arguments) {
  return machine.NewValue<Selected>(input, std::move(arguments), wanted, by_attribute);
}

Result UniqueFilter(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"case_sensitive", "attribute"}));
  TDOCK_ASSIGN_OR_RETURN(Iteration items, Iteration::Over(input));
  return machine.NewValue<Unique>(std::move(items), AttributePath(machine, bound[1]), IsTrue(bound[0]));
}

Result Batch(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"linecount", "fill_with"}, 1));
  TDOCK_ASSIGN_OR_RETURN(const int64_t size, IntOf(bound[0], "linecount"));
  TDOCK_ASSIGN_OR_RETURN(Iteration items, Iteration::Over(input));
  return machine.NewValue<Batches>(std::move(items), size, bound[1]);
}

Result SliceFilter(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"slices", "fill_with"}, 1));
  TDOCK_ASSIGN_OR_RETURN(const int64_t count, IntOf(bound[0], "slices"));
  return machine.NewValue<Slices>(input, count, bound[1]);
}

Result Items(Machine& machine, const Value& input, Arguments& arguments) {
  TDOCK_RETURN_IF_ERROR(Bind(arguments, {}).status());
  return machine.NewValue<Pairs>(input);
}

constexpr Filter kLazyFilters[] = {{"map", MapFilterOfItems},
                                   {"select", Select<true, false>},
                                   {"reject", Select<false, false>},
                                   {"selectattr", Select<true, true>},
                                   {"rejectattr", Select<false, true>},
                                   {"unique", UniqueFilter},
                                   {"batch", Batch},
                                   {"slice", SliceFilter},
                                   {"items", Items}};

}  // namespace

absl::Span<const Filter> LazyFilters() { return kLazyFilters; }

}  // namespace tdock::jinja
