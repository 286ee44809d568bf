#include "cli/json_line.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::cli {
namespace {

using Json = nlohmann::ordered_json;

// Goes through a text, and stops where something cannot be kept.
class Checker final : public nlohmann::json_sax<Json> {
 public:
  explicit Checker(absl::string_view text) : text_(text) {}

  absl::Status status = absl::OkStatus();

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  // Also called for whole numbers that are too large.
  bool number_float(number_float_t, const string_t& spelled) override {
    if (spelled.find_first_of(".eE") != string_t::npos) return true;
    return Refuse(absl::StrCat("it has the number ", EscapeForMessage(spelled),
                               ", which does not fit in 64 bits; make it a text"));
  }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return Enter(); }
  bool key(string_t&) override { return true; }
  bool end_object() override { return Leave(); }
  bool start_array(size_t) override { return Enter(); }
  bool end_array() override { return Leave(); }
  bool parse_error(size_t position, const std::string& read, const nlohmann::detail::exception& error) override {
    return Refuse(WhyNotJson(text_, position, read, error));
  }

 private:
  bool Refuse(std::string message) {
    status = absl::InvalidArgumentError(std::move(message));
    return false;
  }
  bool Enter() {
    constexpr int kMaxDepth = 64;
    return ++depth_ <= kMaxDepth || Refuse(absl::StrCat("it nests deeper than ", kMaxDepth, " levels"));
  }
  bool Leave() {
    --depth_;
    return true;
  }

  const absl::string_view text_;
  int depth_ = 0;
};

}  // namespace

absl::StatusOr<Json> ParseJsonLine(absl::string_view line) {
  Checker checker(line);
  Json::sax_parse(line, &checker);
  TDOCK_RETURN_IF_ERROR(checker.status);
  return ReadOrderedJson(line);
}

data::Value CellOf(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer() && !json.is_number_unsigned()) return json.get<int64_t>();
  if (json.is_number_unsigned() && json.get<uint64_t>() <= uint64_t{INT64_MAX}) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    data::List list;
    for (const auto& item : json) list.push_back(CellOf(item));
    return list;
  }
  data::Object object;
  for (const auto& [name, item] : json.items()) object.emplace_back(name, CellOf(item));
  return json.is_object() ? data::Value(std::move(object)) : data::Value();
}

}  // namespace tdock::cli
