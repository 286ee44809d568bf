#include "runtime/control/messages.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "tdock/batch.h"
#include "tdock/column.h"

namespace tdock::runtime {
namespace {

// Scalars, texts and lists are facts as they are. What facts have no type for is a map of one entry, under one of
// these: of nothing, and of an object's entries; of a batch, its place among those of the parcel; of rows, likewise
// that of a column of their ids, with the rest of what they are.
constexpr char kNothing[] = "nothing", kObject[] = "object", kBatch[] = "batch", kRows[] = "rows";
constexpr char kIds[] = "ids";

class Packer {
 public:
  explicit Packer(std::vector<MetaBatch>& batches) : batches_(batches) {}

  MetaValue Pack(const Value& value) {
    if (const auto* flag = value.As<bool>()) return {*flag};
    if (const auto* integer = value.As<int64_t>()) return {*integer};
    if (const auto* number = value.As<double>()) return {*number};
    if (const auto* text = value.As<std::string>()) return {*text};
    if (const auto* list = value.As<Value::List>()) {
      MetaValue::List packed;
      for (const Value& item : *list) packed.push_back(Pack(item));
      return {std::move(packed)};
    }
    if (const auto* object = value.As<Value::Object>()) {
      Meta packed;
      for (const auto& [name, item] : *object) packed.emplace(name, Pack(item));
      return {Meta{{kObject, std::move(packed)}}};
    }
    if (const auto* batch = value.As<MetaBatch>()) return {Meta{{kBatch, Add(*batch)}}};
    if (const auto* rows = value.As<RowsRef>()) return {Meta{{kRows, PackRows(*rows)}}};
    return {Meta{{kNothing, true}}};
  }

 private:
  int64_t Add(MetaBatch batch) {
    batches_.push_back(std::move(batch));
    return std::ssize(batches_) - 1;
  }

  Meta PackRows(const RowsRef& rows) {
    MetaValue::List columns(rows.columns.begin(), rows.columns.end());
    Meta packed = {{"partition", rows.partition}, {"columns", std::move(columns)}, {"meta", rows.meta}};
    if (rows.real_rows.has_value()) packed.emplace("real_rows", *rows.real_rows);
    Batch ids;
    const std::vector<int64_t> numbers(rows.rows.begin(), rows.rows.end());
    TDOCK_CHECK(ids.Add(kIds, Column::FromValues<int64_t>(numbers)).ok(), "the first column of a batch");
    packed.emplace("ids", Add(MetaBatch(std::move(ids))));
    return packed;
  }

  std::vector<MetaBatch>& batches_;
};

class Unpacker {
 public:
  explicit Unpacker(const std::vector<MetaBatch>& batches) : batches_(batches) {}

  absl::StatusOr<Value> Unpack(const MetaValue& value, int depth = 1) const {
    if (depth > Value::kMaxDepth) {
      return absl::InvalidArgumentError(absl::StrCat("a value deeper than ", Value::kMaxDepth));
    }
    if (const auto* flag = value.As<bool>()) return Value(*flag);
    if (const auto* integer = value.As<int64_t>()) return Value(*integer);
    if (const auto* number = value.As<double>()) return Value(*number);
    if (const auto* text = value.As<std::string>()) return Value(*text);
    if (const auto* list = value.As<MetaValue::List>()) {
      Value::List items;
      for (const MetaValue& item : *list) {
        TDOCK_ASSIGN_OR_RETURN(items.emplace_back(), Unpack(item, depth + 1));
      }
      return Value(std::move(items));
    }
    const Meta& typed = *value.As<Meta>();
    if (typed.size() != 1) return absl::InvalidArgumentError("a value of no type");
    const auto& [type, held] = *typed.begin();
    if (type == kNothing) return Value();
    if (type == kObject && held.As<Meta>() != nullptr) {
      Value::Object object;
      for (const auto& [name, item] : *held.As<Meta>()) {
        TDOCK_ASSIGN_OR_RETURN(object[name], Unpack(item, depth + 1));
      }
      return Value(std::move(object));
    }
    if (type == kBatch) {
      TDOCK_ASSIGN_OR_RETURN(const MetaBatch* const batch, BatchAt(held));
      return Value(*batch);
    }
    if (type == kRows && held.As<Meta>() != nullptr) return UnpackRows(*held.As<Meta>());
    return absl::InvalidArgumentError(absl::StrCat("a value of type '", EscapeForMessage(type), "'"));
  }

