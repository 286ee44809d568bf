#include "data/json_parser.h"

#include <simdjson.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::data {
namespace {

namespace dom = simdjson::dom;

static_assert(kParserPadding >= simdjson::SIMDJSON_PADDING);

absl::Status NotJson(absl::string_view what) { return absl::InvalidArgumentError(absl::StrCat("not JSON: ", what)); }

absl::Status Twice(absl::string_view name) {
  return absl::InvalidArgumentError(absl::StrCat("the name '", EscapeForMessage(name), "' occurs twice in one object"));
}

std::string Copy(std::string_view text) { return std::string(text); }

// The depth was checked by the library.
absl::StatusOr<Value> ToValue(const dom::element& element) {
  switch (element.type()) {
    case dom::element_type::NULL_VALUE:
      return Value();
    case dom::element_type::BOOL:
      return Value(bool{element.get_bool().value_unsafe()});
    case dom::element_type::INT64:
      return Value(int64_t{element.get_int64().value_unsafe()});
    case dom::element_type::UINT64:
      return Value(static_cast<double>(element.get_uint64().value_unsafe()));
    case dom::element_type::DOUBLE:
      return Value(double{element.get_double().value_unsafe()});
    case dom::element_type::STRING:
      return Value(Copy(element.get_string().value_unsafe()));
    case dom::element_type::ARRAY: {
      List list;
      const dom::array items = element.get_array().value_unsafe();
      for (const dom::element item : items) {
        TDOCK_ASSIGN_OR_RETURN(Value value, ToValue(item));
        list.push_back(std::move(value));
      }
      return Value(std::move(list));
    }
    case dom::element_type::OBJECT: {
      Object object;
      absl::flat_hash_set<std::string_view> names;
      const dom::object fields = element.get_object().value_unsafe();
      for (const auto& [name, item] : fields) {
        if (!names.insert(name).second) return Twice({name.data(), name.size()});
        TDOCK_ASSIGN_OR_RETURN(Value value, ToValue(item));
        object.emplace_back(Copy(name), std::move(value));
      }
      return Value(std::move(object));
    }
  }
  return NotJson("an element of no known type");
}

class JsonParser final : public RecordParser {
 public:
  explicit JsonParser(const RecordLimits& limits) : limits_(limits) {}

  absl::StatusOr<Record> Parse(absl::string_view bytes, std::span<const std::string> wanted) override {
    TDOCK_ASSIGN_OR_RETURN(const dom::object object, ParseObject(bytes));
    Record record(wanted.size());
    found_.assign(wanted.size(), false);
    SetWanted(wanted);
    for (const auto& [name, element] : object) {
      const auto places = places_.find(absl::string_view(name.data(), name.size()));
      if (places == places_.end()) continue;
      for (const size_t i : places->second) {
        if (std::exchange(found_[i], true)) return Twice(wanted[i]);
        absl::StatusOr<Value> value = ToValue(element);
        if (!value.ok()) return Annotate(value.status(), absl::StrCat("column '", EscapeForMessage(wanted[i]), "'"));
        record[i] = *std::move(value);
      }
    }
    return record;
  }

  absl::StatusOr<std::vector<std::string>> Names(absl::string_view bytes) override {
    TDOCK_ASSIGN_OR_RETURN(const dom::object object, ParseObject(bytes));
    std::vector<std::string> names;
    for (const auto& [name, element] : object) names.push_back(Copy(name));
    return names;
  }

 private:
  // Most records have the same one as the record before.
  void SetWanted(std::span<const std::string> wanted) {
    if (std::ranges::equal(wanted, wanted_)) return;
    wanted_.assign(wanted.begin(), wanted.end());
    places_.clear();
    for (size_t i = 0; i < wanted_.size(); ++i) places_[wanted_[i]].push_back(i);
  }

  absl::StatusOr<dom::object> ParseObject(absl::string_view bytes) {
    if (bytes.size() > capacity_) {
      // Room for the next ones too, so that it seldom grows.
      capacity_ = std::max(bytes.size(), std::max(capacity_ * 2, size_t{1} << 12));
      if (parser_.allocate(capacity_, static_cast<size_t>(limits_.max_depth)) != simdjson::SUCCESS) {
        return absl::ResourceExhaustedError(absl::StrCat("no memory to parse ", bytes.size(), " bytes of JSON"));
      }
    }
    dom::element root;
    const simdjson::error_code error = parser_.parse(bytes.data(), bytes.size(), false).get(root);
    if (error == simdjson::UTF8_ERROR) return absl::InvalidArgumentError(NotUtf8(bytes));
    if (error == simdjson::DEPTH_ERROR) {
      return absl::InvalidArgumentError(absl::StrCat("more than ", limits_.max_depth, " nested objects and lists"));
    }
    if (error != simdjson::SUCCESS) return NotParsed(bytes, error);
    dom::object object;
    if (root.get(object) != simdjson::SUCCESS) return absl::InvalidArgumentError("not a JSON object");
    return object;
  }

  // simdjson does not say where.
  absl::Status NotParsed(absl::string_view bytes, simdjson::error_code error) const {
    const absl::Status slowly = ParseJsonObject(bytes, limits_.max_depth).status();
    if (slowly.ok() && error == simdjson::NUMBER_ERROR) return NotJson("a whole number does not fit in 64 bits");
    if (slowly.ok()) return NotJson(simdjson::error_message(error));
    const bool no_number = absl::StrContains(bytes, "NaN") || absl::StrContains(bytes, "Infinity");
    return absl::InvalidArgumentError(
        absl::StrCat(slowly.message(), no_number ? "; NaN and Infinity are no numbers in JSON: put null" : ""));
  }

  static std::string NotUtf8(absl::string_view bytes) {
    return absl::StrCat("not valid UTF-8 at byte ", FindInvalidUtf8(bytes).value_or(0) + 1, " of the record");
  }

  const RecordLimits limits_;
  dom::parser parser_;
  size_t capacity_ = 0;
  std::vector<char> found_;
  std::vector<std::string> wanted_;
  absl::flat_hash_map<std::string, std::vector<size_t>> places_;  // in `wanted_`
};

}  // namespace

std::unique_ptr<RecordParser> MakeJsonParser(const RecordLimits& limits) {
  return std::make_unique<JsonParser>(limits);
}

}  // namespace tdock::data
