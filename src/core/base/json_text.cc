#include "core/base/json_text.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

template class nlohmann::basic_json<>;
template class nlohmann::basic_json<nlohmann::ordered_map>;

namespace tdock {
namespace {

using Json = nlohmann::json;

constexpr size_t kNameShown = 80;

constexpr size_t kMaxValues = 10'000'000;

// Goes through a text without making values of it. nlohmann's own watching of what it parses takes quadratic time.
class Watcher final : public nlohmann::json_sax<Json> {
 public:
  explicit Watcher(int max_depth) : max_depth_(static_cast<size_t>(max_depth)) {}

  bool null() override { return Value(); }
  bool boolean(bool) override { return Value(); }
  bool number_integer(int64_t) override { return Value(); }
  bool number_unsigned(uint64_t) override { return Value(); }
  bool number_float(double, const std::string&) override { return Value(); }
  bool string(std::string&) override { return Value(); }
  bool binary(Json::binary_t&) override { return Value(); }
  bool start_object(size_t) override { return Open(); }
  bool start_array(size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(std::string& name) override {
    if (duplicate_.empty() && !names_.back().insert(name).second) {
      duplicate_ = absl::StrCat("'", name.substr(0, kNameShown), "'");
    }
    return true;
  }
  bool parse_error(size_t byte, const std::string&, const Json::exception& error) override {
    const bool syntax = dynamic_cast<const Json::parse_error*>(&error) != nullptr;
    return Stop(syntax ? absl::StrCat("not JSON: a syntax error at byte ", byte)
                       : absl::StrCat("not JSON: ", error.what()));
  }

  // What is wrong with the text as a whole.
  const std::string& problem() const { return problem_; }
  // The first name that an object has twice, in quotes.
  const std::string& duplicate() const { return duplicate_; }

 private:
  bool Value() { return ++values_ <= kMaxValues || Stop(absl::StrCat("more than ", kMaxValues, " values")); }
  bool Open() {
    if (names_.size() >= max_depth_) {
      return Stop(absl::StrCat("more than ", max_depth_, " nested objects and lists"));
    }
    names_.emplace_back();
    return Value();
  }
  bool Close() {
    names_.pop_back();
    return true;
  }
  bool Stop(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  const size_t max_depth_;
  size_t values_ = 0;
  std::vector<absl::flat_hash_set<std::string>> names_;  // of the objects that are open, by depth
  std::string problem_, duplicate_;
};

template <class Any>
Any Read(absl::string_view text) {
  return Any::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

template <class Any>
std::string Text(const Any& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Any::error_handler_t::replace);
}

}  // namespace

Json ReadJson(absl::string_view text) { return Read<Json>(text); }
nlohmann::ordered_json ReadOrderedJson(absl::string_view text) { return Read<nlohmann::ordered_json>(text); }
std::string JsonText(const Json& json, int indent) { return Text(json, indent); }
std::string JsonText(const nlohmann::ordered_json& json, int indent) { return Text(json, indent); }

std::string AsciiJsonText(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

absl::StatusOr<Json> ParseJsonObject(absl::string_view text, int max_depth) {
  Watcher watcher(max_depth);
  if (!Json::sax_parse(text.begin(), text.end(), &watcher)) return absl::InvalidArgumentError(watcher.problem());
  Json json = Json::parse(text.begin(), text.end());
  if (!json.is_object()) return absl::InvalidArgumentError("not a JSON object");
  if (!watcher.duplicate().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("has ", watcher.duplicate(), " twice in one object"));
  }
  return json;
}

}  // namespace tdock