 private:
  absl::StatusOr<const MetaBatch*> BatchAt(const MetaValue& place) const {
    const int64_t* const at = place.As<int64_t>();
    if (at == nullptr || *at < 0 || *at >= std::ssize(batches_)) {
      return absl::InvalidArgumentError("a value that is a batch which the message does not have");
    }
    return &batches_[static_cast<size_t>(*at)];
  }

  absl::StatusOr<Value> UnpackRows(const Meta& packed) const {
    const auto find = [&packed](absl::string_view name) -> const MetaValue* {
      const auto found = packed.find(name);
      return found == packed.end() ? nullptr : &found->second;
    };
    const MetaValue* const partition = find("partition");
    const MetaValue* const columns = find("columns");
    const MetaValue* const meta = find("meta");
    const MetaValue* const ids = find("ids");
    if (partition == nullptr || partition->As<std::string>() == nullptr || columns == nullptr ||
        columns->As<MetaValue::List>() == nullptr || meta == nullptr || meta->As<Meta>() == nullptr || ids == nullptr) {
      return absl::InvalidArgumentError("rows without a partition, columns, meta or ids");
    }
    RowsRef rows{.partition = *partition->As<std::string>(), .meta = *meta->As<Meta>()};
    for (const MetaValue& column : *columns->As<MetaValue::List>()) {
      const std::string* const name = column.As<std::string>();
      if (name == nullptr) return absl::InvalidArgumentError("rows with a column whose name is no string");
      rows.columns.push_back(*name);
    }
    TDOCK_ASSIGN_OR_RETURN(const MetaBatch* const batch, BatchAt(*ids));
    TDOCK_ASSIGN_OR_RETURN(const std::span<const int64_t> numbers, batch->columns().Values<int64_t>(kIds));
    rows.rows.assign(numbers.begin(), numbers.end());
    if (const MetaValue* const real = find("real_rows")) {
      const int64_t* const count = real->As<int64_t>();
      if (count == nullptr || *count < 0 || *count > std::ssize(rows.rows)) {
        return absl::InvalidArgumentError("rows of which more are real than there are");
      }
      rows.real_rows = *count;
    }
    return Value(std::move(rows));
  }

  const std::vector<MetaBatch>& batches_;
};

}  // namespace

void SetStatus(const absl::Status& status, Meta& facts) {
  facts.insert_or_assign("code", MetaValue(static_cast<int64_t>(status.code())));
  facts.insert_or_assign("message", MetaValue(std::string(status.message())));
}

absl::Status StatusIn(const Parcel& parcel) {
  const int64_t code = parcel.Integer("code");
  if (code == 0) return absl::OkStatus();
  const bool known = code > 0 && code <= static_cast<int64_t>(absl::StatusCode::kUnauthenticated);
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown, parcel.Text("message"));
}

void SetValue(const std::string& name, const Value& value, Parcel& parcel) {
  parcel.facts.insert_or_assign(name, Packer(parcel.batches).Pack(value));
}

absl::StatusOr<Value> ValueIn(const Parcel& parcel, const std::string& name) {
  const auto found = parcel.facts.find(name);
  if (found == parcel.facts.end()) return absl::InvalidArgumentError(absl::StrCat("a message without '", name, "'"));
  return Unpacker(parcel.batches).Unpack(found->second);
}

}  // namespace tdock::runtime
