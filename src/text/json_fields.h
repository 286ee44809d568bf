// Reads one JSON object of a known form: every field is requested by name, and none may be left unread. Internal to
// this module.
#pragma once

#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/json_text.h"

namespace tdock::text {

// A value in a message: short, on one line.
std::string ShownJson(const nlohmann::json& value);

// Errors are InvalidArgument for damaged fields and Unimplemented for unknown ones; each begins with `where`.
class JsonFields {
 public:
  // `value`, which must outlive this, should be an object; if it is not, every call returns that error. `where` begins
  // messages, and may quote the file.
  JsonFields(const nlohmann::json& value, absl::string_view where);

  // The field, or null if it is absent.
  const nlohmann::json& Get(const char* key);
  absl::StatusOr<std::string> String(const char* key);
  absl::StatusOr<bool> Bool(const char* key);
  absl::StatusOr<bool> BoolOr(const char* key, bool absent);
  absl::StatusOr<int32_t> Int(const char* key);  // 0 … 2³¹-1
  absl::Status Object() const;

  // An error if the object has a field that was not requested.
  absl::Status Finish() const;

  // InvalidArgument and Unimplemented, for one field.
  absl::Status Damaged(const char* key, absl::string_view wanted) const;
  absl::Status Unsupported(const char* key, absl::string_view known) const;

  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& value_;
  const std::string where_;
  std::set<std::string> asked_;
};

}  // namespace tdock::text
