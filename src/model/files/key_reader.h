// Typed keys of an untrusted JSON object.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/json_text.h"
#include "core/base/utf8.h"

namespace tdock::model {

// Reads keys, and keeps the first error. A key with the value null counts as absent.
class KeyReader {
 public:
  using Json = nlohmann::json;

  explicit KeyReader(const Json& object) : object_(object) {}

  bool Has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }
  bool IsNull(const char* key) const { return object_.contains(key) && object_.at(key).is_null(); }
  const Json& At(const char* key) const { return object_.at(key); }

  int64_t Int(const char* key, std::optional<int64_t> fallback = std::nullopt) {
    if (!Has(key)) return Missing(key, fallback);
    if (!At(key).is_number_integer()) return Wrong<int64_t>(key, "an integer");
    if (At(key).is_number_unsigned() && At(key).get<uint64_t>() > INT64_MAX) {
      return Wrong<int64_t>(key, "an integer below 2^63");
    }
    return At(key).get<int64_t>();
  }

  double Float(const char* key, std::optional<double> fallback = std::nullopt) {
    if (!Has(key)) return Missing(key, fallback);
    if (!At(key).is_number()) return Wrong<double>(key, "a number");
    return At(key).get<double>();
  }

  bool Bool(const char* key, std::optional<bool> fallback = std::nullopt) {
    if (!Has(key)) return Missing(key, fallback);
    if (!At(key).is_boolean()) return Wrong<bool>(key, "true or false");
    return At(key).get<bool>();
  }

  std::string String(const char* key, const std::optional<std::string>& fallback = std::nullopt) {
    if (!Has(key)) return Missing(key, fallback);
    if (!At(key).is_string()) return Wrong<std::string>(key, "a string");
    return At(key).get<std::string>();
  }

  // Token ids, which may be given as a number or as a list.
  std::vector<int64_t> TokenIds(const char* key) {
    if (!Has(key)) return {};
    const Json& value = At(key);
    if (!value.is_array()) return {Int(key)};
    std::vector<int64_t> ids;
    for (const Json& id : value) {
      if (!id.is_number_integer()) {
        Complain(absl::StrCat("key '", key, "' must be a number or a list of numbers"));
        return {};
      }
      ids.push_back(id.get<int64_t>());
    }
    return ids;
  }

  void Complain(absl::string_view message) { Keep(absl::InvalidArgumentError(message)); }

  // The file's value is well-formed, but the decoder does not support it.
  void Refuse(absl::string_view message) { Keep(absl::UnimplementedError(message)); }

  // Refuses a switch that the decoder does not support.
  void RefuseUnless(const char* key, bool value) {
    if (Bool(key, value) == value) return;
    Refuse(absl::StrCat("'", key, "': ", value ? "false" : "true", " is not supported"));
  }

  // Refuses every other key with a value.
  void RefuseAllBut(std::span<const absl::string_view> known) {
    for (const auto& [key, value] : object_.items()) {
      if (value.is_null() || std::find(known.begin(), known.end(), key) != known.end()) continue;
      Refuse(absl::StrCat("key '", EscapeForMessage(key), "' is not supported"));
    }
  }

  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }

  const absl::Status& status() const { return status_; }

 private:
  template <class T>
  T Missing(const char* key, const std::optional<T>& fallback) {
    if (fallback) return *fallback;
    Complain(absl::StrCat("key '", key, "' is missing"));
    return T();
  }
  template <class T>
  T Wrong(const char* key, absl::string_view expected) {
    Complain(absl::StrCat("key '", key, "' must be ", expected, ", not ", EscapeUnprintable(JsonText(At(key)), 80)));
    return T();
  }

  const Json& object_;
  absl::Status status_;
};

}  // namespace tdock::model
